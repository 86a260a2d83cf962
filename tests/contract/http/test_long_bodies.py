"""Bodies that ask for much: reading one costs no more than its length.

It is read outside the event loop, and no other client waits for it.
"""

import asyncio
import json
import sys
import threading
from math import inf
from types import SimpleNamespace

import pytest
from asgi_calls import EVENTS, Answer, FakeDaemon, ask, call, post
from harness.tables import cases, each

from bench.body_shapes import chats, completions, others, responses
from specmesh.api import app, json_text
from specmesh.api.dialects.chat import parse_chat
from specmesh.api.dialects.completions import parse_completion
from specmesh.api.dialects.response_body import parse_response
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.llama_server import apply_template, detokenize, tokenize
from specmesh.api.unread_fields import as_header
from specmesh.core import json_reader
from specmesh.core.text import tool_writing
from specmesh.core.text.tool_formats import FORMATS
from specmesh.core.text.tool_writing import write_arguments
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import RequestError

TARGET = SimVerifier(SimSettings())
SHORT = 6000
LONG = 12_000


def read(shape):
    """Read a body as the API does before a prompt is known."""
    value = json_text.parse_json(shape.body)
    match shape.path:
        case "/v1/completions" | "/v1/chat/completions":
            parse = parse_chat if "chat" in shape.path else parse_completion
            body = parse(value)
            return as_header(body.ignored), [one.size for one in body.requests]
        case "/v1/responses":
            generation, order = parse_response(value, KeptResponses(1))
            return generation, order.conversation.part(order.size)
        case "/detokenize":
            return detokenize(value, TARGET.vocabulary)
        case "/apply-template":
            return apply_template(value, TARGET)
        case _:
            return tokenize(value, TARGET)


def steps_of(work, most=inf):
    """Count the instructions of Python that something takes, until there are more than `most`.

    An error ends it, too.
    """
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        if count > most:
            sys.settrace(None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except RequestError:
        pass
    finally:
        sys.settrace(before)
    return count


def shapes(size):
    return [*completions(size), *chats(size), *responses(size), *others(size)]


SHAPES = list(zip(shapes(SHORT), shapes(LONG), strict=True))


@pytest.mark.parametrize("quick", [json_text.FEW_VALUES, 0], ids=["at once", "in steps"])
@pytest.mark.parametrize(("short", "long"), SHAPES, ids=lambda one: one.name)
def test_twice_the_body_is_twice_the_work(monkeypatch, short, long, quick):
    monkeypatch.setattr(json_text, "FEW_VALUES", quick)
    assert steps_of(lambda: read(long)) <= 2.2 * steps_of(lambda: read(short)) + 2000


LONG_BODY = {"prompt": "x" * app.SHORT_BODY}
SHORT_BODY = {"prompt": "x"}
LONG_IDS = {"prompt": [1] * app.SHORT_BODY}
LONG_FIELD = {"prompt": "x", "u": [[]] * app.SHORT_BODY}


THREADS = [["bodies_0", LONG_BODY, LONG_IDS, LONG_FIELD], ["MainThread", SHORT_BODY]]


@pytest.mark.parametrize(("thread", "body"), each(THREADS))
def test_a_long_body_is_read_beside_the_event_loop(monkeypatch, thread, body):
    """A short one waits for no thread."""
    threads = []

    def noted(raw):
        threads.append(threading.current_thread().name)
        return json_text.parse_json(raw)

    monkeypatch.setattr(app, "parse_json", noted)
    post(FakeDaemon(*EVENTS), **body)
    assert threads == [thread]


def test_short_bodies_are_answered_while_a_long_one_is_read(monkeypatch):
    """The long one is not read to its end before the short one has its answer."""
    answered = threading.Event()

    def slow(raw):
        if len(raw) > app.SHORT_BODY:
            assert answered.wait(60)
        return json_text.parse_json(raw)

    monkeypatch.setattr(app, "parse_json", slow)
    daemon = FakeDaemon(*EVENTS)

    async def ask_both():
        served = app.create_app(daemon, KeptResponses())
        long = json.dumps(LONG_BODY).encode()
        first = asyncio.ensure_future(call(daemon, "POST", "/v1/completions", [long], app=served))
        await asyncio.sleep(0)
        short = await call(daemon, "POST", "/v1/completions", [b'{"prompt": "x"}'], app=served)
        answered.set()
        return [short.status, (await first).status]

    assert asyncio.run(ask_both()) == [200, 200]


def test_what_a_client_left_behind_is_not_read(monkeypatch):
    monkeypatch.setattr(app, "parse_json", pytest.fail)
    gone = Answer(SimpleNamespace(gone=True))
    ask(FakeDaemon(), "/v1/completions", LONG_BODY, answer=gone)
    assert gone.status == 499


NUMBERED = {"a": [1] * 70_000}
LISTED = {"a": [[]] * 70_000}
NAMED = dict.fromkeys(range(70_000), 1)


@pytest.mark.parametrize("arguments", [NUMBERED, LISTED, NAMED], ids=len)
@pytest.mark.parametrize("form", ["qwen3_coder", "gemma4"])
def test_long_arguments_of_a_call_are_shown_in_steps(form, arguments):
    """One call into C that read or wrote them all would hold up every other thread."""
    text = json.dumps(arguments)
    values = text.count(",")
    assert steps_of(lambda: write_arguments(FORMATS[form], text), values) > values


@pytest.mark.parametrize("form", ["qwen3_coder", "gemma4", "hermes"])
def test_arguments_shown_in_steps_are_the_same(monkeypatch, form):
    arguments = json.dumps({"a": [1, [], {"b": "é"}], "c": 1.5, "d": True})
    at_once = write_arguments(FORMATS[form], arguments)
    monkeypatch.setattr(json_reader.read_json, "__defaults__", (0,))
    monkeypatch.setattr(tool_writing, "FEW_VALUES", 0)
    assert write_arguments(FORMATS[form], arguments) == at_once


# --- JSON


def both_ways(monkeypatch, text):
    """Return JSON that is read at once, and step by step."""
    found = []
    for quick in (json_text.FEW_VALUES, 0):
        monkeypatch.setattr(json_text, "FEW_VALUES", quick)
        try:
            found.append(json_text.parse_json(text.encode()))
        except RequestError as error:
            found.append(str(error))
    return found


NUMBERS = ", ".join(map(str, range(3000)))
TEXTS = [
    "[]",
    "[ ]",
    f"[{NUMBERS}]",
    f"[{NUMBERS}, -1.5e3, true, null]",
    f'[{NUMBERS}, "x", [1], {{"a": [{NUMBERS}]}}]',
    f"[[{NUMBERS}], [{NUMBERS}]]",
    f"[{NUMBERS},]",
    f"[{NUMBERS},, 1]",
    "[1" + " " * 5000 + ",]",
    "[1" + " " * 5000 + ", ]",
    f"[,{NUMBERS}]",
    f"[{NUMBERS}",
    f"[{NUMBERS}}}",
    f"[{NUMBERS} 1]",
    '{"a": 1, "a": {"b": [1, 2]}}',
    '{"a": "]\\"[", "b": [1, "]"]}',
    '{"a"}',
    "[1] 2",
    "nothing",
    "",
    "[" * 10_000 + "]" * 10_000,
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_json_read_in_steps_is_the_same(monkeypatch, text):
    at_once, in_steps = both_ways(monkeypatch, text)
    assert at_once == in_steps


HALVES = {
    '"\\ud83d\\ude00"': True,
    '"\\ud83d"': False,
    '"\\ude00\\ud83d"': False,
    '"\\ud83d\\u0041"': False,
    '"\\ud83d\\ud83d\\ude00"': False,
    '"\\\\ud83d"': True,
    '"\\\\\\ud83d"': False,
    '"\\u00e9\\"\\uD83D\\uDE00"': True,
}


@pytest.mark.parametrize(("text", "whole"), HALVES.items())
def test_half_a_surrogate_pair_is_no_text(monkeypatch, text, whole):
    for found in both_ways(monkeypatch, text):
        assert found == (json.loads(text) if whole else f"the body has {json_text.HALF}")


MOST = dict.fromkeys(["[", "{", "[],", '{"a":'], json_text.MOST_NESTED + 1)
MOST['"",'] = json_text.MOST_QUOTES


@pytest.mark.parametrize(("part", "count"), MOST.items())
def test_more_than_anybody_needs_is_refused_unread(part, count):
    raw = part.encode() * count
    with pytest.raises(RequestError, match="lists and objects, or texts"):
        json_text.parse_json(raw)


@cases(
    "value",
    r'{} {"a": "ä\n"} {"tokens": $MANY, "b": null} {"a": $OBJECTS}',
    MANY=list(range(10_000)),
    OBJECTS=[{"id": 1}] * 5000,
)
def test_json_is_written_as_it_was(value):
    assert json.loads(json_text.write_json(value)) == value


def test_what_a_response_repeats_is_written_in_steps_where_it_is_much(
    monkeypatch,
):
    value = {"metadata": {str(number): [number, "ä"] for number in range(50)}}
    whole = json_text.write_gently(value)
    monkeypatch.setattr(json_text, "FEW_VALUES", 1)
    assert whole == json_text.write_gently(value) == json.dumps(value, ensure_ascii=False)
