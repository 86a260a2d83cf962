"""Measured costs of a step, and when drafts arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.costs import Arrivals, StepCosts

PROFILE = settings(derandomize=True, deadline=None)
seconds = st.floats(0, 10)


def measured(table):
    """Costs of which these widths were measured."""
    costs = StepCosts()
    for rows, value in table.items():
        costs.record(rows, value)
    return costs


def test_redone_ids_are_a_price_of_drafting():
    """A plain step that decodes rejected rows' remains again does not make the target alone look slow; it is owed."""
    costs = measured({1: 1.0, 3: 1.5})
    for _ in range(40):
        costs.record(1, 1.75, redoes=True)
    assert costs.table() == {1: 1.0, 3: 1.5}
    costs = measured({1: 1.0})
    costs.record(1, 1.25, redoes=True)
    costs.record(1, 0.5, redoes=True)  # faster than usual: nothing is owed, nothing given back
    costs.record(3, 1.5, drafts=True)
    assert costs.seconds(3) == 1.75
    costs.record(5, 2.0, drafts=True, redoes=True)
    assert costs.seconds(5) == 2.0


@PROFILE
@given(st.dictionaries(st.integers(1, 40), seconds, min_size=1, max_size=8), st.integers(1, 60))
def test_interpolation_stays_between_its_neighbours(table, rows):
    """A width measured is its median; between two it lies between theirs; outside, never below the nearest."""
    costs = measured(table)
    below = [width for width in table if width <= rows]
    above = [width for width in table if width >= rows]
    value = costs.seconds(rows)
    if rows in table:
        assert value == table[rows]
    elif below and above:
        low, high = sorted((table[max(below)], table[min(above)]))
        assert low - 1e-9 <= value <= high + 1e-9
    else:
        assert value >= table[max(below) if below else min(above)] - 1e-9
    assert costs.table() == dict(sorted(table.items()))


def test_cliffs_are_kept():
    """A curve that falls again is not smoothed: eight rows may cost less than six."""
    costs = measured({1: 1.0, 6: 5.3, 8: 3.5})
    assert costs.seconds(6) > costs.seconds(8)
    assert costs.seconds(7) == pytest.approx(4.4)


def test_beyond_the_widest_the_slope_goes_on_but_never_falls():
    """Wider steps than measured cost more by the last slope, or as much as the widest where that slope falls."""
    assert measured({1: 1.0, 3: 2.0}).seconds(7) == pytest.approx(4.0)
    assert measured({1: 1.0, 4: 3.0, 8: 2.0}).seconds(20) == pytest.approx(2.0)


def test_below_the_narrowest_costs_as_much():
    """A step narrower than any measured is not free: it costs as much as the narrowest."""
    assert measured({4: 0.010, 8: 0.050}).seconds(1) == 0.010


def test_nothing_measured():
    """Before the first measurement a step costs 0; after one, every width costs that."""
    assert StepCosts().seconds(3) == 0.0
    assert measured({3: 0.5}).seconds(1) == measured({3: 0.5}).seconds(9) == 0.5


def test_median_ignores_outliers_and_the_distant_past():
    """One slow step changes nothing; a machine that became slower is known after half a window."""
    costs = StepCosts(window=5)
    for value in (1.0, 1.0, 50.0, 1.0, 1.0):
        costs.record(2, value)
    assert costs.seconds(2) == 1.0
    for _ in range(3):
        costs.record(2, 2.0)
    assert costs.seconds(2) == 2.0


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
