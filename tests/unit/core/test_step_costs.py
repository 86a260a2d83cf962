"""The measured costs of a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length.step_costs import StepCosts

tables = st.dictionaries(st.integers(1, 40), st.floats(0, 10), min_size=1, max_size=8)
widths = st.integers(1, 60)


def measured(table):
    costs = StepCosts()
    for rows, seconds in table.items():
        costs.record(rows, seconds)
    return costs


def seconds(costs, *widths, context=0):
    return [costs.seconds(rows, context) for rows in widths]


# --- widths


@given(tables)
def test_a_measured_width_has_its_cost(table):
    assert seconds(measured(table), *table) == list(table.values())


@given(tables, widths)
def test_a_width_between_two_others_costs_something_between(table, rows):
    below = [width for width in table if width <= rows]
    above = [width for width in table if width >= rows]
    if not below or not above:
        return
    low, high = sorted((table[max(below)], table[min(above)]))
    assert low - 1e-9 <= measured(table).seconds(rows) <= high + 1e-9


@given(tables, widths)
def test_a_width_beyond_the_widest_costs_no_less(table, rows):
    widest = max(table)
    assert measured(table).seconds(widest + rows) >= table[widest] - 1e-9


@given(tables, widths)
def test_a_width_below_the_narrowest_costs_as_much(table, rows):
    narrowest = min(table)
    width = min(rows, narrowest)
    assert measured(table).seconds(width) == table[narrowest]


@given(tables)
def test_the_tables_have_the_measurements(table):
    assert measured(table).tables() == {0: dict(sorted(table.items()))}


def test_a_line_goes_on_from_half_as_many_rows():
    assert measured({1: 1.0, 16: 8.0, 25: 12.0, 32: 12.0}).seconds(64) == 20.0


# --- medians


def test_a_median_ignores_outliers():
    costs = StepCosts()
    costs.record(2, 1.0)
    for value in (1.0, 50.0, 1.0, 1.0, 1.0) * 200:
        costs.record(2, value)
        assert costs.seconds(2) == 1.0


def test_a_median_forgets_the_distant_past():
    costs = StepCosts()
    for value in [1.0] * 1000 + [2.0] * 100:
        costs.record(2, value)
    assert costs.seconds(2) == 2.0


# --- contexts


def contexts():
    """Costs of short contexts, and of two widths at longer ones."""
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    costs.record(1, 12.0, context=5000)
    costs.record(4, 17.0, context=4096)
    return costs


def test_a_longer_context_costs_as_much_until_it_is_measured():
    assert measured({1: 10.0, 4: 13.0}).seconds(4, 5000) == 13.0


def test_one_measurement_raises_all_widths_of_a_longer_context():
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    costs.record(1, 12.0, context=5000)
    assert seconds(costs, 1, 4, 8, context=5000) == [12.0, 15.0, 22.0]


def test_contexts_of_about_the_same_length_share_their_costs():
    assert seconds(contexts(), 1, 4, 8, context=8191) == [12.0, 17.0, 23.0]


@pytest.mark.parametrize("context", [1023, 2000])
def test_shorter_contexts_keep_their_costs(context):
    assert seconds(contexts(), 1, 4, 8, context=context) == [10.0, 13.0, 20.0]


def test_a_context_longer_than_all_costs_as_much_as_the_longest():
    assert contexts().seconds(8, 100_000) == 23.0


def test_the_tables_are_by_context():
    assert contexts().tables() == {0: {1: 10.0, 4: 13.0, 8: 20.0}, 4096: {1: 12.0, 4: 17.0}}


# --- threads shared with a drafter of this host


def shared():
    """Return costs, one of which was measured again with a drafter."""
    costs = measured({1: 10.0, 4: 16.0})
    costs.split(2.0)
    costs.record(1, 14.0)
    return costs


def slow():
    """Return the same after many slow steps with the drafter and one without it."""
    costs = shared()
    for _ in range(9):
        costs.record(1, 100.0)
    costs.alone.record(4, 18.0)
    return costs


def test_the_first_measurement_beside_a_drafter_counts_half():
    assert seconds(shared(), 1, 4) == [12.0, 16.0 * 1.2]


def test_other_widths_are_slower_by_no_more_than_threads_explain():
    assert seconds(slow(), 1, 4) == [100.0, 2 * 17.0]


def test_costs_without_the_drafter_are_kept_apart():
    assert slow().alone.tables() == {0: {1: 10.0, 4: 17.0}}


def test_another_split_bounds_the_costs_anew():
    costs = slow()
    costs.split(1.5)
    assert seconds(costs, 1, 4) == [100.0, 1.5 * 17.0]


def test_without_the_drafter_its_costs_do_not_count():
    costs = slow()
    costs.join()
    assert seconds(costs, 1, 4) == [10.0, 17.0]
