"""Several answers to one request."""

import asyncio
import json

import pytest
from asgi_calls import Answer, FakeDaemon, call, post

from specmesh.api.requests import Cancel, Submit
from specmesh.core.requests import ClientEvent, EventSink, Failed, Finished, Request, Started, Tokens
from specmesh.errors import Busy

DONE = Finished("length", (104, 105), {"drafted": 5, "accepted": 3})


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
