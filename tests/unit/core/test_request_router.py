"""Which verifier has a request of the drafter's clients, and the line before a verifier's sessions: without a socket
or a clock."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from specmesh.core import admission
from specmesh.core import verifier_events as vev
from specmesh.core.admission import MAX_QUEUE
from specmesh.core.clients import Clients
from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.request_router import MAX_OPENING, RequestRouter
from specmesh.core.requests import ClientEvent, Failed, Request, RequestState
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.upstream import Upstream
from specmesh.errors import Busy, RemoteProtocolError
from specmesh.wire.messages import Welcome

REQUEST = Request(None, (1, 2, 3), SessionParams(SamplingParams(), 20))


class Wire:
    """A connection that takes requests while it is not full."""

    refusal = None

    def __init__(self, *, full: bool) -> None:
        self.asked: list[int] = []
        self.closed: list[int] = []
        self.full = full

    def ask(self, _: object, ref: int) -> Busy | None:
        if self.full:
            return Busy("full")
        self.asked.append(ref)
        return None

    note = tell = staticmethod(lambda *_: None)

    def close(self, session: int, ref: int = 0) -> None:
        self.closed.append(session)


def one_verifier() -> tuple[Wire, Upstream, RequestRouter]:
    wire = Wire(full=False)
    upstream = Upstream("a", (0, 1), wire, DrafterStats(0.0))
    upstream.welcomed(Welcome("a", "m", "f", "", 256, 4096, []), 0.0)
    return wire, upstream, RequestRouter([upstream], print, 0.0)


def test_a_wire_that_takes_nothing():
    """The next verifier gets the request; where none takes it the client hears so."""
    wires, heard = (Wire(full=True), Wire(full=False)), list[ClientEvent]()
    upstreams = [Upstream("ab"[place], (place, 2), wire, DrafterStats(0.0)) for place, wire in enumerate(wires)]
    for upstream in upstreams:
        upstream.welcomed(Welcome(upstream.address, "m", "f", "", 256, 4096, []), 0.0)
    router = RequestRouter(upstreams, print, 0.0)
    router.ask(REQUEST, SimpleNamespace(on_event=heard.append), 1.0)
    assert (wires[1].asked, heard) == ([1], [])
    wires[1].full = True
    router.ask(REQUEST, SimpleNamespace(on_event=heard.append), 1.0)
    [event] = heard
    assert isinstance(event, Failed)
    assert isinstance(event.error, Busy)


def test_a_verifier_is_asked_for_so_many_at_once():
    """What comes too fast it drops: the others wait here, the first first; too many are refused."""
    (wire, upstream, router), heard = one_verifier(), list[ClientEvent]()
    client = SimpleNamespace(on_event=heard.append)
    for number in range(MAX_OPENING + MAX_QUEUE + 1):
        router.ask(replace(REQUEST, known=number), client, 1.0)
    assert (len(wire.asked), len(router.in_state(RequestState.UNPLACED)), len(heard)) == (MAX_OPENING, MAX_QUEUE, 1)
    router.look(1.0)
    assert len(wire.asked) == MAX_OPENING
    upstream.cancel(router.requests[0], 1.0)
    router.look(1.0)
    assert len(wire.asked) == MAX_OPENING + 1
    assert [one.request.known for one in router.in_state(RequestState.OPENING)] == list(range(1, MAX_OPENING + 1))


def test_a_verifier_that_knows_no_recovery():
    """It opens a session with the whole text as its prompt: that is closed, and nothing of it reaches the client."""
    wire, upstream, router = one_verifier()
    heard = list[ClientEvent]()
    resumed = replace(REQUEST, id="x" * 36, generated=(4, 5), known=2)
    router.ask(resumed, SimpleNamespace(on_event=heard.append), 1.0)
    upstream.opened(7, wire.asked[0], 5, REQUEST.params, 1.0)
    assert (wire.closed, upstream.live, heard) == ([7], {}, [])
    assert isinstance(router.requests[0].error, RemoteProtocolError)


def test_who_is_refused_takes_no_text():
    """A request that names a running text finds too many waiting: its client goes on."""
    wire, upstream, router = one_verifier()
    first, second = list[ClientEvent](), list[ClientEvent]()
    router.ask(replace(REQUEST, id="x" * 36), SimpleNamespace(on_event=first.append), 1.0)
    upstream.opened(7, wire.asked[0], 3, REQUEST.params, 1.0)
    for _ in range(MAX_OPENING + MAX_QUEUE):
        router.ask(REQUEST, SimpleNamespace(on_event=print), 1.0)
    router.ask(replace(REQUEST, id="x" * 36), SimpleNamespace(on_event=second.append), 1.0)
    assert [type(event.error) for event in second] == [Busy]
    assert first == []
    assert router.requests[0].state is RequestState.OPEN


# --- the line before a verifier's sessions: its bounds


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
