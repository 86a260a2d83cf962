"""The choice of k against brute force."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length import Choice, choose_draft_n

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)
rate = st.floats(0, 1)
cost = st.floats(0.001, 1)
INF = float("inf")


def goodput(k, rates, costs, waits):
    """Expected tokens per second of a step with k drafts."""
    tokens, alive = 1.0, 1.0
    for value in rates[:k]:
        alive *= value
        tokens += alive
    return tokens / (waits[k] + costs[k])


@PROFILE
@given(st.integers(0, 12).flatmap(lambda n: st.tuples(
    st.lists(rate, min_size=n, max_size=n),
    st.lists(cost, min_size=n + 1, max_size=n + 1),
    st.lists(st.floats(0, 1) | st.just(INF), min_size=n, max_size=n),
)), st.integers(0, 14))  # fmt: skip
def test_choice_is_the_best_by_its_own_estimates(case, limit):
    """The chosen k has the highest expected tokens per second of all within limits, so never less than k = 0."""
    rates, costs, waits = case[0], case[1], [0.0, *case[2]]
    choice = choose_draft_n(rates, costs, waits[: limit + 1])
    options = [goodput(k, rates, costs, waits) for k in range(min(limit, len(rates)) + 1)]
    assert 0 <= choice.k < len(options)
    assert choice.wait == waits[choice.k] < INF
    assert options[choice.k] >= max(options) * (1 - 1e-6)
    assert options[choice.k] >= options[0]


def test_of_equal_choices_the_smaller():
    """Where more drafts bring nothing and cost nothing, fewer are taken."""
    assert choose_draft_n([0.0] * 4, [1.0] * 5, [0.0] * 5) == Choice(0, 0.0)


def test_free_rows_and_a_right_drafter_take_all():
    """Drafts in hand that always stand and cost nothing are all taken."""
    assert choose_draft_n([1.0] * 8, [1.0] * 9, [0.0] * 6) == Choice(5, 0.0)


def test_a_cliff_is_jumped_over():
    """With dear rows until eight, either none is taken or enough to reach the cheap width."""
    costs = [1.0, *[4.0] * 6, *[3.5] * 4]
    assert choose_draft_n([0.8] * 10, costs, [0.0] * 11).k >= 7
    assert choose_draft_n([0.8] * 10, costs, [0.0] * 7).k == 0


def test_waiting_that_does_not_pay_is_not_done():
    """A draft that arrives only after several steps' time is not waited for."""
    assert choose_draft_n([0.9] * 4, [0.03] * 5, [0.0, 0.0, 0.5, 0.5, 0.5]) == Choice(1, 0.0)
    assert choose_draft_n([0.9] * 4, [0.03] * 5, [0.001 * k for k in range(5)]).k == 4


def test_costs_not_measured_yet():
    """Before any measurement the choice is still one: drafts in hand are tried."""
    assert choose_draft_n([0.6] * 4, [0.0] * 5, [0.0, 0.0, 0.0]) == Choice(2, 0.0)
