"""Which verifier has a request of the drafter's clients, decided without a socket or a clock."""

from dataclasses import replace
from types import SimpleNamespace

from specmesh.core.admission import MAX_QUEUE
from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.request_router import AHEAD, RequestRouter
from specmesh.core.requests import ClientEvent, Failed, Request, RequestState
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.upstream import Upstream
from specmesh.errors import Busy
from specmesh.wire.messages import Welcome

REQUEST = Request(None, (1, 2, 3), SessionParams(SamplingParams(), 20))


class Wire:
    """A connection that takes requests while it is not full."""

    refusal = None

    def __init__(self, *, full: bool) -> None:
        self.asked: list[int] = []
        self.full = full

    def ask(self, _: object, ref: int) -> Busy | None:
        if self.full:
            return Busy("full")
        self.asked.append(ref)
        return None

    def note(self, _: object) -> None:
        pass

    def close(self, *_: object, **__: object) -> None:
        pass


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
    wire, heard = Wire(full=False), list[ClientEvent]()
    upstream = Upstream("a", (0, 1), wire, DrafterStats(0.0))
    upstream.welcomed(Welcome("a", "m", "f", "", 256, 4096, []), 0.0)
    router, client = RequestRouter([upstream], print, 0.0), SimpleNamespace(on_event=heard.append)
    for number in range(AHEAD + MAX_QUEUE + 1):
        router.ask(replace(REQUEST, known=number), client, 1.0)
    assert (len(wire.asked), len(router.in_state(RequestState.UNPLACED)), len(heard)) == (AHEAD, MAX_QUEUE, 1)
    router.look(1.0)
    assert len(wire.asked) == AHEAD
    upstream.cancel(router.requests[0], 1.0)
    router.look(1.0)
    assert len(wire.asked) == AHEAD + 1
    assert [one.request.known for one in router.in_state(RequestState.ASKED)] == list(range(1, AHEAD + 1))
