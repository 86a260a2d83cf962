"""What a completion says, whole and streamed, from its beginning or from where it was; several at once, with
log-probabilities; and a chat's text as deltas, which joined are its message, however the text comes."""

import asyncio
import json
from itertools import pairwise

import pytest
from asgi_calls import DONE, EVENTS, Answer, FakeDaemon, Reader, ask, call, post
from hypothesis import given
from hypothesis import strategies as st

from specmesh.api import answer as api_answer
from specmesh.api.backend import Cancel, PauseClient, Submit
from specmesh.api.dialects.completions import parse_completion
from specmesh.api.stream import Call, Content, Text, Thought
from specmesh.api.turn_parts import TurnParts, turn_parts_of
from specmesh.core.requests import ClientEvent, Failed, Finished, Request, Scored, Started, Tokens
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import FORBIDDEN, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import Busy, RequestError

BODY = json.dumps({"prompt": "hi", "stream": True}).encode()
EURO = tuple("€".encode())


def test_stream_joins_what_came_together():
    """Streamed without rounds: ids that came together are one chunk, drafts are left out, [DONE] ends it."""
    answer = post(FakeDaemon(*EVENTS), stream=True, stream_options={"include_usage": True})
    *chunks, last = answer.bodies()
    assert answer.events()[-1] == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "ABC", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert chunks[0]["specmesh"] == {"session": 7, "prompt_tokens": 2}
    assert chunks[1]["specmesh"] == {"token_ids": [65, 66, 67], "accepted": 1}
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_stream_with_rounds():
    _, first, second, _ = (
        body["specmesh"] for body in post(FakeDaemon(*EVENTS), stream=True, rounds=True).bodies()
    )
    assert first == {"accepted_text": "A", "token_ids": [65, 66], "accepted": 1}
    assert second == {"accepted_text": "", "token_ids": [67], "accepted": 0}


def test_a_stream_waits_for_its_reader():
    """Nothing is written where that would wait; what has come meanwhile is joined, and written once there is room."""
    reader, answer = Reader(behind=True), Answer()

    async def read() -> None:
        asking = asyncio.ensure_future(
            call(FakeDaemon(*EVENTS), "POST", "/v1/completions", [BODY], answer, reader)
        )
        while reader.on_writable is None:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert (answer.status, answer.parts) == (0, [])
        reader.behind = False
        reader.on_writable()
        reader.on_writable()  # what is taken of an answer that has ended is nothing to it
        await asking
        reader.on_writable()
        assert not isinstance(
            getattr(reader.on_writable, "__self__", None), api_answer.Answer
        )  # nor is it kept

    asyncio.run(read())
    assert [body["choices"][0]["text"] for body in answer.bodies()] == ["", "ABC", ""]


def test_a_session_waits_for_a_reader_that_is_behind():
    """Once it has more to say; it goes on when that is written. One that said nothing goes on."""
    reader, answer, daemon = Reader(), Answer(), Differing((Started(1, 2),))
    orders = list[object]()

    async def heard(event: ClientEvent | None = None) -> None:
        if event is not None:
            daemon.orders[0].client.on_event(event)  # type: ignore[union-attr]
        await asyncio.sleep(2 * api_answer.PACE)
        orders.extend(one for one in daemon.orders if isinstance(one, PauseClient))
        daemon.orders = [one for one in daemon.orders if isinstance(one, Submit)]

    async def read() -> None:
        body = json.dumps({"prompt": "hi", "stream": True, "n": 2}).encode()
        asking = asyncio.ensure_future(
            call(daemon, "POST", "/v1/completions", [body], answer, reader)
        )
        while not answer.parts:
            await asyncio.sleep(0)
        first = daemon.orders[0].client  # type: ignore[union-attr]
        reader.behind = True
        await heard()
        assert orders == []
        await heard(Tokens((65,), 0))
        await heard(Tokens((66,), 0))
        assert orders == [PauseClient(first, paused=True)]
        reader.behind = False
        assert reader.on_writable is not None
        reader.on_writable()
        await heard()
        assert orders == [PauseClient(first, paused=True), PauseClient(first, paused=False)]
        answer.gone.set()
        await asking

    asyncio.run(read())
    assert json.loads(answer.events()[-1])["choices"][0]["text"] == "AB"
    assert reader.written == len(answer.body)


@pytest.mark.parametrize("stream", [False, True])
def test_characters_split_over_rounds_arrive_whole(stream: bool):
    """A character of several bytes is never sent in parts; half a one at the end is U+FFFD."""
    events = (Started(1, 2), *(Tokens((byte,), 0) for byte in (*EURO, EURO[0])), DONE)
    answer = post(FakeDaemon(*events), stream=stream, rounds=True)
    texts = [text for body in answer.bodies() if (text := body["choices"][0]["text"])]
    assert texts == (["€", "\ufffd"] if stream else ["€\ufffd"])


PARAMS = SessionParams(SamplingParams(temperature=0.5, seed=7), 40, draft_n=4, stop=("D",))
NAME = "cmpl-" + 32 * "a"


def test_resumable_stream_says_what_is_needed_to_go_on():
    """The prompt's ids and what the text is sampled with; and its id cannot be guessed."""
    started = Started(7, 2, (104, 105), PARAMS)
    answers = [post(FakeDaemon(started, DONE), stream=True, resumable=True) for _ in range(2)]
    first, again = (json.loads(answer.events()[0]) for answer in answers)
    plain, request = {"session": 7, "prompt_tokens": 2}, first["specmesh"].pop("request")
    assert (
        parse_completion({"prompt": "x", "stop": "D", "draft_n": 4} | request).requests[0].params
        == PARAMS
    )
    assert first["specmesh"] == plain | {"prompt_token_ids": [104, 105]}
    assert len(first["id"]) == len(NAME)
    assert first["id"] != again["id"]
    assert json.loads(post(FakeDaemon(started, DONE), stream=True).events()[0])["specmesh"] == plain


@pytest.mark.parametrize(
    ("asked", "biases"), [({}, ()), ({"ignore_eos": True}, ((255, FORBIDDEN),))]
)
def test_an_end_that_is_ignored(asked: dict[str, object], biases: tuple[object, ...]):
    """The end ids are forbidden where that was asked for; so whoever goes on with the text is told."""
    daemon = FakeDaemon(*EVENTS)
    post(daemon, **asked)
    [order] = daemon.orders
    assert order.request.params.sampling.logit_bias == biases


@pytest.mark.parametrize("stream", [False, True])
def test_resumed_text_goes_on_where_it_was(stream: bool):
    """Half a character, half a stop string are made again of known ids; usage counts all but the stop string's."""
    daemon = FakeDaemon(Started(1, 1, (9,), PARAMS), Tokens((EURO[2], 67, 68, 69), 0), DONE)
    resume = {
        "id": NAME,
        "model": "fake-model",
        "prompt_token_ids": [9],
        "token_ids": [65, *EURO[:2]],
    }
    answer = post(
        daemon, stream=stream, stream_options={"include_usage": True}, resume=resume, stop=["D"]
    )
    bodies = answer.bodies()
    assert "".join(choice["text"] for body in bodies for choice in body["choices"]) == "€C"
    assert {body["id"] for body in bodies} == {NAME}
    assert bodies[-1]["usage"]["completion_tokens"] == 5
    [order] = daemon.orders
    assert (order.request.id, order.request.generated, order.request.known) == (
        NAME,
        (65, *EURO[:2]),
        3,
    )


def test_text_asked_for_by_name_ends_with_its_own_stop_string():
    daemon = FakeDaemon(Started(1, 1, (9,), PARAMS), Tokens((65, 66, 67, 68), 0), DONE)
    assert post(daemon, resume={"id": NAME}).json()["choices"][0]["text"] == "ABC"


def test_the_model_that_is_named():
    """The answer names it; a text goes on with the one it had; a model that nobody has is not answered by another."""
    daemon = FakeDaemon(*EVENTS)
    assert post(daemon, model="other-model").json()["model"] == "other-model"
    resume = {"id": NAME, "model": "other-model", "prompt_token_ids": [9], "token_ids": []}
    assert post(daemon, resume=resume).json()["model"] == "other-model"
    assert post(daemon).json()["model"] == "fake-model"
    asked = [order.request.target for order in daemon.orders if isinstance(order, Submit)]
    assert asked == ["target of other-model"] * 2 + [""]
    refused = post(daemon, model="gpt-4")
    assert (refused.status, len(daemon.orders)) == (404, 3)
    assert "/v1/models" in refused.json()["error"]["message"]
    assert post(daemon, model="other-model", resume=resume | {"model": "fake-model"}).status == 400


# --- several answers to one request


class Differing(FakeDaemon):
    """Answers each choice by events of its own; a choice beyond them hears nothing."""

    def __init__(self, *choices: tuple[ClientEvent, ...]) -> None:
        super().__init__()
        self.choices = choices

    def events_of(self, request: Request) -> tuple[ClientEvent, ...]:
        return self.choices[request.choice] if request.choice < len(self.choices) else ()

    @property
    def left(self) -> set[int]:
        """Choices that were cancelled."""
        asked = {
            order.client: order.request.choice for order in self.orders if isinstance(order, Submit)
        }
        return {asked[order.client] for order in self.orders if isinstance(order, Cancel)}


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_leaves_all(stream: bool):
    daemon = Differing((Started(1, 2),), (Started(2, 2),))

    async def left() -> None:
        answer = Answer()
        body = json.dumps({"prompt": "hi", "n": 2, "stream": stream}).encode()
        task = asyncio.ensure_future(call(daemon, "POST", "/v1/completions", [body], answer))
        while len(daemon.orders) < 2:
            await asyncio.sleep(0)
        answer.gone.set()
        await task

    asyncio.run(left())
    assert daemon.left == {0, 1}


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_fails_ends_all(stream: bool):
    daemon = Differing(
        (Started(1, 2),), (Failed(Busy("full")),), (Started(2, 2), Tokens((67,), 0), DONE)
    )
    answer = post(daemon, n=4, stream=stream)
    assert answer.status == 503
    assert daemon.left >= {0, 3}


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_fails_in_the_stream_ends_all(count: int):
    """A session that breaks after text was sent ends the stream with an error event and no [DONE]."""
    daemon, answer = Differing((Started(1, 2),), (Started(2, 2),)), Answer()
    answer.on_part = lambda: daemon.orders[count - 1].client.on_event(Failed(Busy("full")))
    ask(daemon, "/v1/completions", {"prompt": "hi", "n": count, "stream": True}, answer=answer)
    error = json.loads(answer.events()[-1])["error"]
    assert (error["message"], error["code"]) == ("full", "server_busy")
    assert daemon.left == set(range(count - 1))


FAULT = "properties.a: Unknown format: x"


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            f"response_format.json_schema.schema: {FAULT}",
            "response_format",
        ),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            f"response_format.schema: {FAULT}",
            "response_format",
        ),
        ({"json_schema": {}}, f"json_schema: {FAULT}", "json_schema"),
        ({}, f"json_schema cannot be used: {FAULT}", "json_schema"),
    ],
)
def test_a_schemas_fault_has_the_name_of_the_field(
    fields: dict[str, object], message: str, param: str
):
    """A verifier knows only that there is a schema."""
    failed = Failed(RequestError(f"json_schema cannot be used: {FAULT}", "json_schema"))
    error = post(FakeDaemon(failed), **fields).json()["error"]
    assert (error["message"], error["param"]) == (message, param)


def likely(chosen: float, *top: tuple[int, float]) -> Logprob:
    return Logprob(chosen, tuple(token for token, _ in top), tuple(value for _, value in top))


def told(*rounds: tuple[tuple[int, ...], tuple[Logprob | None, ...]]) -> FakeDaemon:
    """A daemon whose text these rounds make, with their log-probabilities; it was begun with some."""
    params = SessionParams(SamplingParams(), 9, logprobs=1)
    return FakeDaemon(
        Started(1, 2, (104, 105), params), *(Tokens(ids, 0, tops) for ids, tops in rounds), DONE
    )


def test_a_completion_has_four_lists():
    """Tokens, theirs, the likeliest with the one that was said, and where each begins; specmesh's with ids."""
    daemon = told(((65, 66), (likely(-0.5, (65, -0.5)), likely(-3.0, (90, -0.1)))))
    answer = post(daemon, logprobs=1).json()
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["A", "B"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"A": -0.5}, {"Z": -0.1, "B": -3.0}],
        "text_offset": [0, 1],
    }
    [first, _] = answer["specmesh"]["logprobs"]
    entry = {"id": 65, "token": "A", "logprob": -0.5, "bytes": [65]}
    assert first == entry | {"top_logprobs": [entry]}


def test_a_chat_has_one_object_each():
    """With the bytes of the token; content alone, as nothing is refused."""
    asked = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1}
    daemon = told(((65,), (likely(-3.0, (90, -0.1)),)))
    answer = ask(daemon, "/v1/chat/completions", asked).json()
    top = {"id": 90, "token": "Z", "logprob": -0.1, "bytes": [90]}
    entry = {"id": 65, "token": "A", "logprob": -3.0, "bytes": [65], "top_logprobs": [top]}
    assert answer["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    assert "logprobs" not in answer["specmesh"]


def test_parts_of_a_character_are_told_as_bytes():
    """Each token has its own; the text comes with the last of them."""
    answer = post(told(((65, *EURO, 66), tuple(likely(-1.0) for _ in range(5)))), logprobs=0).json()
    [choice] = answer["choices"]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == ("A€B", [0, 1, 1, 1, 2])
    assert choice["logprobs"]["tokens"] == ["A", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "B"]
    assert answer["specmesh"]["logprobs"][1]["bytes"] == [0xE2]


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt(stream: bool):
    """It stands before the text in all four lists, without a logarithm for its first id; a stop string is no matter."""
    params = SessionParams(SamplingParams(), 9, logprobs=1)
    prompt = Started(1, 3, (104, *EURO[:2]), params)
    rounds = (
        Tokens((65,), 0, (likely(-0.5, (65, -0.5)),)),
        Tokens((66,), 0, (likely(-3.0, (90, -0.1)),)),
    )
    daemon = FakeDaemon(prompt, Scored((likely(-1.0, (104, -1.0)), likely(-2.0))), *rounds, DONE)
    answer = post(daemon, logprobs=1, echo=True, stop="h", stream=stream)
    choices = [body["choices"][0] for body in answer.bodies()]
    assert "".join(choice["text"] for choice in choices) == "h\ufffdAB"
    lists = [one for choice in choices if (one := choice["logprobs"]) is not None]
    told = {name: [value for one in lists for value in one[name]] for name in lists[0]}
    assert told["tokens"] == ["h", "bytes:\\xe2", "bytes:\\x82", "A", "B"]
    assert told["token_logprobs"] == [None, -1.0, -2.0, -0.5, -3.0]
    assert told["top_logprobs"][:2] == [None, {"h": -1.0, "bytes:\\xe2": -1.0}]
    assert told["text_offset"] == [0, 1, 1, 2, 3]
    [order] = [order for order in daemon.orders if isinstance(order, Submit)]
    assert (order.request.params.scored, order.request.params.cache_prompt) == (True, False)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_alone(stream: bool):
    """Without log-probabilities; or where none came of it: there is only one id, or its verifier knows of no echo."""
    answer = post(
        FakeDaemon(Started(1, 2, (104, 105)), Tokens((65,), 0), DONE), echo=True, stream=stream
    )
    bodies = answer.bodies()
    assert "".join(body["choices"][0]["text"] for body in bodies) == "hiA"
    lone = post(FakeDaemon(Started(1, 1, (104,)), DONE), echo=True, logprobs=1).json()["choices"][0]
    assert (lone["text"], lone["logprobs"]["token_logprobs"]) == ("h", [None])


def test_who_asks_by_name_has_what_the_text_has():
    """Ids from before it was last gone on with have null."""
    logprobs = post(told(((65, 66), (None, likely(-1.0)))), resume={"id": NAME}).json()["choices"][
        0
    ]["logprobs"]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == (
        [None, -1.0],
        [None, {"B": -1.0}],
    )


@pytest.mark.parametrize("stream", [False, True])
def test_ids_text_and_logprobs_end_together(stream: bool):
    """At a stop string that begins in an id and ends in another: what is told is as little as has the text."""
    rounds = (Tokens((token,), 0, (likely(-float(token)),)) for token in (0, 2, 1, 3))
    daemon = FakeDaemon(Started(1, 2), *rounds, DONE)
    daemon.vocabulary = Vocabulary((b"ab", b"c#", b"#", b"#d"), frozenset())
    answer = post(daemon, logprobs=0, stop=["##"], stream=stream, rounds=True)
    bodies = answer.bodies()
    assert [text for body in bodies if (text := body["choices"][0]["text"])] == (
        ["ab", "#c"] if stream else ["ab#c"]
    )
    lists = [one for body in bodies if (one := body["choices"][0]["logprobs"]) is not None]
    assert [value for one in lists for value in one["token_logprobs"]] == [0.0, -2.0, -1.0]
    assert [begin for one in lists for begin in one["text_offset"]] == [0, 2, 3]
    assert [token for body in bodies for token in body["specmesh"].get("token_ids", [])] == [
        0,
        2,
        1,
    ]


TOOLS = {
    "tools": [{"name": "f", "parameters": {}}],
    "choice": "auto",
    "parallel": True,
    "format": "hermes",
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
TEXT = f"<think>So?\n</think>\n\nWell: {CALL}\n{CALL}"


def made(*, splits: bool = True) -> TurnParts:
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | {"thinking": "think"}))
    params = SessionParams(SamplingParams(), 9, grammar=grammar, thinking="think")
    parts = turn_parts_of(params, splits_thoughts=splits)
    assert parts is not None
    return parts


def joined(parts: list[Content]) -> tuple[str, str, list[list[str]]]:
    """Return the thought, the text and the calls of all parts."""
    thought = text = ""
    calls = list[list[str]]()
    for part in parts:
        match part:
            case Thought():
                thought += part.text
            case Text():
                text += part.text
            case Call():
                if part.id:
                    assert (part.index, len(part.id)) == (len(calls), 9)
                    calls.append([part.name, ""])
                calls[part.index][1] += part.arguments
    return thought, text, calls


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_whatever_the_parts(cuts: list[int]):
    turn, places = made(), [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in pairwise(places)]
    parts = list[Content]()
    for number, piece in enumerate(pieces, 1):
        parts += turn.feed(piece, over=number == len(pieces))
    calls = [["f", '{"a": "</tool_call>"}']] * 2
    assert joined(parts) == ("So?", "Well: ", calls)


@pytest.mark.parametrize("known", ["<think>So", "<think>So?\n</think>\n\nWe"])
def test_a_text_gone_on_with(known: str):
    """What the client has is not said again, and says what the rest is."""
    turn = made()
    turn.feed(known, over=False)
    thought, content, calls = joined(turn.feed(TEXT.removeprefix(known), over=True))
    assert ("So" + thought, "We" * ("We" in known) + content, len(calls)) in (
        ("So?", "Well: ", 2),
        ("So", "Well: ", 2),
    )


def test_thoughts_may_stay():
    """With their marks, and no call begins in one."""
    text = f"<think>So {CALL}</think>\n\nWell"
    assert joined(made(splits=False).feed(text, over=True)) == (
        "",
        f"<think>So {CALL}</think>Well",
        [],
    )


def test_no_part_is_empty():
    """Where a model does not think there are no marks to put back."""
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | {"thinking": ""}))
    params = SessionParams(SamplingParams(), 9, grammar=grammar)
    turn = turn_parts_of(params, splits_thoughts=False)
    assert turn is not None
    assert [*turn.feed("Well", over=False), *turn.feed(": ", over=False)] == [
        Text("Well"),
        Text(": "),
    ]


def test_half_a_call_is_none_that_was_made():
    whole, half = made(), made()
    whole.feed(TEXT, over=True)
    half.feed(TEXT[:-20], over=True)
    assert (whole.called, half.called) == (True, False)


@pytest.mark.parametrize("choice", ["auto", "required", {"name": "f"}])
@pytest.mark.parametrize("size", range(len('<tool_call>\n{"name": "f"')))
def test_a_call_that_the_length_cuts_before_its_arguments_is_no_text(choice: object, size: int):
    """Neither in a stream nor whole, however far it came."""
    text = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | {"thinking": "", "choice": choice}))
    params = SessionParams(SamplingParams(), 9, grammar=text)
    begun = tuple(CALL[:size].encode())
    events = (Started(1, 1, (), params), Tokens(begun, 0), Finished("length", (104,), {}))
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        answer = ask(FakeDaemon(*events), "/v1/chat/completions", body)
        assert "tool" not in answer.body.decode().replace('"tool_calls"', "")
        assert b"<" not in answer.body


def test_a_text_that_the_model_ends_with_half_a_mark_has_it():
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | {"thinking": ""}))
    params = SessionParams(SamplingParams(), 9, grammar=grammar)
    events = (Started(1, 1, (), params), Tokens(tuple(b"1 <"), 0), Finished("stop", (104,), {}))
    answer = ask(FakeDaemon(*events), "/v1/chat/completions", {"messages": [USER]})
    assert answer.json()["choices"][0]["message"]["content"] == "1 <"


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("merged", "shown"), [((), None), (("system", "user"), "system, user")])
def test_the_header_names_the_roles_of_joined_messages(
    stream: bool, merged: tuple[str, ...], shown: str | None
):
    params = SessionParams(SamplingParams(), 9, merged=merged)
    events = (Started(1, 1, (), params), *EVENTS[1:])
    body = {"messages": [USER], "stream": stream}
    answer = ask(FakeDaemon(*events), "/v1/chat/completions", body)
    assert answer.headers.get("x-specmesh-merged") == shown
