"""One session at the drafter, event by event."""

import pytest
from harness.sessions import crc

from specmesh.core import events as ev
from specmesh.core.draft_session import NACK_INTERVAL, DrafterSession
from specmesh.core.sampling.proposal import Proposal

PROMPT = (5, 6, 7)


def told(*ids, after=(), draft_n=4, sync=False):
    return ev.Told(len(after), crc(*after), ids, draft_n, sync)


def session(draft_n=4):
    made = DrafterSession(16, 64, 16)
    made.handle(told(*PROMPT, draft_n=draft_n, sync=True), 0.0)
    return made


def predict(made, token, now=0.0, took=0.01):
    """Carry out the session's plan with this guess; returns (plan, effects)."""
    plan = made.plan(0.0)
    return plan, made.handle(ev.Predicted(len(plan.ids), token, now - took), now)


def drafting(*chain):
    """A session that has drafted and sent this chain on PROMPT."""
    made = session()
    for token in chain:
        predict(made, token)
    return made


def test_first_guess_follows_the_prompt():
    made = session()
    assert made.plan(0.0) == ev.Predict(PROMPT, guess=True)
    _, effects = predict(made, 1)
    assert effects == [ev.Drafted(3, crc(*PROMPT), (1,))]
    assert made.plan(0.0) == ev.Predict((1,), guess=True)
    _, effects = predict(made, 2)
    assert effects == [ev.Drafted(4, crc(*PROMPT, 1), (2,))]
    assert made.chain == (1, 2)
    assert made.drafted == 2


def test_correction_cuts_chain_and_memory():
    made = drafting(1, 2, 3)
    assert made.handle(told(1, 9, after=PROMPT), 0.0) == [ev.Trim(4), ev.Learned((1, 9), 1)]
    assert (made.n_truth, made.chain) == (5, ())
    assert made.plan(0.0) == ev.Predict((9,), guess=True)
    assert predict(made, 4)[1] == [ev.Drafted(5, crc(*PROMPT, 1, 9), (4,))]


def test_missed_truth_is_asked_for():
    made = drafting(1)
    lost = told(4, after=(*PROMPT, 8, 8))
    assert made.handle(lost, 1.0) == [ev.Nacked(3, crc(*PROMPT))]
    assert made.handle(lost, 1.0 + NACK_INTERVAL / 2) == []
    assert made.handle(lost, 1.0 + NACK_INTERVAL * 1.5) == [ev.Nacked(3, crc(*PROMPT))]
    assert made.n_truth == 3
    assert made.handle(told(8, 8, 4, after=PROMPT, sync=True), 2.0)[-1] == ev.Learned((8, 8, 4), 0, sync=True)


def test_contradicting_truths_are_resolved_by_sync():
    made = session()
    made.handle(told(1, 2, after=PROMPT), 0.0)
    assert made.handle(told(9, after=PROMPT), 1.0) == [ev.Nacked(5, crc(*PROMPT, 1, 2))]
    made.handle(told(*PROMPT, 9, 8, sync=True), 2.0)
    assert made.n_truth == 5
    assert made.plan(0.0).ids[-2:] == (9, 8)


@pytest.mark.parametrize("token", [-1, 16, 2**31 - 1, -(2**31)])
def test_impossible_ids_are_not_believed(token):
    made = session()
    effects = made.handle(told(1, token, after=PROMPT), 1.0)
    assert effects == [ev.Nacked(3, crc(*PROMPT))]
    assert made.n_truth == 3


def test_nack_makes_it_send_again():
    made = drafting(1, 2, 3)
    assert made.handle(ev.Nacked(4, crc(*PROMPT, 1)), 0.0) == [ev.Drafted(4, crc(*PROMPT, 1), (2, 3))]
    assert made.handle(ev.Nacked(3, crc(*PROMPT)), 0.0) == [ev.Drafted(3, crc(*PROMPT), (1, 2, 3))]


def proposing(made, token, proposal):
    plan = made.plan(0.0)
    assert made.crc_after(plan) == made._known.crc
    return made.handle(ev.Predicted(len(plan.ids), token, -0.01, proposal), 0.0)


def test_proposals_go_out_with_their_drafts():
    made, laws = session(), [Proposal((token, 9), (3, 1)) for token in (1, 2, 3)]
    assert proposing(made, 1, laws[0]) == [ev.Drafted(3, crc(*PROMPT), (1,), (laws[0],))]
    proposing(made, 2, laws[1])
    assert proposing(made, 3, None) == [ev.Drafted(5, crc(*PROMPT, 1, 2), (3,), (None,))]
    again = made.handle(ev.Nacked(4, crc(*PROMPT, 1)), 0.0)
    assert again == [ev.Drafted(4, crc(*PROMPT, 1), (2, 3), (laws[1], None))]


def test_proposals_stay_with_what_agrees():
    made, laws = session(), [Proposal((token,), (1,)) for token in (1, 2, 3)]
    for token, law in zip((1, 2, 3), laws, strict=True):
        proposing(made, token, law)
    made.handle(told(1, after=PROMPT), 0.0)
    again = made.handle(ev.Nacked(4, crc(*PROMPT, 1)), 0.0)
    assert again == [ev.Drafted(4, crc(*PROMPT, 1), (2, 3), (laws[1], laws[2]))]
    made.handle(told(9, after=(*PROMPT, 1)), 0.0)
    assert proposing(made, 4, None) == [ev.Drafted(5, crc(*PROMPT, 1, 9), (4,))]
