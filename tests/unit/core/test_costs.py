"""Measured costs of a step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.step_costs import ENOUGH, OPTIMISM, StepCosts

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


def test_long_contexts_have_costs_of_their_own():
    """What longer contexts add to the widths known in both is added to the others; short ones learn nothing of it."""
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    assert costs.seconds(4, 5000) == 13.0
    costs.record(1, 12.0, context=5000)
    assert [costs.seconds(rows, 5000) for rows in (1, 4, 8)] == [12.0, 15.0, 22.0]
    costs.record(4, 17.0, context=4096)
    assert [costs.seconds(rows, 8191) for rows in (1, 4, 8)] == [12.0, 17.0, 23.0]
    assert [costs.seconds(rows, 1023) for rows in (1, 4, 8)] == [10.0, 13.0, 20.0]
    assert costs.seconds(8, 100_000) == 23.0
    assert costs.seconds(8, 2000) == 20.0
    assert costs.table() == {1: 10.0, 4: 13.0, 8: 20.0}
    assert costs.tables() == {0: costs.table(), 4096: {1: 12.0, 4: 17.0}}


def test_only_long_contexts_measured():
    """A prompt may be long before anything was measured: better that than nothing."""
    costs = StepCosts()
    costs.record(2, 5.0, context=3000)
    assert (costs.seconds(2), costs.seconds(1, 9000), costs.table()) == (5.0, 5.0, {2: 5.0})


@PROFILE
@given(st.lists(st.tuples(st.integers(1, 20), seconds, st.integers(0, 40_000)), min_size=1, max_size=40))
def test_costs_are_never_negative(steps):
    """Whatever was measured where, every estimate is a time, and the same asked twice."""
    costs = StepCosts()
    for rows, took, context in steps:
        costs.record(rows, took, context=context)
        known = [costs.seconds(width, at) for width in (1, 5, 30) for at in (0, 1500, 3000, 60_000)]
        assert min(known) >= 0
        assert known == [costs.seconds(width, at) for width in (1, 5, 30) for at in (0, 1500, 3000, 60_000)]


def test_hope_ends_with_knowledge():
    """The less a width was measured, the cheaper it may be hoped to be; what was measured enough is what it shows, and
    what never was is interpolated, no more."""
    costs, hoped = measured({1: 0.010, 9: 0.018}), []
    assert costs.hopeful(8) == [costs.seconds(rows) for rows in range(1, 9)]
    for _ in range(ENOUGH):
        costs.record(3, 0.011)
    for _ in range(ENOUGH):
        costs.record(4, 0.015)
        hoped.append(costs.hopeful(4)[3])
    assert hoped[0] == pytest.approx(0.015 * (1 - OPTIMISM * (1 / 2 - 1 / (ENOUGH + 1))))
    assert hoped == sorted(set(hoped))
    assert hoped[-1] == costs.seconds(4) == 0.015


@PROFILE
@given(st.dictionaries(st.integers(1, 17), st.floats(0.001, 1), min_size=1))
def test_hope_makes_no_width_cheaper_than_narrower_ones(table):
    """Else it would make a bad width of one that is known to be good. Where a width was measured to be cheaper than a
    narrower one it stays so; one row is never hoped to be cheaper."""
    costs = measured(table)
    hoped, expected = costs.hopeful(17), [costs.seconds(rows) for rows in range(1, 18)]
    assert hoped[0] == expected[0]
    assert all(hope <= known for hope, known in zip(hoped, expected, strict=True))
    for width in range(1, 17):
        assert hoped[width] >= min(expected[width], max(expected[:width]))


def test_a_width_that_looked_dear_once_is_measured_again():
    """Whoever takes the width that is hoped to be best finds out what was measured at a bad moment."""
    true = {1: 0.037, 2: 0.048, 3: 0.056, 4: 0.062, 5: 0.089}
    worth = [sum(0.8**i for i in range(rows)) for rows in true]
    costs = measured(true | {4: 1.18 * true[4]})
    for _ in range(60):
        hoped = costs.hopeful(5)
        best = max(true, key=lambda rows: worth[rows - 1] / hoped[rows - 1])
        costs.record(best, true[best])
    assert best == 4
    assert costs.seconds(4) == true[4]
