"""One session at the drafter, event by event."""

import pytest
from drafter_sessions import PROMPT, crc, drafting, predict, session, told

from specmesh.core import events as ev
from specmesh.core.draft_session import (
    NACK_INTERVAL,
)
from specmesh.core.sampling.proposal import Proposal

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
