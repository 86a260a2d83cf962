"""A drafter that is asked for drafts and says nothing."""

import pytest

from specmesh.core.draft_length.drafter_backoff import FIRST_PATIENCE, PATIENCE, RESTARTS, ROUNDS, Silence

RESTART = 0.02


def rounds(silence: Silence, count: int, start: float = 0.0, *, asked: bool = True) -> float:
    """So many rounds of 0.1 s; when the last one ends."""
    for number in range(count):
        silence.round(asked=asked, now=start + 0.1 * number)
    return start + 0.1 * (count - 1)


def test_it_lasts_after_some_rounds_and_restarts():
    """Not before either, and not once drafts come again."""
    silence = Silence()
    silence.broken()
    begun, patience = 10.0, PATIENCE + RESTARTS * RESTART
    rounds(silence, ROUNDS, begun)
    assert not silence.lasts(RESTART, begun + 2 * patience)
    rounds(silence, 1, begun + 1)
    assert silence.lasts(RESTART, begun + 1.01 * patience)
    assert not silence.lasts(RESTART, begun + 0.99 * patience)
    silence.broken()
    assert not silence.lasts(RESTART, begun + 100)


def test_a_newcomer_has_longer():
    """It has all of the text to read."""
    silence = Silence()
    end = rounds(silence, 40)
    assert not silence.lasts(RESTART, end)
    assert silence.lasts(RESTART, FIRST_PATIENCE + 0.1)


@pytest.mark.parametrize("before", [0, 50])
def test_who_is_not_asked_need_not_answer(before: int):
    """However long; what was before does not count."""
    silence = Silence()
    silence.broken()
    end = rounds(silence, before) if before else 0.0
    end = rounds(silence, 50, end, asked=False)
    assert not silence.lasts(RESTART, end + 1000)
    rounds(silence, ROUNDS, end)
    assert not silence.lasts(RESTART, end + 1000)
