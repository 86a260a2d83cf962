"""The line before the sessions: its bounds, and leaving it."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from specmesh.core import admission
from specmesh.core import verifier_events as vev
from specmesh.core.clients import Clients
from specmesh.core.requests import ClientEvent, Failed, Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.errors import Busy

LIMITS = TargetLimits(16, 256, frozenset())
PARAMS = SessionParams(SamplingParams(), 1)


class Queue:
    """Clients before some sessions, of which one runs at a time."""

    def __init__(self, sessions: int, most: int) -> None:
        self.clients = Clients(lambda _: Future().cancel, LIMITS, sessions, most, lambda _: None)
        self.now = 0.0

    def ask(self, ids: tuple[int, ...] | None = (1,), text: str = "text") -> None:
        """Ask for a session; raises why there is none."""
        heard: list[ClientEvent] = []
        self.clients.open(Request(text, ids, PARAMS), SimpleNamespace(on_event=heard.append), None, 0, "", self.now)
        for event in heard:
            assert isinstance(event, Failed)
            raise event.error

    def one_begins(self) -> None:
        """The session that ran has ended."""
        number = self.clients.waiting[0].number
        end = vev.SessionEnded(number - 1, number - 1, None, None, "stop", None, (), {}, 1.0)
        self.clients.ended(end)
        self.clients.began(vev.Began(number, number, None, (1,), PARAMS, "", 0.0, 0, 0, adopted=False), self.now)

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
        while len(queue.clients.waiting) < 4:
            queue.ask()
        assert queue.refusal().retry_after == left


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "MAX_BYTES", 100_000)
    queue, alone = Queue(1, 256), Queue(1, 256)
    for _ in range(3):
        queue.ask(ids=None, text="x" * 30_000)
    with pytest.raises(Busy, match="3 requests that wait take"):
        queue.ask(ids=None, text="x" * 30_000)
    queue.ask()
    alone.ask(ids=None, text="x" * 200_000)
    alone.refusal()
