"""Which verifier has a request of the drafter's clients, decided without a socket or a clock."""

from types import SimpleNamespace

import pytest

from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.request_router import RequestRouter
from specmesh.core.requests import NEXT_STATES, ClientEvent, DrafterRequest, Failed, Request, RequestState, VerifierInfo
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.upstream import Upstream
from specmesh.errors import Busy, LocalProtocolError

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


def test_a_wire_that_takes_nothing():
    """The next verifier gets the request; where none takes it the client hears so."""
    wires, heard = (Wire(full=True), Wire(full=False)), list[ClientEvent]()
    upstreams = [Upstream("ab"[place], (place, 2), wire, DrafterStats(0.0)) for place, wire in enumerate(wires)]
    for upstream in upstreams:
        upstream.welcomed(VerifierInfo(upstream.address, "m", "f", "", 256, 4096, ()), 0.0)
    router = RequestRouter(upstreams, print, 0.0)
    router.ask(REQUEST, SimpleNamespace(on_event=heard.append), 1.0)
    assert (wires[1].asked, heard) == ([1], [])
    wires[1].full = True
    router.ask(REQUEST, SimpleNamespace(on_event=heard.append), 1.0)
    [event] = heard
    assert isinstance(event, Failed)
    assert isinstance(event.error, Busy)


@pytest.mark.parametrize("state", RequestState)
@pytest.mark.parametrize("to", RequestState)
def test_states_of_a_request_are_a_table(state: RequestState, to: RequestState):
    """What the table does not list is refused, and changes nothing."""
    one = DrafterRequest(REQUEST, SimpleNamespace(), state=state)
    if to in NEXT_STATES[state]:
        one.enter(to)
        assert one.state is to
    else:
        with pytest.raises(LocalProtocolError):
            one.enter(to)
        assert one.state is state
