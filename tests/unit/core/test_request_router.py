"""Which verifier has a request of the drafter's clients, decided without a socket or a clock."""

from types import SimpleNamespace

import pytest

from specmesh.core import events as ev
from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.request_router import RETRY_S, RequestRouter
from specmesh.core.requests import NEXT_STATES, ClientEvent, DrafterRequest, Failed, Request, RequestState, VerifierInfo
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.upstream import Upstream
from specmesh.errors import Busy, DaemonUnreachable, LocalProtocolError

PARAMS = SessionParams(SamplingParams(), 20)
PROMPT = (1, 2, 3)
NAME = "cmpl-" + 32 * "a"


class Wire:
    """What a verifier was asked for by ref, and which requests were withdrawn."""

    refusal = None

    def __init__(self, *, full: bool = False) -> None:
        self.asked: list[int] = []
        self.withdrawn: list[int] = []
        self.told: list[object] = []
        self.full = full

    def ask(self, _: object, ref: int) -> Busy | None:
        if not self.full:
            self.asked.append(ref)
        return Busy("full") if self.full else None

    def close(self, session: int, drafted: int = 0, draft_seconds: float = 0.0, ref: int = 0) -> None:
        self.withdrawn.append(ref)

    def tell(self, event: object, _: float) -> None:
        self.told.append(event)

    def note(self, _: ev.Noted) -> None:
        pass


class Mesh:
    """A drafter's requests, and verifiers a, b, ... that are there."""

    def __init__(self, *wires: Wire) -> None:
        stats = DrafterStats(0.0)
        self.wires, self.heard, self.client = wires, list[ClientEvent](), SimpleNamespace()
        self.client.on_event = self.heard.append
        self.upstreams = [
            Upstream("abc"[number], (number, len(wires)), wire, stats) for number, wire in enumerate(wires)
        ]
        for upstream in self.upstreams:
            self.there(upstream)
        self.router = RequestRouter(self.upstreams, wires[0].note, 0.0)

    def there(self, upstream: Upstream, model_hash: str = "f", now: float = 0.0) -> None:
        assert upstream.welcomed(VerifierInfo(upstream.address, "m", model_hash, "", 256, 4096, ()), now)

    def ask(self, now: float = 1.0, **changes: object) -> None:
        self.router.ask(Request(None, PROMPT, PARAMS, **changes), self.client, now)

    def error(self) -> Exception:
        [event] = self.heard
        assert isinstance(event, Failed)
        return event.error


def test_a_wire_that_takes_nothing():
    """The next verifier gets the request; where none takes it the client hears so."""
    mesh = Mesh(Wire(full=True), Wire())
    mesh.ask()
    assert mesh.wires[1].asked == [1]
    mesh.wires[1].full = True
    mesh.ask()
    assert isinstance(mesh.error(), Busy)


def test_an_interrupted_request_waits_for_its_verifier():
    """It is asked for again by name once the verifier is back with the same file, after a pause where that refuses."""
    mesh = Mesh(Wire())
    mesh.ask(id=NAME, reconnect_timeout=60.0)
    [upstream], [wire] = mesh.upstreams, mesh.wires
    upstream.lost("silent", 2.0)
    mesh.router.look(2.0)
    assert len(mesh.router.in_state(RequestState.WAITING)) == 1
    mesh.there(upstream, now=3.0)
    mesh.router.look(3.0)
    assert wire.asked == [1, 2]
    upstream.request_failed(2, Busy("full"))
    mesh.router.look(4.0)
    mesh.router.look(4.0 + RETRY_S / 2)
    assert wire.asked == [1, 2]
    mesh.router.look(4.0 + RETRY_S)
    assert wire.asked == [1, 2, 3]
    assert not mesh.heard
    upstream.lost("stopped", 5.0)
    mesh.router.look(5.0)
    mesh.router.look(70.0)
    assert isinstance(mesh.error(), DaemonUnreachable)


@pytest.mark.parametrize("state", RequestState)
@pytest.mark.parametrize("to", RequestState)
def test_states_of_a_request_are_a_table(state: RequestState, to: RequestState):
    """What the table does not list is refused, and changes nothing."""
    one = DrafterRequest(Request(None, PROMPT, PARAMS), SimpleNamespace(), state=state)
    if to in NEXT_STATES[state]:
        one.enter(to)
        assert one.state is to
    else:
        with pytest.raises(LocalProtocolError):
            one.enter(to)
        assert one.state is state
