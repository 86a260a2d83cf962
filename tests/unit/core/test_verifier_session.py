"""One session at the verifier, event by event."""

import pytest
from verifier_sessions import END, GREEDY, PROMPT, crc, draft, only, session, step

from specmesh.core import events as ev
from specmesh.core.draft_buffer import NACK_INTERVAL
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import Arrivals
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.sampling.penalties import Penalties
from specmesh.core.sampling.proposal import Proposal
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.scheduling.kv_slots import Memory
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits


def test_what_is_in_memory_is_not_read_again():
    """A session begins behind what its sequence holds; of all but the last id, with a step."""
    limits, params = TargetLimits(64, 16, frozenset({END})), SessionParams(GREEDY, 10)
    for held, plan in ((0, ev.Prefill(0, (5, 6))), (1, ev.Prefill(1, (6,))), (2, ev.Verify(2, 7, ()))):
        made = VerifierSession(PROMPT, params, limits, StepCosts(), RollingAcceptance(), 0.0, held=held)
        assert made.plan(0.0) == plan
        assert made.cached == held
        assert made.memory == Memory([5, 6][:held], 2)


# --- plans


def test_prompt_goes_in_but_for_its_last_id():
    """Prefill asks for what memory lacks, up to the last id, which the first verification carries."""
    made = session(filled=False)
    assert made.plan(0.0) == ev.Prefill(0, (5, 6))
    made.handle(ev.Prefilled(1), 0.0)
    assert made.plan(0.0) == ev.Prefill(1, (6,))
    made.handle(ev.Prefilled(1), 0.0)
    assert made.plan(0.0) == ev.Verify(2, 7, ())


def test_drafts_in_hand_are_verified():
    """Drafts on the committed prefix, and drafts on those, come into the next step in order."""
    made = session()
    draft(made, 1, 2)
    draft(made, 3, 4, 8, after=(1, 2))
    assert made.lead == 5
    assert made.plan(0.0) == ev.Verify(2, 7, (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("limits", "drafts"),
    [({}, 4), ({"max_drafts": 2}, 2), ({"max_drafts": 0}, 0), ({"max_tokens": 3}, 2), ({"n_ctx": 5}, 1)],
    ids=str,
)
@pytest.mark.fault("E7.80")
def test_drafts_never_exceed_what_may_be_committed(limits, drafts):
    """A step takes no more drafts than the target allows, nor than there is room for beside the target's own token."""
    made = session(**limits)
    draft(made, 1, 2, 3, 4, 8)
    assert len(made.plan(1.0).drafts) == drafts


# --- steps


def test_correction():
    """The first draft that differs ends the round: truth goes out, memory is cut, the client sees it."""
    made = session()
    draft(made, 1, 2, 3, 4)
    effects = step(made, 1, 2, 9, 9, 9)
    truth = only(effects, ev.SendTruth)
    assert (truth.base, truth.crc, truth.ids) == (3, crc(*PROMPT), (1, 2, 9))
    assert only(effects, ev.Trim) == ev.Trim(5)
    emit = only(effects, ev.Emit)
    assert (emit.ids, emit.accepted, emit.drafts, emit.tested) == ((1, 2, 9), 2, (1, 2, 3, 4), 3)
    assert made.lead == 0
    assert made.plan(9.0) == ev.Verify(5, 9, ())


def test_bonus_and_what_was_drafted_ahead():
    """A fully accepted round commits the target's next token too; drafts beyond it that agree stay in hand."""
    made = session()
    draft(made, 1, 2, 3, 4, 8, 9)
    effects = step(made, 1, 2, 3, 4, 8)
    assert only(effects, ev.Emit).ids == (1, 2, 3, 4, 8)
    assert not [effect for effect in effects if isinstance(effect, ev.Trim)]
    assert made.plan(9.0) == ev.Verify(7, 8, (9,))


def test_stop_string_stops_inside_a_block():
    """What follows it in the step is not committed; its own ids are, and are told to the drafter."""
    made = session(stop=("12", "99"))
    draft(made, 3, 1, 2, 4)
    effects = step(made, 3, 1, 2, 4, 6, now=1.0)
    assert only(effects, ev.SendTruth).ids == (3, 1, 2)
    assert only(effects, ev.Emit) == ev.Emit((3, 1, 2), 3, (3, 1, 2, 4), 3)
    assert effects[-1] == ev.Finish("stop")
    assert only(effects, ev.Trim).length == len(PROMPT) + 2


def test_stop_string_over_two_steps():
    """It may begin in one step and end in another."""
    made = session(draft_n=0, stop=("12",))
    assert made.finished is None
    step(made, 1, now=1.0)
    assert made.finished is None
    step(made, 2, now=2.0)
    assert made.finished == "stop"


def test_end_id_stops_and_is_not_shown():
    """An end id ends the session, goes out as truth and is not given to the client; afterwards nothing follows."""
    made = session()
    draft(made, 1, END, 3)
    effects = step(made, 1, END, 3, 3, now=1.0)
    assert only(effects, ev.SendTruth).ids == (1, END)
    assert only(effects, ev.Emit).ids == (1,)
    assert effects[-1] == ev.Finish("stop") and made.finished == "stop"  # noqa: PT018
    assert made.handle(ev.Drafted(5, 0, (1,)), 1.0) == []
    assert made.handle(ev.Cancelled("again"), 1.0) == []


@pytest.mark.fault("E7.80")
def test_length_is_exact():
    """The session ends when max_tokens are out, or the context is full."""
    made = session(draft_n=0, max_tokens=2)
    assert made.finished is None
    step(made, 1)
    assert step(made, 2)[-1] == ev.Finish("length")
    made = session(draft_n=0, n_ctx=4)
    assert step(made, 1)[-1] == ev.Finish("length")
    assert made.counts.generated == 1


def test_cancel_ends_with_its_reason():
    """A cancelled session finishes with the reason given."""
    assert session().handle(ev.Cancelled("cancelled"), 0.0) == [ev.Finish("cancelled")]


# --- drafts that do not fit


@pytest.mark.parametrize(
    "event",
    [
        ev.Drafted(3, crc(*PROMPT) ^ 1, (1,)),
        ev.Drafted(2, crc(*PROMPT), (1,)),
        ev.Drafted(4, crc(*PROMPT), (1,)),
        ev.Drafted(2**32 - 1, 0, (1,)),
        ev.Drafted(3, crc(*PROMPT), (-1,)),
        ev.Drafted(3, crc(*PROMPT), (1, 16)),
        ev.Drafted(3, crc(*PROMPT), (1, 2**31 - 1)),
    ],
    ids=["wrong crc", "wrong base", "base ahead", "huge base", "negative id", "id over vocabulary", "largest id"],
)
@pytest.mark.fault("E1.10")
@pytest.mark.fault("E1.11")
def test_foreign_drafts_are_counted_and_dropped(event):
    """A draft for another prefix, or with impossible ids, changes nothing but a counter."""
    made = session()
    assert made.handle(event, 0.0) == []
    assert (made.lead, made.stale_drafts) == (0, 1)


@pytest.mark.fault("E2.21")
def test_orphans_are_asked_about_once_they_last():
    """Drafts that hang on nothing are those of a rejected chain, or follow a lost frame: if they go on, a NACK says
    where to continue, once per interval. A draft that fits ends it."""
    made = session()
    assert draft(made, 2, after=(1,), now=1.0) == []
    assert draft(made, 3, after=(1, 2), now=1.0 + NACK_INTERVAL / 2) == []
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + NACK_INTERVAL) == [ev.SendNack(3, crc(*PROMPT))]
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + 1.5 * NACK_INTERVAL) == []
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + 2.5 * NACK_INTERVAL) == [ev.SendNack(3, crc(*PROMPT))]
    draft(made, 1, 2, now=2.0)
    assert draft(made, 9, after=(3, 3), now=2.0 + NACK_INTERVAL) == []


# --- resync


def test_attach_sends_the_whole_prefix():
    """A drafter is told everything from position 0, and how many drafts are wanted."""
    assert session().attach(Arrivals()) == [ev.SendSync(0, 0, PROMPT, 4)]


def test_nack_is_answered_from_where_the_drafter_is():
    """A drafter whose prefix is right gets the rest; one whose prefix is wrong gets everything."""
    made = session()
    assert made.handle(ev.Nacked(2, crc(5, 6)), 1.0) == [ev.SendSync(2, crc(5, 6), (7,), 4)]
    assert made.handle(ev.Nacked(2, 99), 2.0) == [ev.SendSync(0, 0, PROMPT, 4)]
    assert made.handle(ev.Nacked(77, 99), 3.0) == [ev.SendSync(0, 0, PROMPT, 4)]


# --- penalties


@pytest.mark.parametrize("window", [-1, 2, 64])
def test_penalties_see_the_drafts_that_stand(window):
    """A row's choice is made after the drafts before it, as if each had been committed by a step of its own."""
    sampling = SamplingParams(penalties=Penalties(presence=20.0, window=window), logit_bias=((END, -90.0),))
    alone, drafted = session(sampling=sampling), session(sampling=sampling)
    said = [only(step(alone, 3), ev.Emit).ids[0] for _ in range(3)]
    assert said[0] == 3 != said[1]
    draft(drafted, *said[:2])
    assert only(step(drafted, 3, 3, 3), ev.Emit).ids == tuple(said)


# --- strategies


SURE = Proposal((1, 2), (65535, 65535))


def sampled(made, *ids, proposals, after=()):
    """Drafts with what they were sampled from."""
    prefix = (*made.prefix[0 : len(made.prefix)], *after)
    return made.handle(ev.Drafted(len(prefix), crc(*prefix), ids, proposals), 0.0)


@pytest.mark.parametrize(
    "proposals",
    [
        (SURE,),
        (SURE, SURE, SURE),
        (SURE, Proposal((3,), (1,))),
        (SURE, Proposal((2, 16), (1, 1))),
        (None, Proposal((), ())),
    ],
    ids=str,
)
def test_drafts_with_impossible_laws_are_dropped(proposals):
    """A law for each draft or none; the draft in it; known ids. The whole frame is dropped otherwise."""
    made = session(sampling=SamplingParams(1.0, strategy="probabilistic"))
    assert sampled(made, 1, 2, proposals=proposals) == []
    assert (made.lead, made.stale_drafts) == (0, 1)
    sampled(made, 1, 2, proposals=(SURE, None))
    assert made.lead == 2


@pytest.mark.parametrize(("strategy", "kept"), [("probabilistic", 0), ("deterministic", 1)])
def test_another_drafter_brings_laws_of_its_own(strategy, kept):
    """A draft of the one before was sampled from another law than the same draft of the new one."""
    made = session(sampling=SamplingParams(1.0, strategy=strategy))
    made.handle(ev.Drafted(3, crc(*PROMPT), (8,), (Proposal((8,), (1,)),)), 0.0)
    assert made.lead == 1
    made.attach(Arrivals())
    assert made.lead == kept


@pytest.mark.parametrize("strategy", ["deterministic", "threshold"])
def test_laws_are_nothing_to_other_strategies(strategy):
    """Sampled drafts count as any others."""
    made = session(sampling=SamplingParams(strategy=strategy))
    sampled(made, 1, 2, 3, proposals=(SURE, SURE, None))
    assert only(step(made, 1, 2, 4, 4), ev.Emit).ids == (1, 2, 4)


def test_greedy_strategy_never_drafts():
    """Whatever was asked for, nothing is drafted, and drafts that come all the same change nothing."""
    made = session(draft_n=4, sampling=SamplingParams(1.0, strategy="greedy"))
    assert (made.draft_n, made.may_draft, made.drafting) == (0, False, False)
    draft(made, 1, 2)
    assert made.plan(0.0) == ev.Verify(2, 7, ())
