"""What a completion says, whole and streamed, from its beginning or from where it was; several at once."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from asgi_calls import DONE, EVENTS, Answer, FakeDaemon, call, post

from specmesh.api import answer as api_answer
from specmesh.api.body import parse_body
from specmesh.api.requests import Cancel, Submit
from specmesh.core.requests import ClientEvent, EventSink, Failed, Request, Started, Tokens
from specmesh.core.sampling.sampler import FORBIDDEN, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.errors import Busy

BODY = json.dumps({"prompt": "hi", "stream": True}).encode()


def test_stream_joins_what_came_together():
    """Streamed without rounds: ids that came together are one chunk, drafts are left out, [DONE] ends it."""
    *events, done = post(FakeDaemon(*EVENTS), stream=True, stream_options={"include_usage": True}).events()
    *chunks, last = (json.loads(event) for event in events)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "ABC", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert chunks[0]["specmesh"] == {"session": 7, "prompt_tokens": 2}
    assert chunks[1]["specmesh"] == {"token_ids": [65, 66, 67], "accepted": 1}
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_stream_with_rounds():
    *events, _ = post(FakeDaemon(*EVENTS), stream=True, rounds=True).events()
    first, second = (json.loads(event)["specmesh"] for event in events[1:3])
    assert first == {"accepted_text": "A", "token_ids": [65, 66], "accepted": 1}
    assert second == {"accepted_text": "", "token_ids": [67], "accepted": 0}


def test_a_stream_waits_for_its_reader():
    """Nothing is written where that would wait; what has come meanwhile is joined, and written once there is room."""
    reader, answer = SimpleNamespace(behind=True, on_writable=None), Answer()

    async def read() -> None:
        asking = asyncio.ensure_future(call(FakeDaemon(*EVENTS), "POST", "/v1/completions", [BODY], answer, reader))
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
        assert not isinstance(getattr(reader.on_writable, "__self__", None), api_answer.Answer)  # nor is it kept

    asyncio.run(read())
    assert [body["choices"][0]["text"] for body in answer.bodies()] == ["", "ABC", ""]


@pytest.mark.parametrize("stream", [False, True])
def test_characters_split_over_rounds_arrive_whole(stream: bool):
    """A character of several bytes is never sent in parts; half a one at the end is U+FFFD."""
    euro = tuple("€".encode())
    events = (Started(1, 2), *(Tokens((byte,), 0) for byte in (*euro, euro[0])), DONE)
    answer = post(FakeDaemon(*events), stream=stream, rounds=True)
    texts = [text for body in answer.bodies() if (text := body["choices"][0]["text"])]
    assert texts == (["€", "\ufffd"] if stream else ["€\ufffd"])


PARAMS = SessionParams(SamplingParams(0.5, seed=7), 40, 4, ("D",))
NAME = "cmpl-" + 32 * "a"


def test_resumable_stream_says_what_is_needed_to_go_on():
    """The prompt's ids and what the text is sampled with; and its id cannot be guessed."""
    started = Started(7, 2, (104, 105), PARAMS)
    answers = [post(FakeDaemon(started, DONE), stream=True, resumable=True) for _ in range(2)]
    first, again = (json.loads(answer.events()[0]) for answer in answers)
    plain, request = {"session": 7, "prompt_tokens": 2}, first["specmesh"].pop("request")
    assert parse_body({"prompt": "x", "stop": "D", "draft_n": 4} | request, chat=False).requests[0].params == PARAMS
    assert first["specmesh"] == plain | {"prompt_token_ids": [104, 105]}
    assert len(first["id"]) == len(NAME)
    assert first["id"] != again["id"]
    assert json.loads(post(FakeDaemon(started, DONE), stream=True).events()[0])["specmesh"] == plain


@pytest.mark.parametrize(("asked", "biases"), [({}, ()), ({"ignore_eos": True}, ((255, FORBIDDEN),))])
def test_an_end_that_is_ignored(asked: dict[str, object], biases: tuple[object, ...]):
    """The end ids are forbidden where that was asked for; so whoever goes on with the text is told."""
    daemon = FakeDaemon(*EVENTS)
    post(daemon, **asked)
    [order] = daemon.orders
    assert isinstance(order, Submit)
    assert order.request.params.sampling.logit_bias == biases


@pytest.mark.parametrize("stream", [False, True])
def test_resumed_text_goes_on_where_it_was(stream: bool):
    """What was kept back is made again of the ids that are known: half a character, half a stop string; usage counts
    all but the ids of the stop string, and the id stays."""
    euro = tuple("€".encode())
    daemon = FakeDaemon(Started(1, 1, (9,), PARAMS), Tokens((euro[2], 67, 68, 69), 0), DONE)
    resume = {"id": NAME, "model": "fake-model", "prompt_token_ids": [9], "token_ids": [65, *euro[:2]]}
    answer = post(daemon, stream=stream, stream_options={"include_usage": True}, resume=resume, stop=["D"])
    bodies = answer.bodies()
    assert "".join(choice["text"] for body in bodies for choice in body["choices"]) == "€C"
    assert {body["id"] for body in bodies} == {NAME}
    assert bodies[-1]["usage"]["completion_tokens"] == 5
    [order] = daemon.orders
    assert isinstance(order, Submit)
    assert (order.request.id, order.request.generated, order.request.known) == (NAME, (65, *euro[:2]), 3)


def test_text_asked_for_by_name_ends_with_its_own_stop_string():
    daemon = FakeDaemon(Started(1, 1, (9,), PARAMS), Tokens((65, 66, 67, 68), 0), DONE)
    answer = post(daemon, resume={"id": NAME})
    assert answer.json()["choices"][0]["text"] == "ABC"


def test_the_model_that_is_named():
    """The request is for what serves it, and the answer says which; without a name the one that served before goes on
    with a text; a model that nobody has is not answered by another."""
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
        asked = {order.client: order.request.choice for order in self.orders if isinstance(order, Submit)}
        return {asked[order.client] for order in self.orders if isinstance(order, Cancel)}


def text(number: int) -> tuple[ClientEvent, ...]:
    return Started(number, 2, (104, 105)), Tokens((65 + number,), 0), DONE


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
    daemon = Differing((Started(1, 2),), (Failed(Busy("full")),), text(2))
    answer = post(daemon, n=4, stream=stream)
    assert answer.status == 503
    assert daemon.left >= {0, 3}


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_fails_in_the_stream_ends_all(count: int):
    """A session that breaks after text was sent ends the stream with an error event and no [DONE]."""
    daemon = Differing((Started(1, 2),), (Started(2, 2),))

    async def failing() -> list[str]:
        answer = Answer()
        answer.on_part = lambda: submitted(count - 1).on_event(Failed(Busy("full")))
        body = json.dumps({"prompt": "hi", "n": count, "stream": True}).encode()
        return (await call(daemon, "POST", "/v1/completions", [body], answer)).events()

    def submitted(number: int) -> EventSink:
        return [order.client for order in daemon.orders if isinstance(order, Submit)][number]

    *_, last = asyncio.run(failing())
    error = json.loads(last)["error"]
    assert (error["message"], error["code"]) == ("full", "server_busy")
    assert daemon.left == set(range(count - 1))
