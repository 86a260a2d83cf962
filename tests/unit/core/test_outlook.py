"""When drafts can be expected, by frames alone; seconds and positions are chosen so that sums are exact."""

import pytest

from specmesh.core.draft_length.arrival_estimates import UNKNOWN_INTERVAL, Arrivals, Outlook
from specmesh.core.statistics import SessionTimes

INTERVAL, ROUND_TRIP = 0.5, 0.25


def watched() -> tuple[Arrivals, SessionTimes, Outlook]:
    arrivals, times = Arrivals(), SessionTimes(0.0)
    arrivals.record_round_trip(ROUND_TRIP)
    return arrivals, times, Outlook(arrivals, times)


def drafting() -> tuple[Arrivals, Outlook]:
    """Flushed at 10 ids at 1.0; drafts up to 12 at 2.0 and to 14 at 3.0."""
    arrivals, _, outlook = watched()
    outlook.moved(10, 4, 1.0, flushed=True)
    outlook.arrived(10, 4, 12, 2.0)
    outlook.arrived(10, 4, 14, 3.0)
    return arrivals, outlook


def test_nothing_is_known_at_first():
    _, _, outlook = watched()
    assert outlook.lead(10, 3, 7.0) == 3.0
    assert outlook.due(12, 7.0) == 7.0
    assert outlook.slack == pytest.approx(UNKNOWN_INTERVAL + ROUND_TRIP / 4, abs=1e-3)


def test_restart_and_interval_are_learnt():
    """The first drafts after a flush tell how long it takes to begin anew, those that follow how long one takes."""
    arrivals, times, outlook = watched()
    outlook.moved(10, 4, 1.0, flushed=True)
    outlook.arrived(10, 4, 12, 2.0)
    assert arrivals.restart == (1.0, 2)
    assert (times.restart, times.restarts) == (1.0, 1)
    outlook.arrived(10, 4, 14, 3.0)
    assert arrivals.interval == INTERVAL
    assert (times.restart, times.restarts) == (1.0, 1)


def test_drafts_beyond_what_was_asked_tell_no_interval():
    """It may have been idle before them."""
    arrivals, _, outlook = watched()
    outlook.moved(10, 2, 1.0, flushed=True)
    outlook.arrived(10, 2, 12, 2.0)
    before = arrivals.interval
    outlook.arrived(10, 2, 14, 2.25)
    assert arrivals.interval == before


def test_one_that_is_asked_for_nothing_starts_nothing_anew():
    arrivals, times, outlook = watched()
    outlook.moved(10, 0, 1.0, flushed=True)
    outlook.arrived(10, 0, 12, 2.0)
    assert arrivals.restart is None
    assert times.restarts == 0


def test_the_next_draft_is_partly_done():
    """As far as time says, but for one that is overdue: that is due an interval from now."""
    _, outlook = drafting()
    assert outlook.lead(10, 4, 3.25) == 4.5
    assert outlook.lead(10, 4, 4.0) == 4.0
    assert outlook.due(14, 3.25) == 3.0
    assert outlook.due(16, 3.25) == 4.0


def test_expected_after_a_flush():
    """A restart after it, and as many drafts at once as the last time."""
    _, outlook = drafting()
    outlook.moved(15, 4, 5.0, flushed=True)
    assert outlook.due(17, 5.0) == 6.0
    assert outlook.due(18, 5.0) == 6.5


def test_one_at_the_end_of_its_credit_goes_on_when_it_hears():
    """Nothing has come for two intervals: not before a round trip; where something has, it is at work."""
    for now, due in ((3.75, 3.5), (4.5, 4.5 + ROUND_TRIP + INTERVAL)):
        _, outlook = drafting()
        outlook.moved(12, 4, now, flushed=False)
        assert outlook.due(15, now) == due


def test_guesses_of_all_that_was_told_bound_the_interval():
    """Only where they end with what was told last, and once: the second of a pair came later for other reasons."""
    for end, learnt in ((15, INTERVAL), (16, (0.1 + INTERVAL) / 2)):
        arrivals, outlook = drafting()
        outlook.told(16, 4.0)
        outlook.shadowed(end, 4, 4.4)
        outlook.shadowed(end, 4, 4.8)
        assert arrivals.interval == pytest.approx(learnt)
