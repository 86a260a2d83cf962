"""Measured costs of a step."""

from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length import estimates
from specmesh.core.draft_length.estimates import StepCosts

seconds = st.floats(0, 10)


def measured(table):
    costs = StepCosts()
    for rows, value in table.items():
        costs.record(rows, value)
    return costs


@given(st.dictionaries(st.integers(1, 40), seconds, min_size=1, max_size=8), st.integers(1, 60))
def test_interpolation_stays_between_its_neighbours(table, rows):
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
    assert costs.tables() == {0: dict(sorted(table.items()))}


def test_median_ignores_outliers_and_the_distant_past(monkeypatch):
    monkeypatch.setattr(estimates, "WINDOW", 5)
    costs = StepCosts()
    for value in (1.0, 1.0, 50.0, 1.0, 1.0):
        costs.record(2, value)
    assert costs.seconds(2) == 1.0
    for _ in range(3):
        costs.record(2, 2.0)
    assert costs.seconds(2) == 2.0


def test_long_contexts_have_costs_of_their_own():
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    assert costs.seconds(4, 5000) == 13.0
    costs.record(1, 12.0, context=5000)
    assert [costs.seconds(rows, 5000) for rows in (1, 4, 8)] == [12.0, 15.0, 22.0]
    costs.record(4, 17.0, context=4096)
    assert [costs.seconds(rows, 8191) for rows in (1, 4, 8)] == [12.0, 17.0, 23.0]
    assert [costs.seconds(rows, 1023) for rows in (1, 4, 8)] == [10.0, 13.0, 20.0]
    assert costs.seconds(8, 100_000) == 23.0
    assert costs.seconds(8, 2000) == 20.0
    assert costs.tables() == {0: {1: 10.0, 4: 13.0, 8: 20.0}, 4096: {1: 12.0, 4: 17.0}}
