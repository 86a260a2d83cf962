"""The line before the sessions: its bounds."""

from types import SimpleNamespace

import pytest

from specmesh.core import admission
from specmesh.core import verifier_events as vev
from specmesh.core.clients import Clients
from specmesh.core.requests import ClientEvent, Failed, Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.errors import Busy


def ask(clients: Clients, text: str) -> None:
    """Ask for a session; raises why there is none."""
    heard: list[ClientEvent] = []
    params = SessionParams(SamplingParams(), 1)
    clients.open(Request(text, None, params), SimpleNamespace(on_event=heard.append), None, 0, "")
    for event in heard:
        assert isinstance(event, Failed)
        raise event.error


def test_names_fill_no_queue():
    """Whoever asks for texts by their names only is answered by the core at once, and takes nobody's place."""
    told: list[vev.Opening] = []
    clients = Clients(lambda _: lambda: None, TargetLimits(16, 256, frozenset()), 1, 1, told.append)
    heard: list[ClientEvent] = []
    params = SessionParams(SamplingParams(), 1)
    for number in range(9):
        request = Request("", (999,), params, id=f"{number}", named_only=True)
        clients.open(request, SimpleNamespace(on_event=heard.append), b"mac", number, "")
    assert [opening.ids for opening in told] == [()] * 9, "nothing new begins with ids that nobody has checked"
    ask(clients, "first")
    ask(clients, "second")
    with pytest.raises(Busy):
        ask(clients, "third")
    assert heard == []
    clients.stop(Busy("ending"))
    assert len(heard) == 9


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "MAX_BYTES", 100_000)
    limits = TargetLimits(16, 256, frozenset())
    queue, alone = (Clients(lambda _: lambda: None, limits, 1, 256, lambda _: None) for _ in range(2))
    for _ in range(3):
        ask(queue, "x" * 30_000)
    with pytest.raises(Busy, match="3 requests that wait take"):
        ask(queue, "x" * 30_000)
    ask(queue, "short")
    ask(alone, "x" * 200_000)
    with pytest.raises(Busy):
        ask(alone, "short")
