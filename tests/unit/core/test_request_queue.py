"""The line before the sessions: its bounds, and leaving it."""

from types import SimpleNamespace

import pytest

from specmesh.core import admission
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
        self.clients = Clients(lambda _: lambda: None, LIMITS, sessions, most, lambda _: None)

    def ask(self, ids: tuple[int, ...] | None = (1,), text: str = "text") -> None:
        """Ask for a session; raises why there is none."""
        heard: list[ClientEvent] = []
        self.clients.open(Request(text, ids, PARAMS), SimpleNamespace(on_event=heard.append), None, 0, "")
        for event in heard:
            assert isinstance(event, Failed)
            raise event.error

    def refusal(self) -> Busy:
        with pytest.raises(Busy) as refusal:
            self.ask()
        return refusal.value


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
