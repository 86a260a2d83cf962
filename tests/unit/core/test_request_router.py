"""Which verifier has a request of the drafter's clients, and the line before a verifier's sessions: without a socket
or a clock."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from specmesh.core import events as ev
from specmesh.core.drafter.request_router import MAX_OPENING, MAX_OWN_OPENING, RequestRouter
from specmesh.core.drafter.upstream import Upstream, UpstreamEffect
from specmesh.core.requests import (
    NOBODY,
    Failed,
    Finished,
    Reply,
    Request,
    RequestState,
    Started,
    Tokens,
)
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, Encode
from specmesh.core.verifier.peer_limits import PeerLimits
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import Busy, DaemonUnreachable, RemoteProtocolError, Starting
from specmesh.wire import messages as m

REQUEST = Request(None, (1, 2, 3), SessionParams(SamplingParams(), 20))
NAMED = replace(REQUEST, id="x" * 36)
PARAMS = REQUEST.params
OPEN = m.Open(1, "", PARAMS.named(), [1, 2, 3], n_prompt=3)
WELCOME, FOUND = (
    m.Welcome("v", "m", "f", "", 256, 4096, [0]),
    ev.Noted("verifier_found", {"verifier": "v", "model": "m"}),
)
BEGAN = vev.Began(1, 7, (1, 2), PARAMS, "", 0.0, 0, adopted=False)
HERE, THERE = "here", "there"  # clients, which the core passes on


def verifiers(addresses: str = "a") -> tuple[RequestRouter, list[Upstream]]:
    upstreams = [
        Upstream(one, (place, len(addresses)), DrafterStats(0.0))
        for place, one in enumerate(addresses)
    ]
    router = RequestRouter(upstreams, 0.0)
    assert [one.welcomed(WELCOME, 0.0) for one in upstreams] == [True] * len(addresses)
    assert did(router) == [FOUND] * len(addresses)
    return router, upstreams


def did(router: RequestRouter) -> list[UpstreamEffect]:
    """What is to be done, by one verifier after the other and then by the router."""
    return [
        effect for one in router.upstreams for effect in one.take_effects()
    ] + router.take_effects()


def opened(request: Request = REQUEST) -> tuple[RequestRouter, Upstream]:
    """A request that has session 7 at the only verifier, and two ids."""
    router, [upstream] = verifiers()
    router.ask(request, HERE, 1.0)
    assert did(router) == [replace(OPEN, name=request.id)]
    upstream.opened(7, 1, 3, PARAMS)
    noted = ev.Noted("session_opened", {"session": 7, "prompt_tokens": 3, "request": request.label})
    assert did(router) == [ev.DraftFor(0, 0, 7, 256, 3, PARAMS.sampling, [0]), noted]
    truth = m.Truth(7, 3, 0, (4, 5), 4, 1)
    assert upstream.heard(truth, 18) == ev.Heard(0, truth)
    for learned in (ev.Learned((1, 2, 3), sync=True), ev.Learned((4, 5), accepted=1)):
        upstream.from_core(upstream.live[7], learned, 1.0)
    assert did(router) == [
        Reply(HERE, Started(7, 3, (1, 2, 3), PARAMS)),
        Reply(HERE, Tokens((4, 5), 1)),
    ]
    return router, upstream


def fill(router: RequestRouter) -> int:
    """Ask, with `known` as a number, until a request is refused; return how many were not."""
    asked = -1
    while not (heard := router.take_effects()):
        router.ask(replace(REQUEST, known=(asked := asked + 1)), HERE, 1.0)
    assert [type(reply.event.error) for reply in heard] == [Busy]
    return asked


def test_a_request_to_its_end():
    """The end is told once all is learned that was sent before."""
    router, upstream = opened()
    done, live = m.Done(7, "length", 5, {"rounds": 1}), upstream.live[7]
    upstream.done(done)
    assert did(router) == [ev.FollowUp(0, done), ev.Dropped(0)]
    live.bytes_sent += 5
    assert upstream.from_core(live, ev.FollowUp(0, done, 3, 0.5), 1.0)
    noted = ev.Noted("session_finished", {"session": 7, "reason": "length", "draft_tokens": 3})
    report = {"rounds": 1, "bytes_sent": 5, "bytes_received": 18, "draft_ms": 500.0}
    assert did(router) == [m.Close(7), noted, Reply(HERE, Finished("length", (1, 2, 3), report))]
    router.look(1.0)
    assert (did(router), router.requests, upstream.sessions, upstream.own) == ([], [], {}, 0)


def test_a_request_is_cancelled_or_taken_over():
    """A session that comes too late is left. Who finds too many waiting takes no text from its client."""
    router, [upstream] = verifiers()
    router.ask(REQUEST, HERE, 1.0)
    did(router)
    router.cancel_of(HERE)
    upstream.opened(7, 1, 3, PARAMS)
    assert did(router) == [m.Close(0, 1), m.Close(7)]
    router, _ = opened()
    router.cancel_of(HERE)
    assert did(router) == [
        m.Close(7),
        Reply(HERE, Finished("cancelled", (1, 2, 3), {})),
        ev.Dropped(0),
    ]
    router, _ = opened(NAMED)
    router.ask(NAMED, THERE, 1.0)
    assert did(router) == [
        Reply(HERE, Failed(ANY)),
        ev.Dropped(0),
        replace(OPEN, ref=2, name=NAMED.id),
    ]
    router, _ = opened(NAMED)
    assert fill(router) == len(did(router) + router.in_state(RequestState.UNPLACED))
    router.ask(NAMED, THERE, 1.0)
    assert did(router) == [Reply(THERE, Failed(ANY))]


def test_a_text_waits_for_its_reader():
    """Its verifier hears so, also of a session that it is asked for anew; nobody else's."""
    router, upstream = opened(NAMED)
    router.pause(THERE, paused=True)
    assert did(router) == []
    router.pause(HERE, paused=True)
    assert did(router) == [m.Pause(7)]
    router.pause(HERE, paused=False)
    assert did(router) == [m.Pause(7, paused=False)]
    router.pause(HERE, paused=True)
    router.cancel_of(HERE)
    assert m.Close(7) in did(router)
    router.pause(HERE, paused=False)
    assert did(router) == []
    router, [upstream] = verifiers()
    router.ask(REQUEST, HERE, 1.0)
    router.pause(HERE, paused=True)
    did(router)
    upstream.opened(7, 1, 3, PARAMS)
    assert m.Pause(7) in did(router)


def test_a_verifier_is_lost():
    """Its text goes on once it is back; one that knows no recovery, and takes all of it for the prompt, is left."""
    router, upstream = opened(replace(NAMED, reconnect_timeout=9.0))
    upstream.lost("silent", 2.0)
    lost, ended, dropped = did(router)
    assert (lost, dropped) == (
        ev.Noted("verifier_lost", {"reason": "silent"}, "warning"),
        ev.Dropped(0),
    )
    assert upstream.from_core(upstream.sessions[0], ended, 2.0)
    assert did(router) == [ev.Noted("session_interrupted", {"session": 7, "generated": 2})]
    router.look(2.0)
    assert upstream.welcomed(WELCOME, 3.0)
    router.look(3.0)
    assert did(router) == [FOUND, replace(OPEN, ref=2, ids=[1, 2, 3, 4, 5], name=NAMED.id)]
    upstream.opened(8, 2, 5, PARAMS)
    assert isinstance(router.requests[0].error, RemoteProtocolError)
    router.look(4.0)
    router.look(13.0)
    assert did(router) == [m.Close(8), Reply(HERE, Failed(ANY))]
    [given_up] = router.in_state(RequestState.GIVEN_UP)
    assert router.requests == [given_up]
    assert (given_up.client, given_up.error) == (NOBODY, None), (
        "a connection and its frames would live on with it"
    )


def test_who_refuses_or_takes_no_frame():
    """The next verifier gets the request; where none takes it the client hears so."""
    (router, (a, b)), busy = verifiers("ab"), Busy("full")
    router.ask(REQUEST, HERE, 1.0)
    for one in (a, b):
        assert did(router) == [OPEN]
        assert one.request_failed(1, busy)
        router.look(1.0)
    assert did(router) == [Reply(HERE, Failed(busy))]
    assert not a.request_failed(1, busy)


def test_a_verifier_is_asked_for_so_many_at_once():
    """What comes too fast it drops: the others wait here, the first first; too many are refused."""
    router, [upstream] = verifiers()
    taken, ahead = fill(router), len(did(router))
    assert 0 < ahead < taken
    limits = PeerLimits()
    for _ in range(ahead + 1):
        limits.check_open(1.0)
    assert len(router.in_state(RequestState.UNPLACED)) == taken - ahead
    router.look(1.0)
    assert did(router) == []
    upstream.cancel(router.requests[0])
    router.look(1.0)
    assert [type(effect) for effect in did(router)] == [m.Close, m.Open]
    assert [one.request.known for one in router.in_state(RequestState.OPENING)] == list(
        range(1, ahead + 1)
    )


def placed(router: RequestRouter) -> list[object]:
    """Whose requests a verifier was asked for, in order."""
    opening = router.in_state(RequestState.OPENING)
    return [one.tenant[0] for one in opening]


def test_one_clients_requests_leave_room_for_anothers():
    """A verifier serves the ones that it was asked for in a line: few of them are one client's."""
    router, [upstream] = verifiers()
    for tenant in ("alice",) * 100 + ("bob",):
        router.ask(REQUEST, HERE, 1.0, (tenant,))
    router.look(1.0)
    assert placed(router).count("bob") == 1
    assert placed(router).count("alice") == MAX_OWN_OPENING
    upstream.cancel(router.requests[0])
    router.look(1.0)
    assert placed(router).count("alice") == MAX_OWN_OPENING


def test_clients_requests_are_placed_in_turn():
    router, [upstream] = verifiers()
    for number in range(MAX_OPENING):
        router.ask(REQUEST, HERE, 1.0, (f"other {number}",))
    for tenant in ("alice", "alice", "alice", "bob"):
        router.ask(REQUEST, HERE, 1.0, (tenant,))
    router.look(1.0)
    for one in router.requests[:2]:
        upstream.cancel(one)
    router.look(1.0)
    assert placed(router)[-2:] == ["alice", "bob"]


# --- a verifier's clients, and the line before its sessions


def clients(most: int = 1) -> Clients:
    return Clients(TargetLimits(16, 256, frozenset()), 1, most)


def test_a_client_to_its_end():
    made, text = clients(), replace(REQUEST, prompt_ids=None)
    [encode] = made.open(text, HERE, None, 0, "")
    assert isinstance(encode, Encode)
    [opening] = made.encoded(replace(encode.opening, ids=(1, 2), n_prompt=2))
    assert (opening.client, opening.ids, opening.n_prompt) == (1, (1, 2), 2)
    assert made.began(BEGAN) == [Reply(HERE, Started(7, 2, (1, 2), PARAMS))]
    emit = ev.Emit((4, 5, 6), 2, (4, 5))
    assert made.committed(vev.Committed(7, 1, emit, 1.0, 2)) == [Reply(HERE, Tokens((4, 5, 6), 2))]
    made.sessions[7].bytes_sent += 9
    report = {"rounds": 1, "bytes_sent": 9, "bytes_received": 0}
    end = vev.SessionEnded(7, 1, m.FinishReason.STOP, None, (1, 2), {"rounds": 1}, 2.0)
    assert made.ended(end) == [Reply(HERE, Finished("stop", (1, 2), report))]
    assert (made.requests, made.live) == ({}, 0)


def test_clients_that_leave_or_are_refused():
    made, error = clients(9), Busy("no")
    for client, owner in ((HERE, None), (THERE, b"mac"), (HERE, None), (THERE, None)):
        assert [type(effect) for effect in made.open(REQUEST, client, owner, 0, "")] == [
            vev.Opening
        ]
    made.abandon(b"mac")
    assert made.began(replace(BEGAN, client=2)) == []
    made.began(replace(BEGAN, client=3))
    assert made.cancel(lambda one: one.client is HERE) == [vev.ClientLeft(1), vev.ClientLeft(3)]
    assert made.stop(error) == [Reply(THERE, Failed(error)), vev.ClientLeft(4)]
    assert made.open(REQUEST, THERE, None, 0, "") == [Reply(THERE, Failed(error))]
    assert [made.refuse(1, error), made.end(error)] == [[], [Reply(HERE, Failed(error))]]


def ask(made: Clients, text: str) -> str:
    """Ask for a session; return why there is none."""
    [effect] = made.open(Request(text, None, PARAMS), HERE, None, 0, "")
    return "" if isinstance(effect, Encode) else str(effect.event.error)


def test_names_fill_no_queue():
    """Whoever asks for texts by their names only is answered by the core at once, and takes nobody's place."""
    made, refused = clients(), Reply(THERE, Failed(Busy("ending")))
    for number in range(9):
        request = Request("", (999,), PARAMS, id=f"{number}", named_only=True)
        [opening] = made.open(request, THERE, b"mac", number, "")
        assert opening.ids == (), "nothing new begins with ids that nobody has checked"
    assert [bool(ask(made, "text")) for _ in range(3)] == [False, False, True]
    assert made.stop(refused.event.error).count(refused) == 9


def test_memory_is_bounded():
    queue, alone, text = clients(256), clients(256), "x" * 2**24
    taken = (told := [ask(queue, text) for _ in range(100)]).count("")
    assert f"the {taken} requests that wait take" in told[-1]
    assert [
        bool(ask(*order)) for order in ((queue, ""), (alone, text * (taken + 1)), (alone, ""))
    ] == [0, 0, 1]


def test_what_is_drafted_for_comes_first():
    """Where a client names no model, or both have it; by the others it is served without drafts."""
    router, (first, second) = verifiers("ab")
    vocabulary = Vocabulary((b"a",), frozenset())
    for one in (first, second):
        one.speaks(vocabulary, ready=True)
    second.info = replace(WELCOME, verifier="second")
    assert router.serving("", 9.0)[0] is first.info
    first.foreign = "of another family"
    assert router.serving("", 9.0)[0] is second.info
    second.foreign = "of another family"
    assert router.serving("", 9.0)[0] is first.info


def test_an_unusable_vocabulary_is_said_to_be_so():
    """It is not waited for."""
    router, [only] = verifiers()
    with pytest.raises(Starting):
        router.serving("", 9.0)
    only.unusable = "no vocabulary"
    with pytest.raises(DaemonUnreachable, match="no vocabulary"):
        router.serving("", 9.0)
