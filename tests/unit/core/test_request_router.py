"""Which verifier has a request of the drafter's clients, decided without a socket or a clock."""

from types import SimpleNamespace

import pytest

from specmesh.core import events as ev
from specmesh.core.request_router import RETRY_S, RequestRouter
from specmesh.core.requests import ClientEvent, Failed, Request, VerifierInfo
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.snapshot import DraftTotals
from specmesh.core.upstream import NEXT_STATES, Upstream, UpstreamState
from specmesh.errors import Busy, DaemonUnreachable, LocalProtocolError, RequestError

PARAMS = SessionParams(SamplingParams(), 20)
PROMPT = (1, 2, 3)
NAME = "cmpl-" + 32 * "a"


class Wire:
    """What a verifier was asked for by ref, which requests were withdrawn, and how often the connection was renewed."""

    refusal = None

    def __init__(self, *, full: bool = False) -> None:
        self.asked: list[int] = []
        self.withdrawn: list[int] = []
        self.told: list[object] = []
        self.renewed, self.full = 0, full

    def ask(self, _: object, ref: int) -> Busy | None:
        if not self.full:
            self.asked.append(ref)
        return Busy("full") if self.full else None

    def close(self, session: int, drafted: int = 0, draft_seconds: float = 0.0, ref: int = 0) -> None:
        self.withdrawn.append(ref)

    def reconnect(self) -> None:
        self.renewed += 1

    def tell(self, event: object, _: float) -> None:
        self.told.append(event)

    def note(self, _: ev.Noted) -> None:
        pass


class Mesh:
    """A drafter's requests, and verifiers a, b, ... that are there."""

    def __init__(self, *wires: Wire) -> None:
        counts = SimpleNamespace(opened=0, resumed=0, totals=DraftTotals(), peer_lost=int, peer_came=int)
        self.wires, self.heard, self.client = wires, list[ClientEvent](), SimpleNamespace()
        self.client.on_event = self.heard.append
        self.upstreams = [
            Upstream("abc"[number], (number, len(wires)), wire, counts, lambda: 0.0, 0.0)
            for number, wire in enumerate(wires)
        ]
        for upstream in self.upstreams:
            self.there(upstream)
        self.router = RequestRouter(self.upstreams, wires[0].note, 0.0)

    def there(self, upstream: Upstream, model_hash: str = "f", now: float = 0.0) -> None:
        assert upstream.welcomed(VerifierInfo(upstream.address, "m", model_hash, "", 256, 4096, ()), now)

    def ask(self, **changes: object) -> None:
        self.router.ask(Request(None, PROMPT, PARAMS, **changes), self.client, 1.0)

    def error(self) -> Exception:
        [event] = self.heard
        assert isinstance(event, Failed)
        return event.error


@pytest.mark.parametrize("sign", ["refused", "cut", "silent"])
def test_a_connection_that_ends(sign: str):
    """Whatever shows it: its requests come back, and it is greeted over a fresh one."""
    mesh = Mesh(Wire())
    mesh.ask()
    [upstream] = mesh.upstreams
    signs = {"refused": None, "cut": False, "silent": False}
    upstream.look(2.0, **signs)
    assert (upstream.info is None, upstream.says_hello(2.0)) == (False, False)
    upstream.look(10.0, **(signs | {sign: "by its key" if sign == "refused" else True}))
    assert (upstream.info, mesh.wires[0].renewed, upstream.says_hello(10.0)) == (None, 1, True)
    mesh.router.look(10.0)
    assert isinstance(mesh.error(), DaemonUnreachable)


def test_who_was_asked_for_later_does_not_overtake():
    """A verifier without room for one request is not left with those that came after it."""
    mesh = Mesh(Wire())
    for _ in range(3):
        mesh.ask()
    [upstream], [wire] = mesh.upstreams, mesh.wires
    upstream.sessions.opened(9, 1, len(PROMPT), PARAMS, 1.0)
    upstream.refused("busy", Busy("full"), 2, 1.0)
    assert wire.withdrawn == [3]
    mesh.router.look(1.0)
    assert not mesh.heard
    assert [pending.number for pending in mesh.router.queue] == [2, 3]
    assert wire.asked == [1, 2, 3]


def test_a_wire_that_takes_nothing():
    """The next verifier gets the request; where none takes it, it waits for another of this drafter's to end, if one
    runs, else the client hears so."""
    mesh = Mesh(Wire(full=True), Wire())
    mesh.ask()
    assert mesh.wires[1].asked == [1]
    mesh.wires[1].full = True
    mesh.ask()
    assert [pending.number for pending in mesh.router.queue] == [2]
    mesh.upstreams[1].refused("request", RequestError("no"), 1, 1.0)
    mesh.router.look(1.0)
    assert [type(event.error) for event in mesh.heard if isinstance(event, Failed)] == [RequestError, Busy]


def test_an_interrupted_request_waits_for_its_verifier():
    """It is asked for again by name once the verifier is back with the same file, after a pause where that refuses."""
    mesh = Mesh(Wire())
    mesh.ask(id=NAME, reconnect_timeout=60.0)
    [upstream], [wire] = mesh.upstreams, mesh.wires
    upstream.lost("silent", 2.0)
    mesh.router.look(2.0)
    assert len(mesh.router.retries.waiting) == 1
    mesh.there(upstream, now=3.0)
    mesh.router.look(3.0)
    assert wire.asked == [1, 2]
    upstream.refused("busy", Busy("full"), 2, 4.0)
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


def in_state(state: UpstreamState) -> tuple[Mesh, Upstream]:
    """A verifier that has come so far."""
    mesh = Mesh(Wire())
    [upstream] = mesh.upstreams
    if state is UpstreamState.AWAY:
        upstream.lost("silent", 1.0)
    elif state is UpstreamState.GIVEN_UP:
        upstream.give_up(RequestError("no"), 1.0)
    assert upstream.state is state
    return mesh, upstream


@pytest.mark.parametrize("state", UpstreamState)
@pytest.mark.parametrize("to", UpstreamState)
def test_states_of_a_verifier_are_a_table(state: UpstreamState, to: UpstreamState):
    """What the table does not list is refused, and changes nothing; what is away stays so when it is lost again."""
    mesh, upstream = in_state(state)
    before = upstream.info, upstream.given_up, mesh.wires[0].renewed

    def act() -> None:
        match to:
            case UpstreamState.THERE:
                upstream.welcomed(VerifierInfo("another", "m", "", "", 256, 4096, ()), 2.0)
            case UpstreamState.AWAY:
                upstream.lost("stopped", 2.0)
            case UpstreamState.GIVEN_UP:
                upstream.give_up(RequestError("no"), 2.0)

    if to in NEXT_STATES[state]:
        act()
        assert upstream.state is to
    elif to is UpstreamState.AWAY:
        act()
        assert (upstream.info, upstream.given_up, mesh.wires[0].renewed) == before
    else:
        with pytest.raises(LocalProtocolError):
            act()
        assert (upstream.info, upstream.given_up, mesh.wires[0].renewed) == before
