"""The drafter's request router: which verifier has a request, without a socket or a clock.

Whole requests are in tests/contract/daemons.
"""

from dataclasses import replace

import pytest

from specmesh.core import events as ev
from specmesh.core.drafter.client_session import MAX_HELD
from specmesh.core.drafter.pending_request import DrafterRequest, RequestState
from specmesh.core.drafter.request_router import MAX_OPENING, MAX_OWN_OPENING, RequestRouter
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.request_frames import BODY_BYTES_PER_S, TEXT_IDS_PER_S
from specmesh.core.requests import NOBODY, Failed, Finished, Reply, Request, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.verifier.peer_limits import PeerLimits
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import Busy, DaemonUnreachable, RemoteProtocolError, RequestError, Starting
from specmesh.wire import messages as m
from specmesh.wire.codec import write_body

PARAMS = SessionParams(SamplingParams(), 20)
REQUEST = Request(None, (1, 2, 3), PARAMS)
NAMED = replace(REQUEST, id="x" * 36, reconnect_timeout=9.0)
WELCOME = m.Welcome(
    verifier="v",
    model="m",
    model_hash="f",
    vocab_fingerprint="",
    n_vocab=256,
    n_ctx=4096,
    end_ids=[0],
)
HERE, THERE = "here", "there"  # clients, which the core passes on
SESSION = 7
CLOSED = ev.DraftingEnded(0, 0.0)


def routed(addresses="a"):
    """A router with verifiers that are there."""
    upstreams = []
    for place, address in enumerate(addresses):
        upstream = Upstream(address, place, DrafterStats(0.0), write_body)
        upstream.welcomed(WELCOME, 0.0)
        upstreams.append(upstream)
    router = RequestRouter(upstreams, 0.0)
    effects_of(router)
    return router, upstreams


def effects_of(router):
    """The effects of one verifier after the other, and then of the router."""
    effects = []
    for upstream in router.upstreams:
        effects += upstream.take_effects()
    return effects + router.take_effects()


def only(kind, router):
    return [effect for effect in effects_of(router) if isinstance(effect, kind)]


def learned(upstream, ids, **fields):
    session = upstream.running[SESSION]
    upstream.from_core(session, ev.Learned(ids, **fields), 1.0)


def begun(request=REQUEST):
    """A router whose only verifier has a session for a request, with two ids."""
    router, [upstream] = routed()
    router.ask(request, HERE, 1.0)
    upstream.opened(SESSION, 1, 3, PARAMS)
    learned(upstream, (1, 2, 3), sync=True)
    learned(upstream, (4, 5), accepted=1)
    effects_of(router)
    return router, upstream


def lost(request=NAMED):
    """The same after the verifier went away and came back."""
    router, upstream = begun(request)
    upstream.lost("silent", 2.0)
    [end] = only(ev.CloseSession, router)
    upstream.from_core(upstream.sessions[end.key], CLOSED, 2.0)
    router.look(2.0)
    upstream.welcomed(WELCOME, 3.0)
    effects_of(router)
    return router, upstream


def fill(router):
    """Ask, with `known` as a number, until a request is refused; how many were not."""
    asked = 0
    while True:
        router.ask(replace(REQUEST, known=asked), HERE, 1.0)
        if router.take_effects():
            return asked
        asked += 1


# --- clients that leave


def test_a_request_that_is_cancelled_is_withdrawn():
    router, _ = routed()
    router.ask(REQUEST, HERE, 1.0)
    router.cancel_of(HERE)
    assert only(m.Close, router) == [m.Close(0, 1)]


def test_a_session_that_comes_after_its_client_has_left_is_closed():
    router, [upstream] = routed()
    router.ask(REQUEST, HERE, 1.0)
    router.cancel_of(HERE)
    effects_of(router)
    upstream.opened(SESSION, 1, 3, PARAMS)
    assert effects_of(router) == [m.Close(SESSION)]


def test_a_client_that_cancels_gets_its_end():
    router, _ = begun()
    router.cancel_of(HERE)
    assert only(Reply, router) == [Reply(HERE, Finished("cancelled", (1, 2, 3), {}))]


def test_nothing_is_left_of_a_request_that_has_ended():
    router, upstream = begun()
    upstream.done(m.Done(SESSION, "length", 5, {}))
    [end] = only(ev.CloseSession, router)
    upstream.from_core(upstream.sessions[end.key], CLOSED, 1.0)
    router.look(1.0)
    assert (router.requests, upstream.sessions, upstream.own) == ([], {}, 0)


# --- texts by their names


def test_a_client_loses_its_text_to_another_that_names_it():
    router, _ = begun(NAMED)
    router.ask(NAMED, THERE, 1.0)
    [reply] = only(Reply, router)
    assert (reply.client, type(reply.event.error)) == (HERE, RequestError)


def test_a_client_that_is_refused_takes_no_text():
    router, _ = begun(NAMED)
    fill(router)
    effects_of(router)
    router.ask(NAMED, THERE, 1.0)
    [reply] = only(Reply, router)
    assert reply.client == THERE


# --- clients that read nothing


def test_neither_a_text_of_another_client_nor_one_that_has_ended_is_paused():
    router, _ = begun()
    router.pause(THERE, paused=True)
    assert effects_of(router) == []
    router.pause(HERE, paused=True)
    router.cancel_of(HERE)
    effects_of(router)
    router.pause(HERE, paused=False)
    assert effects_of(router) == []


def test_a_session_that_is_opened_for_a_client_that_reads_nothing_is_paused():
    router, [upstream] = routed()
    router.ask(REQUEST, HERE, 1.0)
    router.pause(HERE, paused=True)
    effects_of(router)
    upstream.opened(SESSION, 1, 3, PARAMS)
    assert only(m.Pause, router) == [m.Pause(SESSION)]


# --- a verifier that goes and comes


def mistaken():
    """A router whose verifier has taken a text to resume for a prompt."""
    router, upstream = lost()
    router.look(3.0)
    effects_of(router)
    upstream.opened(8, 2, 5, PARAMS)
    return router


def test_a_verifier_that_takes_a_text_for_a_prompt_is_left():
    router = mistaken()
    assert effects_of(router) == [m.Close(8)]
    assert isinstance(router.requests[0].error, RemoteProtocolError)


def test_a_text_that_no_verifier_can_resume_fails_after_a_while():
    """It holds no client then, whose connection and frames would live on with it."""
    router = mistaken()
    router.look(4.0)
    router.look(13.0)
    [reply] = only(Reply, router)
    [request] = router.in_state(RequestState.GIVEN_UP)
    assert (type(reply.event), request.client, request.error) == (Failed, NOBODY, None)


# --- verifiers that refuse


def test_a_refusal_of_nothing_is_none():
    _, [upstream] = routed()
    assert not upstream.request_failed(1, Busy("full"))


# --- many requests


@pytest.fixture
def full():
    """A router that has refused a request, how many it has taken, and how many its verifier has."""
    router, [upstream] = routed()
    taken = fill(router)
    return router, upstream, taken, len(only(m.Open, router))


def test_a_verifier_takes_as_many_as_it_is_asked_for(full):
    *_, asked = full
    limits = PeerLimits()
    for _ in range(asked + 1):
        limits.check_open(1.0)


def test_the_others_wait_here(full):
    router, _, taken, asked = full
    assert len(router.in_state(RequestState.UNPLACED)) == taken - asked > 0


def test_no_more_are_asked_for_while_none_has_begun(full):
    router, *_ = full
    router.look(1.0)
    assert effects_of(router) == []


def test_the_first_to_wait_is_asked_for_next(full):
    router, upstream, _, asked = full
    upstream.cancel(router.requests[0])
    router.look(1.0)
    opening: list[DrafterRequest] = router.in_state(RequestState.OPENING)
    assert [request.request.known for request in opening] == list(range(1, asked + 1))


# --- requests of several tenants


def placed(router):
    """The tenants whose requests a verifier was asked for, in order."""
    tenants = []
    for request in router.in_state(RequestState.OPENING):
        tenants += request.tenant
    return tenants


@pytest.fixture
def crowded():
    """A router with a hundred requests of alice and one of bob."""
    router, _ = routed()
    for tenant in ("alice",) * 100 + ("bob",):
        router.ask(REQUEST, HERE, 1.0, (tenant,))
    router.look(1.0)
    return router


def test_a_verifier_is_asked_for_few_requests_of_a_tenant(crowded):
    assert placed(crowded) == ["alice"] * MAX_OWN_OPENING + ["bob"]


def test_a_tenants_next_request_follows_one_that_has_left(crowded):
    [upstream] = crowded.upstreams
    upstream.cancel(crowded.requests[0])
    crowded.look(1.0)
    assert placed(crowded).count("alice") == MAX_OWN_OPENING


def test_requests_of_tenants_are_placed_in_turn():
    router, [upstream] = routed()
    others = [f"other {number}" for number in range(MAX_OPENING)]
    for tenant in (*others, "alice", "alice", "alice", "bob"):
        router.ask(REQUEST, HERE, 1.0, (tenant,))
    router.look(1.0)
    for request in router.requests[:2]:
        upstream.cancel(request)
    router.look(1.0)
    assert placed(router)[-2:] == ["alice", "bob"]


# --- texts of more ids than an OPEN holds


LONG_TEXT = replace(NAMED, prompt_ids=(1,) * TEXT_IDS_PER_S)


def with_long_texts(requests, **changes):
    """A router with requests of long texts, and one of a short text."""
    router, [upstream] = routed()
    upstream.info = replace(WELCOME, takes_ids=True, **changes)
    for request in (*requests, REQUEST):
        router.ask(request, HERE, 1.0)
    return router


def opens(router, now):
    """Return the number of ids that each OPEN of a turn has."""
    router.look(now)
    return [order.n_ids or len(order.ids) for order in only(m.Open, router)]


def test_long_texts_are_sent_one_a_second_and_none_waits_for_them():
    router = with_long_texts([LONG_TEXT] * 3)
    sent = [opens(router, now) for now in (1.0, 1.5, 2.0, 2.5, 3.0)]
    assert sent == [[TEXT_IDS_PER_S, 3], [], [TEXT_IDS_PER_S], [], [TEXT_IDS_PER_S]]


def test_a_verifier_that_takes_no_ids_before_an_open_gets_them_in_it():
    router, _ = routed()
    router.ask(replace(NAMED, prompt_ids=(1,) * 20_000), HERE, 1.0)
    [order] = effects_of(router)
    assert len(order.ids) == 20_000


# --- requests whose body no OPEN holds


LONG_PROMPT = replace(REQUEST, prompt=BODY_BYTES_PER_S * "x", prompt_ids=None)


def test_long_bodies_are_sent_one_a_second_and_none_waits_for_them():
    router = with_long_texts([LONG_PROMPT] * 3, takes_body=True)
    sent = []
    for now in (1.0, 1.5, 2.1, 2.5, 3.2):
        router.look(now)
        sent.append([bool(order.n_body) for order in only(m.Open, router)])
    assert sent == [[True, False], [], [True], [], [True]]


def test_a_body_that_one_verifier_does_not_take_goes_to_another():
    """It is the one that would have had it otherwise."""
    router, [first, second] = routed("ab")
    first.info = WELCOME
    second.info = replace(WELCOME, takes_body=True)
    router.ask(LONG_PROMPT, HERE, 1.0)
    assert [len(upstream.opening) for upstream in (first, second)] == [0, 1]


# --- verifiers that serve any model's name


@pytest.fixture
def two():
    """A router with two verifiers whose vocabularies are known."""
    router, upstreams = routed("ab")
    for upstream in upstreams:
        upstream.speaks(Vocabulary((b"a",), frozenset()), ready=True)
    upstreams[1].info = replace(WELCOME, verifier="second")
    return router


FOREIGN = "of another family"


@pytest.mark.parametrize(
    ("foreign", "first"), [(("", ""), "v"), ((FOREIGN, ""), "second"), ((FOREIGN, FOREIGN), "v")]
)
def test_a_verifier_that_is_drafted_for_comes_first(two, foreign, first):
    for upstream, reason in zip(two.upstreams, foreign, strict=True):
        upstream.compared(foreign=reason, unusable="")
    assert two.serving("", 9.0)[0].verifier == first


def test_a_vocabulary_that_is_being_fetched_is_waited_for():
    router, _ = routed()
    with pytest.raises(Starting):
        router.serving("", 9.0)


def test_an_unusable_vocabulary_is_not_waited_for():
    router, [upstream] = routed()
    upstream.compared(foreign="", unusable="no vocabulary")
    with pytest.raises(DaemonUnreachable, match="no vocabulary"):
        router.serving("", 9.0)


# --- log-probabilities


def scored():
    """A router whose only verifier has a session for a request for log-probabilities."""
    router, [upstream] = routed()
    router.ask(replace(REQUEST, params=replace(PARAMS, logprobs=0)), HERE, 1.0)
    upstream.opened(SESSION, 1, 3, PARAMS)
    learned(upstream, (1, 2, 3), sync=True)
    effects_of(router)
    return router, upstream


def scores(base, *chosen):
    return m.Logprobs(session=SESSION, base=base, chosen=list(chosen))


def test_log_probabilities_wait_until_their_ids_are_learned():
    router, upstream = scored()
    upstream.logprobs(scores(3, -0.5), 99)
    upstream.logprobs(scores(4, -0.25), 99)
    learned(upstream, (4,))
    learned(upstream, (5,))
    first, second = only(Reply, router)
    assert first.event == Tokens((4,), 0, (Logprob(-0.5, (), ()),))
    assert second.event == Tokens((5,), 0, (Logprob(-0.25, (), ()),))


def test_log_probabilities_beyond_the_room_are_lost():
    """It is free again once ids are learned."""
    _, upstream = scored()
    frame = scores(3, -0.5)
    for room in (True, True, False):
        assert upstream.logprobs(frame, MAX_HELD // 2) == room
    learned(upstream, (4,))
    assert upstream.logprobs(scores(4, -0.5), MAX_HELD // 2)
