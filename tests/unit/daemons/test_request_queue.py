"""The line before the sessions: its bounds, and leaving it."""

import itertools
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from specmesh.api.requests import ClientEvent, Failed, Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.daemons.drafter.request_router import AHEAD, RequestRouter
from specmesh.daemons.runtime import request_queue
from specmesh.daemons.runtime.prompts import ClientRequest
from specmesh.daemons.runtime.request_queue import RequestQueue
from specmesh.errors import Busy

LIMITS = TargetLimits(16, 256, frozenset())
PARAMS = SessionParams(SamplingParams(), 1)


class Queue:
    """A queue before some sessions, and who runs."""

    def __init__(self, sessions: int, most: int) -> None:
        prompts = SimpleNamespace(add=lambda _: Future())
        self.queue = RequestQueue(prompts, LIMITS, sessions, most)
        self.running: list[bytes | None] = []
        self.now, self._numbers = 0.0, itertools.count()
        self._waiting: list[int] = []

    def ask(self, ids: tuple[int, ...] | None = (1,), text: str = "text") -> None:
        asked = ClientRequest(next(self._numbers), Request(text, ids, PARAMS), SimpleNamespace(), None)
        self.queue.add(asked, self.running, self.now)
        self._waiting.append(asked.number)

    def one_begins(self) -> None:
        """The session that ran has ended."""
        self.running[:] = [None]
        self.queue.left(self._waiting.pop(0), self.now)

    def refusal(self) -> Busy:
        with pytest.raises(Busy) as refusal:
            self.ask()
        return refusal.value


def test_when_to_ask_again():
    """Who is refused is told when those who wait will have begun, as fast as they do; never more than a minute."""
    queue = Queue(1, 4)
    queue.now = 1000.0  # long without a request
    for _ in range(5):
        queue.ask()
    assert queue.refusal().retry_after == 1.0  # none has begun yet
    for pause, left in ((0.5, 2.0), (3.5, 8.0), (1000.0, 60.0)):
        queue.now += pause
        queue.one_begins()
        while len(queue.queue) < 4:
            queue.ask()
        assert queue.refusal().retry_after == left


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_queue, "MAX_BYTES", 100_000)
    queue, alone = Queue(1, 256), Queue(1, 256)
    for _ in range(3):
        queue.ask(ids=None, text="x" * 30_000)
    with pytest.raises(Busy, match="3 requests that wait take"):
        queue.ask(ids=None, text="x" * 30_000)
    queue.ask()
    alone.ask(ids=None, text="x" * 200_000)
    alone.refusal()


def test_a_drafters_queue():
    """What its verifier is not asked for yet waits by priority, then in the order it came; who is one too many is told
    when those will have been asked for."""
    asked, refusals = list[int](), list[ClientEvent]()
    sessions = SimpleNamespace(own=0, asked=asked, returned=(), ask=lambda one: asked.append(one.request.priority))
    router = RequestRouter([SimpleNamespace(address="a", welcome=True, target="", sessions=sessions)], 4)
    sink = SimpleNamespace(on_event=refusals.append)
    ask = lambda priority: router.ask(Request(None, (1,), PARAMS, priority=priority), sink, now)  # noqa: E731
    now = 1000.0
    for priority in (*range(100, 100 + AHEAD), 9, 7, 8, 7):
        ask(priority)
    assert asked == [*range(100, 100 + AHEAD)]
    for pause, left in ((0.0, 1.0), (0.5, 2.0), (3.5, 8.0)):
        now += pause
        if pause:
            asked.pop(0)
            router.reopen(now)
            ask(6)
        ask(1)
        refused = refusals.pop()
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, Busy)
        assert refused.error.retry_after == left
    assert asked[-2:] == [7, 6]
    assert not refusals
