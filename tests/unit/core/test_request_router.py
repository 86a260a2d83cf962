"""Which verifier has a request of the drafter's clients, decided without a socket or a clock."""

from types import SimpleNamespace

import pytest

from specmesh.core import events as ev
from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.request_router import AHEAD, RETRY_S, RequestRouter
from specmesh.core.requests import NEXT_STATES, ClientEvent, DrafterRequest, Failed, Request, RequestState, VerifierInfo
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.upstream import Upstream
from specmesh.errors import Busy, DaemonUnreachable, LocalProtocolError, RequestError

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

    def __init__(self, *wires: Wire, max_queue: int = 256) -> None:
        stats = DrafterStats(0.0)
        self.wires, self.heard, self.client = wires, list[ClientEvent](), SimpleNamespace()
        self.client.on_event = self.heard.append
        self.upstreams = [
            Upstream("abc"[number], (number, len(wires)), wire, stats) for number, wire in enumerate(wires)
        ]
        for upstream in self.upstreams:
            self.there(upstream)
        self.router = RequestRouter(self.upstreams, wires[0].note, 0.0, max_queue)

    def there(self, upstream: Upstream, model_hash: str = "f", now: float = 0.0) -> None:
        assert upstream.welcomed(VerifierInfo(upstream.address, "m", model_hash, "", 256, 4096, ()), now)

    def ask(self, now: float = 1.0, **changes: object) -> None:
        self.router.ask(Request(None, PROMPT, PARAMS, **changes), self.client, now)

    def numbers(self, state: RequestState) -> list[int]:
        return [one.number for one in self.router.in_state(state)]

    def error(self) -> Exception:
        [event] = self.heard
        assert isinstance(event, Failed)
        return event.error


def test_who_was_asked_for_later_does_not_overtake():
    """A verifier without room for one request is not left with those that came after it."""
    mesh = Mesh(Wire())
    for _ in range(3):
        mesh.ask()
    [upstream], [wire] = mesh.upstreams, mesh.wires
    upstream.opened(9, 1, len(PROMPT), PARAMS, 1.0)
    upstream.request_failed(2, Busy("full"))
    assert wire.withdrawn == [3]
    mesh.router.look(1.0)
    assert not mesh.heard
    assert mesh.numbers(RequestState.QUEUED) == [2, 3]
    assert wire.asked == [1, 2, 3]


def test_a_wire_that_takes_nothing():
    """The next verifier gets the request; where none takes it, it waits for another of this drafter's to end, if one
    runs, else the client hears so."""
    mesh = Mesh(Wire(full=True), Wire())
    mesh.ask()
    assert mesh.wires[1].asked == [1]
    mesh.wires[1].full = True
    mesh.ask()
    assert mesh.numbers(RequestState.QUEUED) == [2]
    mesh.upstreams[1].request_failed(1, RequestError("no"))
    mesh.router.look(1.0)
    assert [type(event.error) for event in mesh.heard if isinstance(event, Failed)] == [RequestError, Busy]


def test_an_interrupted_request_waits_for_its_verifier():
    """It is asked for again by name once the verifier is back with the same file, after a pause where that refuses."""
    mesh = Mesh(Wire())
    mesh.ask(id=NAME, reconnect_timeout=60.0)
    [upstream], [wire] = mesh.upstreams, mesh.wires
    upstream.lost("silent", 2.0)
    mesh.router.look(2.0)
    assert mesh.numbers(RequestState.WAITING) == [1]
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


def test_requests_wait_in_order():
    """What no verifier is asked for yet waits by priority, then in the order it came; who is one too many is told when
    those will have been asked for."""
    mesh = Mesh(Wire(), max_queue=4)
    [upstream] = mesh.upstreams
    now, ref = 1000.0, 0
    for priority in (*range(100, 100 + AHEAD), 9, 7, 8, 7):
        mesh.ask(now, priority=priority)
    assert mesh.numbers(RequestState.QUEUED) == [AHEAD + more for more in (1, 2, 3, 4)]
    for pause, left in ((0.0, 1.0), (0.5, 2.0), (3.5, 8.0)):
        now += pause
        if pause:
            ref += 1
            upstream.opened(ref, ref, len(PROMPT), PARAMS, now)
            mesh.router.look(now)
            mesh.ask(now, priority=6)
        mesh.ask(now, priority=1)
        refused = mesh.heard.pop()
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, Busy)
        assert refused.error.retry_after == left
    assert [one.request.priority for one in upstream.asked.values()][-2:] == [7, 6]
    assert not mesh.heard


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
