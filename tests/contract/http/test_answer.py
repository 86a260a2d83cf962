"""The text of a completion, whole and streamed, resumed, echoed, and with log-probabilities.

A chat's text comes in parts, which make up its message when they are joined.
"""

import asyncio
import json
from itertools import pairwise

import pytest
from asgi_calls import (
    DONE,
    EVENTS,
    Answer,
    Asked,
    FakeDaemon,
    Reader,
    ask,
    call,
    post,
    streamed_or_whole,
)
from harness.tables import cases, rows
from hypothesis import given
from hypothesis import strategies as st

from specmesh.api import answer as api_answer
from specmesh.api.backend import Cancel, PauseClient
from specmesh.api.dialects.completions import parse_completion
from specmesh.api.stream import Call, Text, Thought
from specmesh.api.turn_parts import turn_parts_of
from specmesh.core.requests import Failed, Finished, Scored, Started, Tokens
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import FORBIDDEN, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import Busy, RequestError

EURO = tuple("€".encode())
NAME = "cmpl-" + 32 * "a"
USAGE = {"stream_options": {"include_usage": True}}
BUSY = Failed(Busy("full"))
STARTS = Started(1, 2)
STARTS_TOO = Started(2, 2)
SILENT = (STARTS,)


def said(*ids):
    return Tokens(ids, 0)


def stream(*events, **body):
    return post(FakeDaemon(*events), stream=True, **body).bodies()


def texts_of(answer):
    """Return the texts of all chunks, without empty ones."""
    texts = []
    for body in answer.bodies():
        texts += [choice["text"] for choice in body["choices"] if choice["text"]]
    return texts


def lists_of(answer):
    """Return the four lists of log-probabilities, joined over all chunks."""
    lists = {}
    for body in answer.bodies():
        for name, values in (body["choices"][0]["logprobs"] or {}).items():
            lists.setdefault(name, []).extend(values)
    return lists


def starts(daemon, answer, **body):
    """Begin a completion whose answer is still to come."""
    raw = json.dumps({"prompt": "hi"} | body).encode()
    calling = call(daemon, "POST", "/v1/completions", [raw], answer)
    return asyncio.ensure_future(calling)


async def next_look(reader):
    """Wait for an answer's next look at its events."""
    looks = reader.looks
    while reader.looks == looks:
        await asyncio.sleep(0)


def test_stream_joins_what_came_together():
    """Without rounds, ids that came together are one chunk, and drafts are left out."""
    answer = post(FakeDaemon(*EVENTS), stream=True, **USAGE)
    *chunks, last = answer.bodies()
    assert answer.events()[-1] == "[DONE]"
    begin, text, end = chunks
    assert begin["choices"][0]["text"] == ""
    assert begin["specmesh"] == {"session": 7, "prompt_tokens": 2}
    assert text["choices"][0]["text"] == "ABC"
    assert text["choices"][0]["finish_reason"] is None
    assert text["specmesh"] == {"token_ids": [65, 66, 67], "accepted": 1}
    assert end["choices"][0]["text"] == ""
    assert end["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_stream_with_rounds():
    _, first, second, _ = stream(*EVENTS, rounds=True)
    assert first["specmesh"] == {"accepted_text": "A", "token_ids": [65, 66], "accepted": 1}
    assert second["specmesh"] == {"accepted_text": "", "token_ids": [67], "accepted": 0}


def test_a_stream_waits_for_its_reader():
    """Nothing is written that would wait; it is joined, and written once there is room."""
    reader = Reader(behind=True)
    answer = Answer(reader)

    async def read():
        asking = starts(FakeDaemon(*EVENTS), answer, stream=True)
        while reader.on_writable is None:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert answer.status == 0
        assert answer.parts == []
        reader.behind = False
        reader.on_writable()
        reader.on_writable()  # an answer that has ended ignores it
        await asking
        reader.on_writable()
        owner = getattr(reader.on_writable, "__self__", None)
        assert not isinstance(owner, api_answer.Answer), "the answer is kept"

    asyncio.run(read())
    assert texts_of(answer) == ["ABC"]


def test_a_session_waits_for_a_reader_that_is_behind():
    """It pauses once it has more text, and goes on when that is written; another one goes on."""
    reader = Reader()
    answer = Answer(reader)
    daemon = Differing(SILENT)

    async def read():
        asking = starts(daemon, answer, stream=True, n=2)
        while not answer.parts:
            await asyncio.sleep(0)
        first = daemon.orders[0].client
        reader.behind = True
        reader.on_writable()
        await next_look(reader)
        assert daemon.pauses == []
        for token in (65, 66):
            first.on_event(said(token))
            await next_look(reader)
        assert daemon.pauses == [PauseClient(first, paused=True)]
        reader.behind = False
        reader.on_writable()
        while len(daemon.pauses) < 2:
            await asyncio.sleep(0)
        assert daemon.pauses[1:] == [PauseClient(first, paused=False)]
        answer.gone.set()
        await asking

    asyncio.run(read())
    assert json.loads(answer.events()[-1])["choices"][0]["text"] == "AB"
    assert reader.written == len(answer.body)


@cases("stream, texts", '[false, ["€\\ufffd"]] [true, ["€", "\\ufffd"]]')
def test_characters_split_over_rounds_arrive_whole(stream, texts):
    """A character of several bytes is never sent in parts; half a one at the end is U+FFFD."""
    rounds = map(said, (*EURO, EURO[0]))
    answer = post(FakeDaemon(STARTS, *rounds, DONE), stream=stream, rounds=True)
    assert texts_of(answer) == texts


PARAMS = SessionParams(SamplingParams(temperature=0.5, seed=7), 40, draft_n=4, stop=("D",))
STARTED = Started(7, 2, (104, 105), PARAMS)
GOES_ON = Started(1, 1, (9,), PARAMS)
PLAIN = {"session": 7, "prompt_tokens": 2}


def test_resumable_stream_says_how_to_go_on():
    first = stream(STARTED, DONE, resumable=True)[0]
    request = first["specmesh"].pop("request")
    resumed = parse_completion({"prompt": "x", "stop": "D", "draft_n": 4} | request)
    assert resumed.requests[0].params == PARAMS
    assert first["specmesh"] == PLAIN | {"prompt_token_ids": [104, 105], "model_hash": "f00d"}


def test_the_id_of_a_resumable_text_cannot_be_guessed():
    first, *_ = stream(STARTED, DONE, resumable=True)
    again, *_ = stream(STARTED, DONE, resumable=True)
    assert len(first["id"]) == len(NAME)
    assert first["id"] != again["id"]


def test_other_streams_do_not_tell_the_prompts_ids():
    assert stream(STARTED, DONE)[0]["specmesh"] == PLAIN


NO_END = ((255, FORBIDDEN),)


@pytest.mark.parametrize(("asked", "biases"), [({}, ()), ({"ignore_eos": True}, NO_END)])
def test_an_end_that_is_ignored(asked, biases):
    """The end ids are forbidden."""
    daemon = FakeDaemon(*EVENTS)
    post(daemon, **asked)
    [order] = daemon.orders
    assert order.request.params.sampling.logit_bias == biases


@streamed_or_whole
def test_resumed_text_goes_on_where_it_was(stream):
    """Known ids may end in half a character or stop string; usage counts all but the stop's."""
    daemon = FakeDaemon(GOES_ON, said(EURO[2], 67, 68, 69), DONE)
    known = [65, *EURO[:2]]
    resume = {"id": NAME, "model": "fake-model", "prompt_token_ids": [9], "token_ids": known}
    answer = post(daemon, stream=stream, resume=resume, stop=["D"], **USAGE)
    bodies = answer.bodies()
    assert "".join(texts_of(answer)) == "€C"
    for body in bodies:
        assert body["id"] == NAME
    assert bodies[-1]["usage"]["completion_tokens"] == 5
    [order] = daemon.orders
    assert order.request.id == NAME
    assert order.request.generated == tuple(known)
    assert order.request.known == 3


def test_text_asked_for_by_name_ends_with_its_own_stop_string():
    daemon = FakeDaemon(GOES_ON, said(65, 66, 67, 68), DONE)
    assert texts_of(post(daemon, resume={"id": NAME})) == ["ABC"]


RESUME = {"id": NAME, "model": "other-model", "prompt_token_ids": [9], "token_ids": []}


@cases(
    "fields, model, target",
    """
    [{"model": "other-model"}, "other-model", "target of other-model"]
    [{"resume": $RESUME}, "other-model", "target of other-model"]
    [{}, "fake-model", ""]
    """,
    RESUME=RESUME,
)
def test_the_model_that_answers(fields, model, target):
    """A request chooses it; a text goes on with the one that it had."""
    daemon = FakeDaemon(*EVENTS)
    assert post(daemon, **fields).json()["model"] == model
    assert daemon.orders[0].request.target == target


def test_an_unknown_model():
    daemon = FakeDaemon(*EVENTS)
    refused = post(daemon, model="gpt-4")
    assert refused.status == 404
    assert daemon.orders == []
    assert "/v1/models" in refused.error["message"]


def test_a_text_does_not_change_its_model():
    resume = RESUME | {"model": "fake-model"}
    assert post(FakeDaemon(*EVENTS), model="other-model", resume=resume).status == 400


@cases(
    "began, status",
    """
    ["f00d", 200]
    ["", 200]
    ["beef", 400]
    """,
)
def test_a_text_does_not_change_its_file_or_adapter(began, status):
    """Both may be others under the same name; the hash shows it."""
    resume = RESUME | {"model": "fake-model", "model_hash": began}
    assert post(FakeDaemon(*EVENTS), resume=resume).status == status


# --- several answers to one request


class Differing(FakeDaemon):
    """A daemon with events of their own for each choice, and none for choices beyond them."""

    def __init__(self, *choices):
        super().__init__()
        self.choices = choices

    def events_of(self, request):
        return self.choices[request.choice] if request.choice < len(self.choices) else ()

    @property
    def pauses(self):
        return [order for order in self.orders if isinstance(order, PauseClient)]

    @property
    def cancelled_choices(self):
        choices = {}
        cancelled = set[int]()
        for order in self.orders:
            if isinstance(order, Asked):
                choices[order.client] = order.request.choice
            elif isinstance(order, Cancel):
                cancelled.add(choices[order.client])
        return cancelled


@streamed_or_whole
def test_who_leaves_leaves_all(stream):
    """At the first part of a stream, or while it waits for a whole answer."""
    daemon = Differing(SILENT, (STARTS_TOO,))
    answer = Answer()
    answer.on_part = answer.gone.set

    async def leave():
        asking = starts(daemon, answer, stream=stream, n=2)
        while len(daemon.orders) < 2:
            await asyncio.sleep(0)
        assert daemon.cancelled_choices == set()
        if not stream:
            answer.gone.set()
        await asking

    asyncio.run(leave())
    assert daemon.cancelled_choices == {0, 1}
    assert len(answer.parts) == stream


@streamed_or_whole
def test_one_that_fails_ends_all(stream):
    daemon = Differing(SILENT, (BUSY,), (STARTS_TOO, said(67), DONE))
    answer = post(daemon, n=4, stream=stream)
    assert answer.status == 503
    assert daemon.cancelled_choices >= {0, 3}


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_fails_in_the_stream_ends_all(count):
    """A session that breaks after its first text ends the stream with an error and no [DONE]."""
    daemon = Differing(SILENT, (STARTS_TOO,))
    answer = Answer()
    answer.on_part = lambda: daemon.orders[count - 1].client.on_event(BUSY)
    body = {"prompt": "hi", "n": count, "stream": True}
    ask(daemon, "/v1/completions", body, answer=answer)
    error = json.loads(answer.events()[-1])["error"]
    assert error["message"] == "full"
    assert error["code"] == "server_busy"
    assert daemon.cancelled_choices == set(range(count - 1))


FAULT = "properties.a: Unknown format: x"
SCHEMA_NAMES = rows("""
[{"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
 "response_format.json_schema.schema: ", "response_format"]
[{"response_format": {"type": "json_object", "schema": {}}},
 "response_format.schema: ", "response_format"]
[{"json_schema": {}}, "json_schema: ", "json_schema"]
[{}, "json_schema cannot be used: ", "json_schema"]
""")


@pytest.mark.parametrize(("fields", "begin", "param"), SCHEMA_NAMES)
def test_a_schemas_fault_has_the_name_of_the_field(fields, begin, param):
    """A verifier knows only that there is a schema."""
    failed = Failed(RequestError(f"json_schema cannot be used: {FAULT}", "json_schema"))
    error = post(FakeDaemon(failed), **fields).error
    assert error["message"] == begin + FAULT
    assert error["param"] == param


# --- log-probabilities


A_LIKELY = Logprob(-0.5, (65,), (-0.5,))
Z_LIKELIER = Logprob(-3.0, (90,), (-0.1,))
WITH_LOGPROBS = SessionParams(SamplingParams(), 9, logprobs=1)


def scored(ids, *logprobs):
    """Return a daemon whose text is these ids with their log-probabilities."""
    started = Started(1, 2, (104, 105), WITH_LOGPROBS)
    return FakeDaemon(started, Tokens(ids, 0, logprobs), DONE)


def test_a_completion_has_four_lists():
    """They have the tokens, their logarithms, the likeliest, and each one's offset."""
    lists = lists_of(post(scored((65, 66), A_LIKELY, Z_LIKELIER), logprobs=1))
    assert lists.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert lists["tokens"] == ["A", "B"]
    assert lists["token_logprobs"] == [-0.5, -3.0]
    assert lists["top_logprobs"] == [{"A": -0.5}, {"Z": -0.1, "B": -3.0}]
    assert lists["text_offset"] == [0, 1]


def test_log_probabilities_with_ids():
    answer = post(scored((65, 66), A_LIKELY, Z_LIKELIER), logprobs=1).json()
    entry = {"id": 65, "token": "A", "logprob": -0.5, "bytes": [65]}
    assert answer["specmesh"]["logprobs"][0] == entry | {"top_logprobs": [entry]}


def test_a_chat_has_one_object_each():
    """It has the bytes of the token."""
    asked = {"messages": [USER], "logprobs": True, "top_logprobs": 1}
    answer = ask(scored((65,), Z_LIKELIER), "/v1/chat/completions", asked).json()
    top = {"id": 90, "token": "Z", "logprob": -0.1, "bytes": [90]}
    entry = {"id": 65, "token": "A", "logprob": -3.0, "bytes": [65], "top_logprobs": [top]}
    assert answer["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    assert "logprobs" not in answer["specmesh"]


def test_parts_of_a_character_are_told_as_bytes():
    """Each token has its own; the text comes with the last of them."""
    answer = post(scored((65, *EURO, 66), *[Logprob(-1.0)] * 5), logprobs=0)
    lists = lists_of(answer)
    assert texts_of(answer) == ["A€B"]
    assert lists["text_offset"] == [0, 1, 1, 1, 2]
    assert lists["tokens"] == ["A", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "B"]
    assert answer.json()["specmesh"]["logprobs"][1]["bytes"] == [0xE2]


@streamed_or_whole
def test_an_echoed_prompt(stream):
    """It stands first in all four lists; its first id has no logarithm; stop strings ignore it."""
    prompt = Started(1, 3, (104, *EURO[:2]), WITH_LOGPROBS)
    known = Scored((Logprob(-1.0, (104,), (-1.0,)), Logprob(-2.0)))
    tokens = Tokens((65, 66), 0, (A_LIKELY, Z_LIKELIER))
    daemon = FakeDaemon(prompt, known, tokens, DONE)
    answer = post(daemon, logprobs=1, echo=True, stop="h", stream=stream)
    assert "".join(texts_of(answer)) == "h\ufffdAB"
    lists = lists_of(answer)
    assert lists["tokens"] == ["h", "bytes:\\xe2", "bytes:\\x82", "A", "B"]
    assert lists["token_logprobs"] == [None, -1.0, -2.0, -0.5, -3.0]
    assert lists["top_logprobs"][:2] == [None, {"h": -1.0, "bytes:\\xe2": -1.0}]
    assert lists["text_offset"] == [0, 1, 1, 2, 3]
    params = daemon.orders[0].request.params
    assert params.scored
    assert not params.cache_prompt


@streamed_or_whole
def test_an_echoed_prompt_without_log_probabilities(stream):
    daemon = FakeDaemon(Started(1, 2, (104, 105)), said(65), DONE)
    assert "".join(texts_of(post(daemon, echo=True, stream=stream))) == "hiA"


def test_an_echoed_prompt_of_one_id():
    """No logarithm comes of it, as of a verifier that knows no echo."""
    answer = post(FakeDaemon(Started(1, 1, (104,)), DONE), echo=True, logprobs=1)
    assert texts_of(answer) == ["h"]
    assert lists_of(answer)["token_logprobs"] == [None]


def test_who_asks_by_name_has_what_the_text_has():
    """Ids from before the last resume have null."""
    lists = lists_of(post(scored((65, 66), None, Logprob(-1.0)), resume={"id": NAME}))
    assert lists["token_logprobs"] == [None, -1.0]
    assert lists["top_logprobs"] == [None, {"B": -1.0}]


@cases("stream, texts", '[false, ["ab#c"]] [true, ["ab", "#c"]]')
def test_ids_text_and_logprobs_end_together(stream, texts):
    """At a stop string within two ids, all have as little as the text."""
    rounds = []
    for token in (0, 2, 1, 3):
        rounds.append(Tokens((token,), 0, (Logprob(-float(token)),)))
    daemon = FakeDaemon(STARTS, *rounds, DONE)
    daemon.vocabulary = Vocabulary((b"ab", b"c#", b"#", b"#d"), frozenset())
    answer = post(daemon, logprobs=0, stop=["##"], stream=stream, rounds=True)
    lists = lists_of(answer)
    ids = []
    for body in answer.bodies():
        ids += body["specmesh"].get("token_ids", [])
    assert texts_of(answer) == texts
    assert lists["token_logprobs"] == [0.0, -2.0, -1.0]
    assert lists["text_offset"] == [0, 2, 3]
    assert ids == [0, 2, 1]


# --- thoughts and calls of a chat

[TOOLS, USER] = rows("""
{"tools": [{"name": "f", "parameters": {}}], "choice": "auto", "parallel": true, "format": "hermes"}
{"role": "user", "content": "Hi"}
""")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
TEXT = f"<think>So?\n</think>\n\nWell: {CALL}\n{CALL}"


def tool_params(**fields):
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | fields))
    return SessionParams(SamplingParams(), 9, grammar=grammar, thinking=str(fields["thinking"]))


def new_turn(thinking="think", *, splits=True):
    parts = turn_parts_of(tool_params(thinking=thinking), splits_thoughts=splits)
    assert parts is not None
    return parts


def joined(parts):
    """Return the thought, the text and the calls of all parts."""
    thought = ""
    text = ""
    calls = []
    for part in parts:
        match part:
            case Thought():
                thought += part.text
            case Text():
                text += part.text
            case Call():
                if part.id:
                    assert part.index == len(calls)
                    assert len(part.id) == 9
                    calls.append([part.name, ""])
                calls[part.index][1] += part.arguments
    return thought, text, calls


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_whatever_the_parts(cuts):
    turn = new_turn()
    places = [0, *sorted(cuts), len(TEXT)]
    *pieces, last = (TEXT[begin:end] for begin, end in pairwise(places))
    parts = []
    for piece in pieces:
        parts += turn.feed(piece, over=False)
    parts += turn.feed(last, over=True)
    calls = [["f", '{"a": "</tool_call>"}']] * 2
    assert joined(parts) == ("So?", "Well: ", calls)


@cases(
    "known, thought, content",
    r'["<think>So", "?", "Well: "] ["<think>So?\n</think>\n\nWe", "", "ll: "]',
)
def test_a_text_gone_on_with(known, thought, content):
    """The known part is not sent again, and decides how the rest is read."""
    turn = new_turn()
    turn.feed(known, over=False)
    found = joined(turn.feed(TEXT.removeprefix(known), over=True))
    assert found[:2] == (thought, content)
    assert len(found[2]) == 2


def test_thoughts_may_stay():
    """They keep their marks, and no call begins in one."""
    text = f"<think>So {CALL}</think>\n\nWell"
    parts = new_turn(splits=False).feed(text, over=True)
    assert joined(parts) == ("", f"<think>So {CALL}</think>Well", [])


def test_no_part_is_empty():
    """A model that does not think has no marks to put back."""
    turn = new_turn("", splits=False)
    for text in ("Well", ": "):
        assert list(turn.feed(text, over=False)) == [Text(text)]


@pytest.mark.parametrize(("text", "called"), [(TEXT, True), (TEXT[:-20], False)])
def test_half_a_call_is_none_that_was_made(text, called):
    turn = new_turn()
    turn.feed(text, over=True)
    assert turn.called == called


def chat(text, reason, params, **body):
    """Ask for a chat whose text is this one, and ends for this reason."""
    started = Started(1, 1, (), params)
    daemon = FakeDaemon(started, said(*text.encode()), Finished(reason, (104,), {}))
    return ask(daemon, "/v1/chat/completions", {"messages": [USER]} | body)


@streamed_or_whole
@pytest.mark.parametrize("choice", ["auto", "required", {"name": "f"}])
@pytest.mark.parametrize("size", range(len('<tool_call>\n{"name": "f"')))
def test_a_call_that_the_length_cuts_before_its_arguments_is_no_text(choice, size, stream):
    params = tool_params(thinking="", choice=choice)
    answer = chat(CALL[:size], "length", params, stream=stream)
    assert "tool" not in answer.body.decode().replace('"tool_calls"', "")
    assert b"<" not in answer.body


def test_a_text_that_the_model_ends_with_half_a_mark_has_it():
    answer = chat("1 <", "stop", tool_params(thinking=""))
    assert answer.json()["choices"][0]["message"]["content"] == "1 <"


@streamed_or_whole
@pytest.mark.parametrize(("merged", "shown"), [((), None), (("system", "user"), "system, user")])
def test_the_header_names_the_roles_of_joined_messages(stream, merged, shown):
    params = SessionParams(SamplingParams(), 9, merged=merged)
    answer = chat("A", "stop", params, stream=stream)
    assert answer.headers.get("x-specmesh-merged") == shown
