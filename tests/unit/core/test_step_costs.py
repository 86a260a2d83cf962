"""The measured costs of a step."""

import math

import pytest
from harness.sessions import measured
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length.step_costs import StepCosts

tables = st.dictionaries(st.integers(1, 40), st.floats(0, 10), min_size=1, max_size=8)
widths = st.integers(1, 60)


def seconds(costs, *widths, context_length=0):
    return [costs.seconds(rows, context_length) for rows in widths]


# --- widths


@given(tables, widths)
def test_a_width_costs_as_much_as_it_was_measured_or_as_those_beside_it(table, rows):
    """One beyond the widest costs no less; one below the narrowest costs as much."""
    costs = measured(table)
    assert costs.tables() == {0: dict(sorted(table.items()))}
    assert seconds(costs, *table) == list(table.values())
    below = max((width for width in table if width <= rows), default=min(table))
    above = min((width for width in table if width >= rows), default=below)
    low, high = sorted((table[below], table[above]))
    if rows > max(table):
        high = math.inf
    assert low - 1e-9 <= costs.seconds(rows) <= high + 1e-9


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


def test_a_longer_context_costs_as_much_until_it_is_measured():
    """One measurement raises all widths."""
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    assert seconds(costs, 1, 4, 8, context_length=5000) == [10.0, 13.0, 20.0]
    costs.record(1, 12.0, context_length=5000)
    assert seconds(costs, 1, 4, 8, context_length=5000) == [12.0, 15.0, 22.0]


@cases(
    "context, expected",
    """
    [0, [10.0, 13.0, 20.0]]
    [2000, [10.0, 13.0, 20.0]]
    [8191, [12.0, 17.0, 24.0]]
    [100000, [12.0, 17.0, 24.0]]
    """,
)
def test_contexts_of_about_the_same_length_share_their_costs(context, expected):
    """Shorter ones keep theirs, and one longer than all costs as much as the longest."""
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    costs.record(1, 12.0, context_length=5000)
    costs.record(4, 17.0, context_length=4096)
    assert seconds(costs, 1, 4, 8, context_length=context) == expected
    assert costs.tables()[4096] == {1: 12.0, 4: 17.0}


def test_a_longer_context_costs_more_with_each_row():
    """Beyond the known widths the extra cost of the last one stays."""
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    costs.record(1, 11.0, context_length=5000)
    costs.record(5, 18.75, context_length=5000)
    assert seconds(costs, 1, 4, 5, 8, context_length=5000) == [11.0, 16.25, 18.75, 24.0]


def test_a_longer_context_never_seems_to_cost_less():
    """Where its steps take less than those over fewer ids, the host was busy before."""
    costs = measured({1: 10.0, 8: 90.0})
    costs.record(8, 30.0, context_length=5000)
    assert seconds(costs, 1, 8, context_length=5000) == [10.0, 30.0]


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
    costs.undrafted.record(4, 18.0)
    return costs


def test_the_first_measurement_beside_a_drafter_counts_half():
    assert seconds(shared(), 1, 4) == [12.0, 16.0 * 1.2]


def test_other_widths_are_slower_by_no_more_than_threads_explain():
    """Costs without the drafter are kept apart, and count without it."""
    costs = slow()
    assert seconds(costs, 1, 4) == [100.0, 2 * 17.0]
    assert costs.undrafted.tables() == {0: {1: 10.0, 4: 17.0}}
    costs.split(1.5)
    assert seconds(costs, 1, 4) == [100.0, 1.5 * 17.0]
    costs.join()
    assert seconds(costs, 1, 4) == [10.0, 17.0]


# --- in advance


def in_advance(table):
    costs = StepCosts()
    for rows, duration in table.items():
        costs.record_in_advance(rows, duration)
    return costs


def recorded(costs, *durations, context_length=0):
    for duration in durations:
        costs.record(1, duration, context_length=context_length)
    return costs


def test_steps_in_advance_count_as_those_of_texts():
    assert seconds(in_advance({1: 2.0, 4: 8.0}), 1, 2, 4) == [2.0, 4.0, 8.0]


@cases(
    "durations, left",
    """
    [[2.0, 2.0, 2.0], {"1": 2.0, "4": 8.0}]
    [[1.5, 1.5, 1.5], {"1": 1.5, "4": 8.0}]
    [[0.1, 0.1], {"1": 0.1, "4": 8.0}]
    [[0.1, 9.0, 0.1], {"1": 0.1}]
    """,
)
def test_steps_in_advance_go_once_texts_show_that_the_host_was_busy(durations, left):
    """Three steps show it, one of which may have been held up."""
    costs = recorded(in_advance({1: 2.0, 4: 8.0}), *durations)
    assert costs.tables() == {0: {int(rows): each for rows, each in left.items()}}


def test_a_host_that_calms_down_later_shows_it_later():
    costs = recorded(in_advance({1: 2.0, 4: 8.0}), *[2.0] * 3, *[0.1] * 8)
    assert costs.tables() == {0: {1: 0.1}}


def test_a_width_between_those_in_advance_shows_it_too():
    """Few texts have steps of just the widths that were measured."""
    costs = in_advance({1: 2.0, 4: 8.0})
    for duration in (3.0, 3.0, 3.0):
        costs.record(3, duration)
    assert costs.tables() == {0: {3: 3.0}}


@pytest.mark.parametrize("rows", [1, 9])
def test_a_width_beyond_those_in_advance_shows_nothing(rows):
    """Between kernels there may be a cliff."""
    costs = in_advance({2: 2.0, 4: 8.0})
    for _ in range(3):
        costs.record(rows, 0.1)
    assert costs.tables() == {0: {2: 2.0, 4: 8.0, rows: 0.1}}


def test_a_width_is_expected_anew_once_those_in_advance_have_gone():
    costs = in_advance({1: 2.0, 4: 8.0})
    before = costs.seconds(4), costs.seconds(4, 2000)
    recorded(costs, 0.1, 0.1, 0.1)
    assert (before, (costs.seconds(4), costs.seconds(4, 2000))) == ((8.0, 8.0), (0.1, 0.1))


def test_long_texts_show_it_too():
    """An agent has no short ones."""
    costs = recorded(in_advance({1: 2.0, 4: 8.0}), 0.1, 0.1, 0.1, context_length=2000)
    assert costs.tables() == {1024: {1: 0.1}}
    assert (costs.seconds(4), costs.seconds(4, 2000)) == (0.1, 0.1)
