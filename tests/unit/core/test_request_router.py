"""Which verifier has a request of the drafter's clients, and the line before a verifier's sessions: without a socket
or a clock."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from specmesh.core import admission
from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.client_session import ClientSession
from specmesh.core.clients import Clients
from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.peer_limits import RATES, Cost
from specmesh.core.request_router import RequestRouter
from specmesh.core.requests import ClientEvent, Failed, Finished, Reply, Request, RequestState, Started, Tokens
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.upstream import Upstream, UpstreamEffect
from specmesh.errors import Busy, RemoteProtocolError
from specmesh.wire import messages as m

REQUEST = Request(None, (1, 2, 3), SessionParams(SamplingParams(), 20))
NAMED = replace(REQUEST, id="x" * 36)
PARAMS = REQUEST.params
WELCOME = m.Welcome("v", "m", "f", "", 256, 4096, [0])
HERE, THERE = SimpleNamespace(name="here"), SimpleNamespace(name="there")  # clients, which the core passes on


def verifiers(addresses: str = "a") -> tuple[RequestRouter, list[Upstream]]:
    upstreams = [Upstream(one, (place, len(addresses)), DrafterStats(0.0)) for place, one in enumerate(addresses)]
    router = RequestRouter(upstreams, 0.0)
    for one in upstreams:
        assert one.welcomed(WELCOME, 0.0)
    assert did(router) == [ev.Noted("verifier_found", {"verifier": "v", "model": "m"})] * len(addresses)
    return router, upstreams


def did(router: RequestRouter) -> list[UpstreamEffect]:
    """What is to be done, by one verifier after the other and then by the router."""
    return [effect for one in router.upstreams for effect in one.take_effects()] + router.take_effects()


def opened(request: Request = REQUEST) -> tuple[RequestRouter, Upstream, ClientSession]:
    """A request that has session 7 at the only verifier, and two ids."""
    router, [upstream] = verifiers()
    router.ask(request, HERE, 1.0)
    assert did(router) == [m.Open(1, "", PARAMS.named(), [1, 2, 3], name=request.id, n_prompt=3)]
    upstream.opened(7, 1, 3, PARAMS)
    label = {"session": 7, "prompt_tokens": 3, "request": request.label}
    draft = ev.DraftFor(0, 0, 7, 256, 3, PARAMS.sampling, [0])
    assert did(router) == [draft, ev.Noted("session_opened", label)]
    live = upstream.live[7]
    for said, known in ((m.Sync(7, 0, 0, (1, 2, 3), 4), 0), (m.Truth(7, 3, 0, (4, 5), 4, 1), 3)):
        assert upstream.heard(said, 9) == ev.Heard(0, said)
        upstream.from_core(live, ev.Learned(said.ids, accepted=known // 3, sync=not known), 1.0)
    started = Started(7, 3, (1, 2, 3), live.pending and live.pending.request.params)
    assert did(router) == [Reply(HERE, started), Reply(HERE, Tokens((4, 5), 1))]
    return router, upstream, live


def test_a_request_to_its_end():
    """The end is told once all is learned that was sent before."""
    router, upstream, live = opened()
    done = m.Done(7, "length", 5, {"rounds": 1})
    upstream.done(done)
    assert did(router) == [ev.Aside(0, done), ev.Dropped(0)]
    live.bytes_sent += 5
    assert upstream.from_core(live, ev.Aside(0, done, 3, 0.5), 1.0)
    noted = ev.Noted("session_finished", {"session": 7, "reason": "length", "drafted": 3})
    report = {"rounds": 1, "bytes_sent": 5, "bytes_received": 18, "draft_ms": 500.0}
    assert did(router) == [m.Close(7), noted, Reply(HERE, Finished("length", (1, 2, 3), report))]
    router.look(1.0)
    assert (did(router), router.requests, upstream.sessions, upstream.own) == ([], [], {}, 0)


def test_a_request_is_cancelled():
    """Before it has a session and with one; a session that comes too late is left."""
    router, [upstream] = verifiers()
    router.ask(REQUEST, HERE, 1.0)
    did(router)
    router.cancel_of(HERE)
    upstream.opened(7, 1, 3, PARAMS)
    assert did(router) == [m.Close(0, 1), m.Close(7)]
    router, upstream, _ = opened()
    router.cancel_of(HERE)
    assert did(router) == [m.Close(7), Reply(HERE, Finished("cancelled", (1, 2, 3), {})), ev.Dropped(0)]


def test_a_text_is_taken_over():
    router, _, _ = opened(NAMED)
    router.ask(NAMED, THERE, 1.0)
    error = Reply(HERE, Failed(ANY))
    assert did(router) == [error, ev.Dropped(0), m.Open(2, "", PARAMS.named(), [1, 2, 3], name=NAMED.id, n_prompt=3)]


def test_a_verifier_is_lost():
    """Its text goes on once it is back; where it is not, the client hears so."""
    router, upstream, live = opened(replace(NAMED, reconnect_timeout=9.0))
    upstream.lost("silent", 2.0)
    lost, ended, dropped = did(router)
    assert (lost, dropped) == (ev.Noted("verifier_lost", {"reason": "silent"}, "warning"), ev.Dropped(0))
    assert upstream.from_core(live, ended, 2.0)
    assert did(router) == [ev.Noted("session_interrupted", {"session": 7, "generated": 2})]
    router.look(2.0)
    assert upstream.welcomed(WELCOME, 3.0)
    router.look(3.0)
    again = m.Open(2, "", PARAMS.named(), [1, 2, 3, 4, 5], name=NAMED.id, n_prompt=3)
    assert did(router) == [ev.Noted("verifier_found", {"verifier": "v", "model": "m"}), again]
    upstream.lost("silent", 4.0)
    for now in (4.0, 13.0):
        router.look(now)
    assert did(router) == [lost, Reply(HERE, Failed(ANY))]
    assert router.in_state(RequestState.GIVEN_UP) == router.requests != []


def test_who_refuses_or_takes_no_frame():
    """The next verifier gets the request; where none takes it the client hears so."""
    (router, (a, b)), busy = verifiers("ab"), Busy("full")
    router.ask(REQUEST, HERE, 1.0)
    for one in (a, b):
        assert one.take_effects() == [m.Open(1, "", PARAMS.named(), [1, 2, 3], n_prompt=3)]
        assert did(router) == []
        assert one.request_failed(1, busy)
        router.look(1.0)
    assert did(router) == [Reply(HERE, Failed(busy))]
    assert not a.request_failed(1, busy)


def fill(router: RequestRouter) -> int:
    """Ask, with `known` as a number, until a request is refused; return how many were not."""
    for asked in range(10_000):
        router.ask(replace(REQUEST, known=asked), HERE, 1.0)
        if heard := router.take_effects():
            break
    assert [type(reply.event.error) for reply in heard] == [Busy]
    return asked


def test_a_verifier_is_asked_for_so_many_at_once():
    """What comes too fast it drops: the others wait here, the first first; too many are refused."""
    router, [upstream] = verifiers()
    taken, ahead = fill(router), len(did(router))
    assert 0 < ahead < min(taken, RATES[Cost.OPENS].burst)
    assert len(router.in_state(RequestState.UNPLACED)) == taken - ahead
    router.look(1.0)
    assert did(router) == []
    upstream.cancel(router.requests[0])
    router.look(1.0)
    assert [type(effect) for effect in did(router)] == [m.Close, m.Open]
    assert [one.request.known for one in router.in_state(RequestState.OPENING)] == list(range(1, ahead + 1))


def test_a_verifier_that_knows_no_recovery():
    """It opens a session with the whole text as its prompt: that is closed, and nothing of it reaches the client."""
    router, [upstream] = verifiers()
    router.ask(replace(NAMED, generated=(4, 5), known=2), HERE, 1.0)
    assert [type(effect) for effect in did(router)] == [m.Open]
    upstream.opened(7, 1, 5, PARAMS)
    assert (did(router), upstream.live) == ([m.Close(7)], {})
    assert isinstance(router.requests[0].error, RemoteProtocolError)


def test_who_is_refused_takes_no_text():
    """A request that names a running text finds too many waiting: its client goes on."""
    router, _, _ = opened(NAMED)
    fill(router)
    did(router)
    router.ask(NAMED, THERE, 1.0)
    assert did(router) == [Reply(THERE, Failed(ANY))]
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
