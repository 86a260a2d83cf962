"""The drafter's request router: which verifier has a request, without a socket or a clock.

Whole requests are in tests/contract/daemons.
"""

from dataclasses import replace

import pytest

from specmesh.core import events as ev
from specmesh.core.drafter import upstream_events as uev
from specmesh.core.drafter.client_session import MAX_HELD
from specmesh.core.drafter.pending_request import DrafterRequest, RequestState
from specmesh.core.drafter.placement import PlacementEffect, PlacementRefused
from specmesh.core.drafter.request_router import RequestRouter
from specmesh.core.drafter.router_events import (
    AtUpstream,
    DrafterStops,
    PlacingDue,
    ReaderLeft,
    ReaderPaused,
    TextsWanted,
)
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.drafter.verifier_choice import MAX_OPENING, MAX_OWN_OPENING
from specmesh.core.request_frames import BODY_BYTES_PER_S, TEXT_IDS_PER_S
from specmesh.core.requests import NOBODY, Failed, Finished, Reply, Request, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.verifier.peer_limits import PeerLimits
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import (
    Busy,
    DaemonUnreachable,
    RemoteProtocolError,
    RequestError,
    Starting,
    WentAway,
)
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
KEY = ev.SessionKey(0, 0)
CLOSED = ev.DraftingEnded(0, 0.0)


class Drafters:
    """A router and its verifiers; the effects of both collect until they are taken."""

    def __init__(self, addresses="a"):
        self.upstreams = []
        for place, address in enumerate(addresses):
            self.upstreams.append(Upstream(address, place, DrafterStats(0.0), write_body))
        self.router = RequestRouter(self.upstreams, 0.0)
        self.effects = []

    def route(self, event, now=1.0):
        for effect in self.router.handle(event, now):
            self.effects.append(effect.effect if isinstance(effect, AtUpstream) else effect)

    def at(self, event, now=1.0, upstream=0):
        """Have a verifier take an event, and the router what becomes of requests."""
        for effect in self.upstreams[upstream].handle(event, now):
            if isinstance(effect, PlacementEffect):
                self.route(effect, now)
            else:
                self.effects.append(effect)

    def ask(self, request, client, now=1.0, tenant=()):
        self.route(TextsWanted(((request, client),), tenant), now)

    def cancel(self, client):
        self.route(ReaderLeft(client))

    def pause(self, client, *, paused):
        self.route(ReaderPaused(client, paused))

    def look(self, now):
        self.route(PlacingDue(), now)

    def take(self):
        effects = self.effects
        self.effects = []
        return effects

    def only(self, kind):
        return [effect for effect in self.take() if isinstance(effect, kind)]

    def open(self, number, ref, n_prompt):
        self.at(uev.SessionOpened(number, ref, n_prompt, PARAMS))

    def learned(self, ids, **fields):
        self.at(uev.FromDraftCore(KEY, ev.Learned(ids, **fields)))

    def close(self, now=1.0):
        """Let the core close what it was to close."""
        for end in self.only(ev.CloseSession):
            self.at(uev.FromDraftCore(end.key, CLOSED), now)


def routed(addresses="a"):
    """A router with verifiers that are there."""
    drafters = Drafters(addresses)
    for place in range(len(addresses)):
        drafters.at(WELCOME, 0.0, place)
    drafters.take()
    return drafters


def begun(request=REQUEST):
    """A router whose only verifier has a session for a request, with two ids."""
    drafters = routed()
    drafters.ask(request, HERE)
    drafters.open(SESSION, 1, 3)
    drafters.learned((1, 2, 3), sync=True)
    drafters.learned((4, 5), accepted=1)
    drafters.take()
    return drafters


def lost(request=NAMED):
    """The same after the verifier went away and came back."""
    drafters = begun(request)
    drafters.at(uev.VerifierLost("silent"), 2.0)
    drafters.close(2.0)
    drafters.look(2.0)
    drafters.at(WELCOME, 3.0)
    drafters.take()
    return drafters


def fill(drafters):
    """Ask, with `known` as a number, until a request is refused; how many were not."""
    asked = 0
    opens = []
    while True:
        drafters.ask(replace(REQUEST, known=asked), HERE)
        effects = drafters.take()
        opens += [effect for effect in effects if isinstance(effect, m.Open)]
        if any(isinstance(effect, Reply) for effect in effects):
            return asked, opens
        asked += 1


# --- effects of single events


def test_a_text_that_is_wanted_is_asked_for():
    drafters = routed()
    [effect] = drafters.router.handle(TextsWanted(((REQUEST, HERE),)), 1.0)
    assert (effect.upstream, effect.effect.ids) == (0, [1, 2, 3])


def test_a_refusal_has_the_next_verifier_asked():
    drafters = routed("ab")
    drafters.ask(REQUEST, HERE)
    refused = PlacementRefused(drafters.router.requests[0].number, 0, Busy("full"))
    assert drafters.router.handle(refused, 1.0) == []
    [effect] = drafters.router.handle(PlacingDue(), 1.0)
    assert (effect.upstream, type(effect.effect)) == (1, m.Open)


def test_clients_of_a_drafter_that_stops_get_the_reason():
    drafters = begun()
    error = WentAway("the drafter is stopping")
    assert drafters.router.handle(DrafterStops(error), 1.0) == [Reply(HERE, Failed(error))]


# --- clients that leave


def test_a_request_that_is_cancelled_is_withdrawn():
    drafters = routed()
    drafters.ask(REQUEST, HERE)
    drafters.cancel(HERE)
    assert drafters.only(m.Close) == [m.Close(0, 1)]


def test_a_session_that_comes_after_its_client_has_left_is_closed():
    drafters = routed()
    drafters.ask(REQUEST, HERE)
    drafters.cancel(HERE)
    drafters.take()
    drafters.open(SESSION, 1, 3)
    assert drafters.take() == [m.Close(SESSION)]


def test_a_client_that_cancels_gets_its_end():
    drafters = begun()
    drafters.cancel(HERE)
    assert drafters.only(Reply) == [Reply(HERE, Finished("cancelled", (1, 2, 3), {}))]


def test_nothing_is_left_of_a_request_that_has_ended():
    drafters = begun()
    drafters.at(m.Done(SESSION, "length", 5, {}))
    drafters.close()
    drafters.look(1.0)
    [upstream] = drafters.upstreams
    assert (drafters.router.requests, upstream.has(KEY), upstream.own) == ([], False, 0)


# --- texts by their names


def test_a_client_loses_its_text_to_another_that_names_it():
    drafters = begun(NAMED)
    drafters.ask(NAMED, THERE)
    [reply] = drafters.only(Reply)
    assert (reply.client, type(reply.event.error)) == (HERE, RequestError)


def test_a_client_that_is_refused_takes_no_text():
    drafters = begun(NAMED)
    fill(drafters)
    drafters.ask(NAMED, THERE)
    [reply] = drafters.only(Reply)
    assert reply.client == THERE


# --- clients that read nothing


def test_neither_a_text_of_another_client_nor_one_that_has_ended_is_paused():
    drafters = begun()
    drafters.pause(THERE, paused=True)
    assert drafters.take() == []
    drafters.pause(HERE, paused=True)
    drafters.cancel(HERE)
    drafters.take()
    drafters.pause(HERE, paused=False)
    assert drafters.take() == []


def test_a_session_that_is_opened_for_a_client_that_reads_nothing_is_paused():
    drafters = routed()
    drafters.ask(REQUEST, HERE)
    drafters.pause(HERE, paused=True)
    drafters.take()
    drafters.open(SESSION, 1, 3)
    assert drafters.only(m.Pause) == [m.Pause(SESSION)]


# --- a verifier that goes and comes


def mistaken():
    """A router whose verifier has taken a text to resume for a prompt."""
    drafters = lost()
    drafters.look(3.0)
    drafters.take()
    drafters.open(8, 2, 5)
    return drafters


def test_a_verifier_that_takes_a_text_for_a_prompt_is_left():
    drafters = mistaken()
    assert drafters.take() == [m.Close(8)]
    assert isinstance(drafters.router.requests[0].error, RemoteProtocolError)


def test_a_text_that_no_verifier_can_resume_fails_after_a_while():
    """It holds no client then, whose connection and frames would live on with it."""
    drafters = mistaken()
    drafters.look(4.0)
    drafters.look(13.0)
    [reply] = drafters.only(Reply)
    [request] = drafters.router.in_state(RequestState.GIVEN_UP)
    assert (type(reply.event), request.client, request.error) == (Failed, NOBODY, None)


# --- verifiers that refuse


def test_a_refusal_of_nothing_is_none():
    drafters = routed()
    error = uev.ErrorCame(1, Busy("full"))
    drafters.at(error)
    assert drafters.take() == [error], "it is about the connection"


# --- many requests


@pytest.fixture
def full():
    """A router that has refused a request, how many it has taken, and how many its verifier has."""
    drafters = routed()
    taken, opens = fill(drafters)
    return drafters, taken, len(opens)


def test_a_verifier_takes_as_many_as_it_is_asked_for(full):
    *_, asked = full
    limits = PeerLimits()
    for _ in range(asked + 1):
        limits.check_open(1.0)


def test_the_others_wait_here(full):
    drafters, taken, asked = full
    assert len(drafters.router.in_state(RequestState.UNPLACED)) == taken - asked > 0


def test_no_more_are_asked_for_while_none_has_begun(full):
    drafters, *_ = full
    drafters.look(1.0)
    assert drafters.take() == []


def test_the_first_to_wait_is_asked_for_next(full):
    drafters, _, asked = full
    drafters.at(uev.Withdraw(drafters.router.requests[0].number))
    drafters.look(1.0)
    opening: list[DrafterRequest] = drafters.router.in_state(RequestState.OPENING)
    assert [request.request.known for request in opening] == list(range(1, asked + 1))


# --- requests of several tenants


def placed(drafters):
    """The tenants whose requests a verifier was asked for, in order."""
    tenants = []
    for request in drafters.router.in_state(RequestState.OPENING):
        tenants += request.tenant
    return tenants


@pytest.fixture
def crowded():
    """A router with a hundred requests of alice and one of bob."""
    drafters = routed()
    for tenant in ("alice",) * 100 + ("bob",):
        drafters.ask(REQUEST, HERE, tenant=(tenant,))
    drafters.look(1.0)
    return drafters


def test_a_verifier_is_asked_for_few_requests_of_a_tenant(crowded):
    assert placed(crowded) == ["alice"] * MAX_OWN_OPENING + ["bob"]


def test_a_tenants_next_request_follows_one_that_has_left(crowded):
    crowded.at(uev.Withdraw(crowded.router.requests[0].number))
    crowded.look(1.0)
    assert placed(crowded).count("alice") == MAX_OWN_OPENING


def test_requests_of_tenants_are_placed_in_turn():
    drafters = routed()
    others = [f"other {number}" for number in range(MAX_OPENING)]
    for tenant in (*others, "alice", "alice", "alice", "bob"):
        drafters.ask(REQUEST, HERE, tenant=(tenant,))
    drafters.look(1.0)
    for request in drafters.router.requests[:2]:
        drafters.at(uev.Withdraw(request.number))
    drafters.look(1.0)
    assert placed(drafters)[-2:] == ["alice", "bob"]


# --- texts of more ids than an OPEN holds


LONG_TEXT = replace(NAMED, prompt_ids=(1,) * TEXT_IDS_PER_S)


def with_long_texts(requests, **changes):
    """A router with requests of long texts, and one of a short text."""
    drafters = routed()
    drafters.at(replace(WELCOME, takes_ids=True, **changes))
    for request in (*requests, REQUEST):
        drafters.ask(request, HERE)
    return drafters


def opens(drafters, now):
    """Return the number of ids that each OPEN of a turn has."""
    drafters.look(now)
    return [order.n_ids or len(order.ids) for order in drafters.only(m.Open)]


def test_long_texts_are_sent_one_a_second_and_none_waits_for_them():
    drafters = with_long_texts([LONG_TEXT] * 3)
    sent = [opens(drafters, now) for now in (1.0, 1.5, 2.0, 2.5, 3.0)]
    assert sent == [[TEXT_IDS_PER_S, 3], [], [TEXT_IDS_PER_S], [], [TEXT_IDS_PER_S]]


def test_a_verifier_that_takes_no_ids_before_an_open_gets_them_in_it():
    drafters = routed()
    drafters.ask(replace(NAMED, prompt_ids=(1,) * 20_000), HERE)
    [order] = drafters.take()
    assert len(order.ids) == 20_000


# --- requests whose body no OPEN holds


LONG_PROMPT = replace(REQUEST, prompt=BODY_BYTES_PER_S * "x", prompt_ids=None)


def test_long_bodies_are_sent_one_a_second_and_none_waits_for_them():
    drafters = with_long_texts([LONG_PROMPT] * 3, takes_body=True)
    sent = []
    for now in (1.0, 1.5, 2.1, 2.5, 3.2):
        drafters.look(now)
        sent.append([bool(order.n_body) for order in drafters.only(m.Open)])
    assert sent == [[True, False], [], [True], [], [True]]


def test_a_body_that_one_verifier_does_not_take_goes_to_another():
    """It is the one that would have had it otherwise."""
    drafters = routed("ab")
    drafters.at(replace(WELCOME, takes_body=True), upstream=1)
    drafters.ask(LONG_PROMPT, HERE)
    assert [len(upstream.opening) for upstream in drafters.upstreams] == [0, 1]


# --- verifiers that serve any model's name


@pytest.fixture
def two():
    """A router with two verifiers whose vocabularies are known."""
    drafters = routed("ab")
    drafters.at(replace(WELCOME, verifier="second"), upstream=1)
    return drafters


FOREIGN = "of another family"
COMPARED = uev.VocabularyCompared(
    Vocabulary((b"a",), frozenset()), foreign="", unusable="", ready=True
)


@pytest.mark.parametrize(
    ("foreign", "first"), [(("", ""), "v"), ((FOREIGN, ""), "second"), ((FOREIGN, FOREIGN), "v")]
)
def test_a_verifier_that_is_drafted_for_comes_first(two, foreign, first):
    for place, reason in enumerate(foreign):
        two.at(replace(COMPARED, foreign=reason), upstream=place)
    assert two.router.serving("", 9.0)[0].verifier == first


def test_a_vocabulary_that_is_being_fetched_is_waited_for():
    drafters = routed()
    with pytest.raises(Starting):
        drafters.router.serving("", 9.0)


def test_an_unusable_vocabulary_is_not_waited_for():
    drafters = routed()
    drafters.at(replace(COMPARED, vocabulary=None, unusable="no vocabulary"))
    with pytest.raises(DaemonUnreachable, match="no vocabulary"):
        drafters.router.serving("", 9.0)


# --- log-probabilities


def scored():
    """A router whose only verifier has a session for a request for log-probabilities."""
    drafters = routed()
    drafters.ask(replace(REQUEST, params=replace(PARAMS, logprobs=0)), HERE)
    drafters.open(SESSION, 1, 3)
    drafters.learned((1, 2, 3), sync=True)
    drafters.take()
    return drafters


def scores(base, *chosen):
    return m.Logprobs(session=SESSION, base=base, chosen=list(chosen))


def test_log_probabilities_wait_until_their_ids_are_learned():
    drafters = scored()
    drafters.at(uev.LogprobsCame(scores(3, -0.5), 99))
    drafters.at(uev.LogprobsCame(scores(4, -0.25), 99))
    drafters.learned((4,))
    drafters.learned((5,))
    first, second = drafters.only(Reply)
    assert first.event == Tokens((4,), 0, (Logprob(-0.5, (), ()),))
    assert second.event == Tokens((5,), 0, (Logprob(-0.25, (), ()),))


def test_log_probabilities_beyond_the_room_are_lost():
    """It is free again once ids are learned."""
    drafters = scored()
    frame = scores(3, -0.5)
    for effects in ([], [], [uev.FrameRejected("backlog")]):
        drafters.at(uev.LogprobsCame(frame, MAX_HELD // 2))
        assert drafters.take() == effects
    drafters.learned((4,))
    drafters.take()
    drafters.at(uev.LogprobsCame(scores(4, -0.5), MAX_HELD // 2))
    assert drafters.take() == []
