"""The line before the sessions: order, bounds, shares, and leaving it."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from specmesh.api.requests import ClientEvent, Failed, Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams, TargetLimits
from specmesh.daemons.runtime import request_queue
from specmesh.daemons.runtime.prompts import Opening
from specmesh.daemons.runtime.request_queue import RequestQueue
from specmesh.errors import Busy, SpecmeshError

LIMITS = TargetLimits(16, 256, frozenset())
PARAMS = SessionParams(SamplingParams(), 1)


class Queue:
    """A queue before some sessions, and who runs."""

    def __init__(self, sessions: int, most: int) -> None:
        prompts = SimpleNamespace(add=lambda _: Future())
        self.queue = RequestQueue(prompts, LIMITS, sessions, most)
        self.running: list[bytes | None] = []
        self.now = 0.0
        self.heard: list[ClientEvent] = []

    def ask(
        self, owner: bytes | None = None, ids: tuple[int, ...] | None = (1,), priority: int = 0, text: str = "text"
    ) -> Opening:
        client = SimpleNamespace(on_event=self.heard.append)
        opening = Opening(Request(text, ids, PARAMS, priority=priority), client, owner)
        self.queue.add(opening, self.running, self.now)
        return opening

    def begun(self) -> list[Opening]:
        told = []
        while (found := self.queue.next(self.running, self.now)) is not None:
            told.append(found.opening)
            self.running.append(found.opening.owner)
        return told

    def refusal(self) -> Busy:
        with pytest.raises(Busy) as refusal:
            self.ask()
        return refusal.value

    def error(self) -> SpecmeshError:
        [failed] = self.heard
        assert isinstance(failed, Failed)
        return failed.error


def test_a_lower_priority_goes_first():
    """Whenever it came, and among equals in the order they came; one that has begun stays."""
    queue = Queue(1, 9)
    first, later, batch, soon = (queue.ask(priority=priority) for priority in (5, 2, 9, 2))
    assert queue.begun() == [later]
    person = queue.ask()
    for expected in (person, soon, first, batch):
        queue.running.pop()
        assert queue.begun() == [expected]


def test_when_to_ask_again():
    """Who is refused is told when those who wait will have begun, as fast as they do; never more than a minute."""
    queue = Queue(1, 4)
    queue.now = 1000.0  # long without a request
    for _ in range(5):
        queue.ask()
    assert queue.refusal().retry_after == 1.0  # none has begun yet
    for pause, left in ((0.5, 2.0), (3.5, 8.0), (1000.0, 60.0)):
        queue.now += pause
        queue.running.clear()
        assert len(queue.begun()) == 1
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


@pytest.mark.parametrize("field", ["role", "content", "name"])
def test_all_of_a_chat_takes_memory(field: str):
    message = ChatMessage(**({"role": "user", "content": ""} | {field: "x" * 30_000}))
    assert Request(None, None, PARAMS, messages=(message,) * 3).size > 90_000
