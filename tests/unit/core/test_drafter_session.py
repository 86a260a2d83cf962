"""One session at the drafter, event by event."""

from math import ceil, log

import pytest
from drafter_sessions import PROMPT, crc, drafting, predict, session, told
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core import events as ev
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_session import (
    COALESCE,
    FIRST_CHUNK,
    FOLLOW,
    LEAST_USE,
    MAX_CREDIT,
    NACK_INTERVAL,
    SHADOW,
    DrafterSession,
)
from specmesh.core.sampling.proposal import Proposal

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)


# --- drafting


def test_first_guess_follows_the_prompt():
    """Everything known is taken in with the first guess; then one id per guess."""
    made = session()
    assert made.plan(0.0) == ev.Predict(PROMPT, guess=True)
    _, effects = predict(made, 1)
    assert effects == [ev.SendDraft(3, crc(*PROMPT), (1,))]
    assert made.plan(0.0) == ev.Predict((1,), guess=True)
    _, effects = predict(made, 2)
    assert effects == [ev.SendDraft(4, crc(*PROMPT, 1), (2,))]
    assert made.chain == (1, 2)
    assert made.drafted == 2


def test_long_prompt_goes_in_by_batches():
    """A prompt longer than the batch is taken in by stretches; only the last comes with a guess."""
    made = session(n_batch=2)
    assert predict(made, 1)[0] == ev.Predict((5, 6), guess=False)
    assert predict(made, 1)[0] == ev.Predict((7,), guess=True)


def test_nothing_is_drafted_before_the_truth_is_known():
    """Without a SYNC there is nothing to build on."""
    assert session(synced=False).plan(0.0) is None


def test_draft_n_0_takes_in_the_truth_and_drafts_nothing():
    """Asked for nothing any more, and not to shadow, a drafter takes in so many ids at once, all but the last, with
    which it would start; what is left is taken in with the first guess."""
    made, known, taken = session(draft_n=2, shadows=False, n_ctx=1000, n_batch=100), PROMPT, []
    predict(made, 1)
    for token in range(8 * FOLLOW):
        made.handle(told(token % 16, after=known, draft_n=0), 0.0)
        known = (*known, token % 16)
        while made.plan(0.0) is not None:
            taken.append(len(predict(made, None, took=0.0)[0].ids))
    assert taken[:2] == [FIRST_CHUNK, 2 * FIRST_CHUNK]
    assert set(taken[2:]) == {FOLLOW}
    assert made.plan_shadow() is None
    made.handle(told(1, after=known, draft_n=2), 0.0)
    assert made.plan(0.0) == ev.Predict((*known[len(PROMPT) + sum(taken) :], 1), guess=True)


def test_nothing_is_taken_in_before_anything_is_to_be_guessed():
    """Not even a long prompt, until drafts are asked for, or enough of the text is there to shadow."""
    known = tuple(range(10)) * 20
    idle, asked, shadowing = (
        session(synced=False, draft_n=0, n_ctx=1000, n_batch=1000, shadows=shadows) for shadows in (False, False, True)
    )
    for made in (idle, asked, shadowing):
        made.handle(ev.Told(0, 0, known, 0, sync=True), 0.0)
        made.handle(told(*range(SHADOW - 1), after=known, draft_n=0), 0.0)
        assert made.plan(0.0) is made.plan_shadow() is None
    after = (*known, *range(SHADOW - 1))
    for made, draft_n in ((idle, 0), (asked, 1), (shadowing, 0)):
        made.handle(told(1, after=after, draft_n=draft_n), 0.0)
    assert idle.plan(0.0) is idle.plan_shadow() is None
    for made in (asked, shadowing):
        plan = made.plan(0.0)
        assert plan is not None
        assert plan.ids == known[: len(plan.ids)]


@pytest.mark.parametrize(("draft_n", "round_trip"), [(1, 0.0), (4, 0.0), (4, 0.02), (4, 10.0), (65535, 10.0)])
def test_credit_bounds_the_chain(draft_n, round_trip):
    """The chain stops at its credit: enough for two steps, and for a round trip what has a chance to stand."""
    made = session(draft_n=draft_n)
    while (plan := made.plan(round_trip)) is not None:
        made.handle(ev.Predicted(len(plan.ids), 1, -0.01), 0.0)
    chain = len(made.chain)
    worthwhile = ceil(log(LEAST_USE) / log(RollingAcceptance(prior=0.75).pooled()))
    assert min(2 * draft_n, MAX_CREDIT) <= chain <= min(max(2 * draft_n + 1, worthwhile), MAX_CREDIT)


def test_fast_drafts_share_a_frame():
    """Drafts faster than COALESCE go out together: as many as are wanted, or what is there after that time."""
    made = session(draft_n=3)
    sent = [predict(made, token, now=token * 1e-5, took=1e-5)[1] for token in (1, 2, 3)]
    assert sent == [[], [], [ev.SendDraft(3, crc(*PROMPT), (1, 2, 3))]]
    assert predict(made, 4, now=1e-3, took=1e-5)[1] == []
    assert predict(made, 5, now=1e-3 + COALESCE, took=1e-5)[1] == [ev.SendDraft(6, crc(*PROMPT, 1, 2, 3), (4, 5))]
    assert predict(made, 6, now=1.0, took=1e-5)[1] == []
    assert made.flush() == [ev.SendDraft(8, crc(*PROMPT, 1, 2, 3, 4, 5), (6,))]
    assert made.flush() == []


def test_a_correction_restarts_the_wait_for_company():
    """What was held back and cut does not hurry what is drafted after it."""
    made = session(draft_n=3)
    assert predict(made, 1, now=0.0, took=1e-5)[1] == []
    made.handle(told(9, after=PROMPT), 0.5)
    assert predict(made, 4, now=0.5, took=1e-5)[1] == []


def test_no_guess_stops_until_the_truth_moves():
    """A model without a guess is not asked again for the same prefix; what was held back goes out."""
    made = session()
    predict(made, 1, took=1e-5)
    _, effects = predict(made, None)
    assert effects == [ev.SendDraft(3, crc(*PROMPT), (1,))]
    assert made.plan(0.0) is None
    made.handle(told(2, after=PROMPT), 0.0)
    assert made.plan(0.0) is not None


def test_full_context_stops_drafting():
    """Nothing is drafted beyond the model's context, and a truth longer than it is only followed."""
    made = drafting(1, n_ctx=4)
    assert made.plan(0.0) is None
    made.handle(told(1, 2, 3, after=PROMPT), 0.0)
    assert made.n_truth == 6
    assert made.plan(0.0) is None


# --- the truth


def test_accepted_drafts_stay():
    """Truth that confirms the chain cuts nothing; the rest of the chain goes on."""
    made = drafting(1, 2, 3)
    assert made.handle(told(1, 2, after=PROMPT), 0.0) == [ev.Learned((1, 2), 1)]
    assert (made.n_truth, made.chain) == (5, (3,))


def test_correction_cuts_chain_and_memory():
    """Truth that differs replaces the chain from there and cuts the model's memory to what agrees."""
    made = drafting(1, 2, 3)
    assert made.handle(told(1, 9, after=PROMPT), 0.0) == [ev.Trim(4), ev.Learned((1, 9), 1)]
    assert (made.n_truth, made.chain) == (5, ())
    assert made.plan(0.0) == ev.Predict((9,), guess=True)
    assert predict(made, 4)[1] == [ev.SendDraft(5, crc(*PROMPT, 1, 9), (4,))]


def test_memory_that_cannot_be_cut_is_filled_again():
    """A model that holds less than asked after a trim is given the rest again."""
    made = drafting(1, 2)
    made.handle(told(9, after=PROMPT), 0.0)
    made.relocated(0)
    assert made.plan(0.0) == ev.Predict((*PROMPT, 9), guess=True)


def test_missed_truth_is_asked_for():
    """Truth that follows something unknown is not believed: a NACK says what is held, once per interval."""
    made = drafting(1)
    lost = told(4, after=(*PROMPT, 8, 8))
    assert made.handle(lost, 1.0) == [ev.SendNack(3, crc(*PROMPT))]
    assert made.handle(lost, 1.0 + NACK_INTERVAL / 2) == []
    assert made.handle(lost, 1.0 + NACK_INTERVAL * 1.5) == [ev.SendNack(3, crc(*PROMPT))]
    assert made.n_truth == 3
    assert made.handle(told(8, 8, 4, after=PROMPT, sync=True), 2.0)[-1] == ev.Learned((8, 8, 4), 0, sync=True)


def test_truth_that_follows_the_own_chain_is_believed():
    """A lost truth that would have confirmed the chain is not missed: the next one's CRC covers it."""
    made = drafting(1, 2, 3)
    assert made.handle(told(3, after=(*PROMPT, 1, 2)), 0.0) == [ev.Learned((1, 2, 3), 2)]
    assert made.n_truth == 6


def test_old_and_doubled_truth_changes_nothing():
    """Truth already known is no news."""
    made = drafting(1, 2)
    made.handle(told(1, 2, 3, after=PROMPT), 0.0)
    assert made.handle(told(1, after=PROMPT), 0.0) == []
    assert made.handle(told(1, 2, 3, after=PROMPT), 0.0) == []
    assert made.n_truth == 6


def test_contradicting_truths_are_resolved_by_sync():
    """Of two truths about one position one was damaged: the drafter asks, and a SYNC replaces what it believed."""
    made = session()
    made.handle(told(1, 2, after=PROMPT), 0.0)
    assert made.handle(told(9, after=PROMPT), 1.0) == [ev.SendNack(5, crc(*PROMPT, 1, 2))]
    made.handle(told(*PROMPT, 9, 8, sync=True), 2.0)
    assert made.n_truth == 5
    assert made.plan(0.0).ids[-2:] == (9, 8)


@pytest.mark.parametrize("token", [-1, 16, 2**31 - 1, -(2**31)])
def test_impossible_ids_are_not_believed(token):
    """Ids outside the vocabulary never reach the model."""
    made = session()
    effects = made.handle(told(1, token, after=PROMPT), 1.0)
    assert effects == [ev.SendNack(3, crc(*PROMPT))]
    assert made.n_truth == 3


def test_sync_in_several_frames():
    """A long prefix comes in stretches, each checked by its own CRC."""
    made = session(synced=False)
    whole = (1, 2, 3, 4, 5, 6, 7)
    for start in range(0, 7, 3):
        made.handle(told(*whole[start : start + 3], after=whole[:start], sync=True), 0.0)
    assert made.n_truth == 7
    assert made.plan(0.0) == ev.Predict(whole, guess=True)


# --- asked to continue


def test_nack_makes_it_send_again():
    """A verifier that misses drafts gets them again from where it is."""
    made = drafting(1, 2, 3)
    assert made.handle(ev.Nacked(4, crc(*PROMPT, 1)), 0.0) == [ev.SendDraft(4, crc(*PROMPT, 1), (2, 3))]
    assert made.handle(ev.Nacked(3, crc(*PROMPT)), 0.0) == [ev.SendDraft(3, crc(*PROMPT), (1, 2, 3))]


def test_nack_about_an_unknown_prefix_is_answered_with_nack():
    """A verifier that is elsewhere is asked for the truth."""
    made = drafting(1, 2)
    assert made.handle(ev.Nacked(4, 99), 0.0) == [ev.SendNack(3, crc(*PROMPT))]
    assert made.handle(ev.Nacked(99, 99), 0.0) == []


# --- anything at all

tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=6).map(tuple)


@PROFILE
@given(st.data())
def test_plans_continue_the_memory_whatever_is_told(data):
    """Any truths, syncs, NACKs and guesses: each plan continues exactly what the model holds, within its context;
    trims never add; drafts sent lie beyond the truth and carry the CRC of what is before them."""
    n_ctx, n_batch = data.draw(st.sampled_from([6, 40])), data.draw(st.sampled_from([1, 3, 16]))
    made, held = DrafterSession(4, n_ctx, n_batch), []
    seen = [()]
    for now in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["told", "nacked", "plan", "plan", "plan"])):
            case "told":
                after = data.draw(st.sampled_from(seen) | texts)
                ids = data.draw(texts)
                seen.append((*after, *ids))
                effects = made.handle(told(*ids, after=after, sync=data.draw(st.booleans())), float(now))
            case "nacked":
                prefix = data.draw(st.sampled_from(seen))
                effects = made.handle(ev.Nacked(len(prefix), crc(*prefix)), float(now))
            case _:
                plan = made.plan(data.draw(st.sampled_from([0.0, 0.1])))
                if plan is None:
                    continue
                assert 0 < len(plan.ids) <= n_batch
                known = made._known[0 : len(made._known)]
                assert known[: len(held)] == held
                assert list(plan.ids) == known[len(held) : len(held) + len(plan.ids)]
                held += plan.ids
                assert len(held) <= n_ctx
                guess = data.draw(st.none() | tokens) if plan.guess else None
                effects = made.handle(ev.Predicted(len(plan.ids), guess, now - 0.01), float(now))
        for effect in effects:
            if isinstance(effect, ev.Trim):
                assert effect.length <= len(held)
                del held[effect.length :]
            if isinstance(effect, ev.SendDraft):
                known = made._known[0 : len(made._known)]
                assert effect.base >= made.n_truth
                assert effect.crc == crc(*known[: effect.base])
                assert list(effect.ids) == known[effect.base : effect.base + len(effect.ids)]
        assert held == made._known[0 : len(held)]


def corrected(made, times):
    """The drafter guesses on and on and is corrected at its first draft each time."""
    for _ in range(times):
        while (plan := made.plan(0.0)) is not None:
            made.handle(ev.Predicted(len(plan.ids), 1, -0.01), 0.0)
        made.handle(ev.Told(made.n_truth, made._known.crc_at(made.n_truth), (2,), 4, sync=False), 0.0)


def test_a_drafter_that_is_mostly_wrong_stays_close():
    """Drafts that hardly ever stand are not made beyond what was asked for: their bytes would be wasted."""
    made = session(draft_n=4)
    corrected(made, 30)
    while (plan := made.plan(10.0)) is not None:
        made.handle(ev.Predicted(len(plan.ids), 1, -0.01), 0.0)
    assert len(made.chain) == 4


def test_beyond_what_was_asked_for_drafts_go_in_groups():
    """The drafts asked for are sent as they come; those beyond go two by two, and the rest with the next truth."""
    made = session(draft_n=2)
    sent = []
    while (plan := made.plan(0.0)) is not None:
        effects = made.handle(ev.Predicted(len(plan.ids), 1, -0.01), 0.0)
        sent.append(sum(len(effect.ids) for effect in effects if isinstance(effect, ev.SendDraft)))
    assert sent == [1, 1, 0, 2, 0]
    truth = ev.Told(made.n_truth, made._known.crc_at(made.n_truth), (1,), 2, sync=False)
    assert any(isinstance(effect, ev.SendDraft) for effect in made.handle(truth, 0.0))


@pytest.mark.parametrize(("per_id", "settled"), [(1e-6, 512), (0.002, 32), (0.05, 4), (1.0, 1)])
def test_prompts_are_taken_in_by_chunks_of_a_tenth_of_a_second(per_id, settled):
    """A fast model takes whole batches, a slow one few ids at a time, so that it listens in between."""
    made = DrafterSession(16, 100_000, 512)
    made.handle(ev.Told(0, 0, (1,) * 8000, 4, sync=True), 0.0)
    made.handle(ev.Told(8000, made._known.crc, (1,) * 8000, 4, sync=True), 0.0)
    chunks = []
    while (plan := made.plan(0.0)) is not None and not plan.guess:
        chunks.append(len(plan.ids))
        made.handle(ev.Predicted(len(plan.ids), None, 0.0), len(plan.ids) * per_id)
    assert chunks[20] == settled
    assert sum(chunks) >= 16_000 - 512


# --- what drafts are sampled from


def proposing(made, token, proposal):
    """Carry out the plan with a guess that was sampled."""
    plan = made.plan(0.0)
    assert made.crc_after(plan) == made._known.crc
    return made.handle(ev.Predicted(len(plan.ids), token, -0.01, proposal), 0.0)


def test_proposals_go_out_with_their_drafts():
    """Each draft's law goes with it, also when a NACK asks for the chain again; a guess without one has none."""
    made, laws = session(), [Proposal((token, 9), (3, 1)) for token in (1, 2, 3)]
    assert proposing(made, 1, laws[0]) == [ev.SendDraft(3, crc(*PROMPT), (1,), (laws[0],))]
    proposing(made, 2, laws[1])
    assert proposing(made, 3, None) == [ev.SendDraft(5, crc(*PROMPT, 1, 2), (3,), (None,))]
    again = made.handle(ev.Nacked(4, crc(*PROMPT, 1)), 0.0)
    assert again == [ev.SendDraft(4, crc(*PROMPT, 1), (2, 3), (laws[1], None))]


def test_proposals_stay_with_what_agrees():
    """Truth leaves the laws of the chain beyond it; a correction drops those behind it."""
    made, laws = session(), [Proposal((token,), (1,)) for token in (1, 2, 3)]
    for token, law in zip((1, 2, 3), laws, strict=True):
        proposing(made, token, law)
    made.handle(told(1, after=PROMPT), 0.0)
    again = made.handle(ev.Nacked(4, crc(*PROMPT, 1)), 0.0)
    assert again == [ev.SendDraft(4, crc(*PROMPT, 1), (2, 3), (laws[1], laws[2]))]
    made.handle(told(9, after=(*PROMPT, 1)), 0.0)
    assert proposing(made, 4, None) == [ev.SendDraft(5, crc(*PROMPT, 1, 9), (4,))]
