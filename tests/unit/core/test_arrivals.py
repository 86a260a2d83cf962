"""When drafts arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.arrival_estimates import Arrivals

PROFILE = settings(derandomize=True, deadline=None)
seconds = st.floats(0, 10)


def test_arrivals_know_nothing_at_first():
    """Without measurements the round trip counts as 0 and no draft is worth waiting for."""
    assert (Arrivals().round_trip, Arrivals().interval) == (0.0, None)


def test_restart_and_interval_are_learned_apart():
    """The first drafts after a correction tell the restart, those that follow the interval; before, it is bounded."""
    arrivals = Arrivals()
    for delay in (0.020, 0.021, 0.500):
        arrivals.record_round_trip(delay)
    arrivals.record_restart(0.036, 3)
    assert arrivals.round_trip == 0.021
    assert arrivals.restart == (0.036, 3)
    assert arrivals.interval == pytest.approx(0.012)
    arrivals.record_interval(0.010, 2)
    assert arrivals.interval == pytest.approx(0.005)


@PROFILE
@given(st.lists(st.tuples(seconds, st.integers(1, 400)), min_size=1, max_size=40), seconds)
def test_interval_is_positive(restarts, round_trip):
    """No sequence of arrivals makes the interval zero or negative."""
    arrivals = Arrivals()
    arrivals.record_round_trip(round_trip)
    for delay, drafts in restarts:
        arrivals.record_restart(delay, drafts)
        assert arrivals.interval > 0
        arrivals.record_interval(delay, drafts)
        assert arrivals.interval > 0


def test_a_bound_only_shortens():
    """Guesses that came sooner than drafts are believed to say so; later ones say nothing, nor any without a belief."""
    arrivals = Arrivals()
    arrivals.record_bound(0.008, 8)
    assert arrivals.interval is None
    arrivals.record_restart(0.012, 2)
    arrivals.record_bound(0.080, 8)
    assert arrivals.interval == pytest.approx(0.006)
    arrivals.record_bound(0.016, 8)
    assert arrivals.interval == pytest.approx(0.002)


def test_each_load_has_times_of_its_own():
    """What was measured with three sessions says how long three take; with fewer again, what was measured then."""
    arrivals = Arrivals()
    arrivals.record_restart(0.030, 1)
    arrivals.record_interval(0.010, 1)
    arrivals.share(3)
    arrivals.record_interval(0.024, 1)
    arrivals.record_restart(0.050, 1)
    assert (arrivals.interval, arrivals.restart) == (0.024, (0.050, 1))
    arrivals.share(1)
    assert (arrivals.interval, arrivals.restart) == (0.010, (0.030, 1))
    arrivals.share(0)
    assert arrivals.load == 1


def test_a_load_that_was_not_seen():
    """More sessions take as much longer as there are more of them, at most what more of them did take; fewer are not
    hoped to be faster."""
    arrivals = Arrivals()
    assert (arrivals.interval_at(2), arrivals.restart_at(2)) == (None, None)
    arrivals.share(2)
    arrivals.record_interval(0.010, 1)
    arrivals.record_restart(0.030, 2)
    assert arrivals.interval_at(1) == 0.010
    assert arrivals.interval_at(4) == pytest.approx(0.020)
    assert arrivals.restart_at(1) == (0.030, 2)
    assert arrivals.restart_at(4) == (pytest.approx(0.050), 2)
    arrivals.share(6)
    arrivals.record_interval(0.015, 1)
    assert arrivals.interval_at(4) == pytest.approx(0.015)
    assert arrivals.interval_at(3) == pytest.approx(0.015)


@PROFILE
@given(st.lists(st.tuples(st.integers(0, 40), seconds, st.integers(1, 40)), min_size=1, max_size=30))
def test_every_load_has_an_estimate(measured):
    """Once anything was measured, at whatever load; and intervals are positive."""
    arrivals = Arrivals()
    for load, time, drafts in measured:
        arrivals.share(load)
        arrivals.record_restart(time, drafts)
    for load in range(1, 45):
        assert arrivals.interval_at(load) > 0
        assert arrivals.restart_at(load)[0] >= 0
