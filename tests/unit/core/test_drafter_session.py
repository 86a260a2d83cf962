"""One session at the drafter: what it does not believe."""

import pytest
from harness.sessions import crc

from specmesh.core import events as ev
from specmesh.core.draft_session import NACK_INTERVAL, DrafterSession

PROMPT = (5, 6, 7)


def told(*ids, after=(), sync=False):
    return ev.Told(len(after), crc(*after), ids, 4, sync)


@pytest.fixture
def session():
    made = DrafterSession(16, 64, 16)
    made.handle(told(*PROMPT, sync=True), 0.0)
    return made


def test_missed_truth_is_asked_for(session):
    lost = told(4, after=(*PROMPT, 8, 8))
    assert session.handle(lost, 1.0) == [ev.Nacked(3, crc(*PROMPT))]
    assert session.handle(lost, 1.0 + NACK_INTERVAL / 2) == []
    assert session.handle(lost, 1.0 + NACK_INTERVAL * 1.5) == [ev.Nacked(3, crc(*PROMPT))]


def test_contradicting_truths_are_resolved_by_sync(session):
    session.handle(told(1, 2, after=PROMPT), 0.0)
    assert session.handle(told(9, after=PROMPT), 1.0) == [ev.Nacked(5, crc(*PROMPT, 1, 2))]
    session.handle(told(*PROMPT, 9, 8, sync=True), 2.0)
    assert session.truth == (*PROMPT, 9, 8)


@pytest.mark.parametrize("token", [-1, 16, 2**31 - 1, -(2**31)])
def test_impossible_ids_are_not_believed(session, token):
    assert session.handle(told(1, token, after=PROMPT), 1.0) == [ev.Nacked(3, crc(*PROMPT))]
