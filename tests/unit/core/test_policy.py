"""The step policy: against a simulation of the process it solves, in corners where the answer is known, and against
events in virtual time; the step costs that it is given."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.simulation import Deployment, Simulation, Workload

MOST, AHEAD = 16, 48  # drafts of a step, and that a drafter is ahead at most
Q8_0 = (1.0, 2.5, 3.4, 4.2, 4.9, 5.3, 4.4, 3.5, *(3.6 + 0.2 * k for k in range(9)))
"""Relative costs of 1, 2, ... rows with a cliff: seven rows cost more than eight."""


def inputs(alpha, step=0.0342, row=0.001, interval=0.0052, round_trip=0.005, steps=None, alone=None):
    steps = tuple(step + row * k for k in range(MOST + 1)) if steps is None else steps
    return PolicyInputs(steps, (alpha,) * (MOST + 1), interval, round_trip + 1.5 * interval, alone or steps[0])


def rate_of(made, alpha, round_trip, decide, tokens=6000):
    """Tokens per second of the process itself, in which decide(lead) gives (drafts, lead to wait for or None)."""
    chance, now, said, behind, held = random.Random(5), 0.0, 0, round_trip, 0
    while said < tokens:
        lead = min((now - behind) / made.interval - held, AHEAD)
        drafts, until = decide(lead)
        if until is not None:
            now += max(until - lead, 1e-6) * made.interval
            continue
        now += made.steps[drafts]
        accepted = 0
        while accepted < drafts and chance.random() < alpha:
            accepted += 1
        said += accepted + 1
        if accepted == drafts and chance.random() < alpha:
            held += drafts + 1
            behind = max(behind, now - (AHEAD + held) * made.interval)
        else:
            behind, held = now + round_trip + chance.random() * made.interval, 0
    return said / now


@pytest.mark.parametrize("round_trip", [0.0003, 0.005, 0.02, 0.08])
@pytest.mark.parametrize(("step", "row", "interval"), [(0.0342, 0.001, 0.0052), (0.052, 0.0016, 0.0033)])
@pytest.mark.parametrize("alpha", [0.5, 0.75, 0.9])
def test_as_good_as_any_simple_rule(alpha, step, row, interval, round_trip):
    made = inputs(alpha, step, row, interval, round_trip)
    policy = solve(made)

    def decide(lead):
        at = policy.index(lead)
        then = policy.then[at]
        return policy.drafts[then], None if then == at else policy.lead_at(then)

    reached = rate_of(made, alpha, round_trip, decide)
    assert reached == pytest.approx(policy.rate, rel=0.06)
    rules = [lambda lead, size=size: (size, None if lead >= size else float(size)) for size in (1, 2, 3, 4, 6, 8)]
    assert reached > 0.97 * max(rate_of(made, alpha, round_trip, rule) for rule in rules)
    assert reached > 0.99 / made.steps[0]


def test_cliffs():
    """A width that costs more than a wider one is never used: nothing until seven drafts are here, then eight rows."""
    policy = solve(inputs(0.9, interval=0.02, steps=tuple(0.04 * cost for cost in Q8_0)))
    used = {policy.drafts[then] for then in policy.then}
    assert not used & {1, 2, 3, 4, 5, 6}
    assert policy.wanted >= 7


@pytest.mark.fault("E4.39")
def test_off_where_drafting_does_not_pay():
    assert solve(inputs(0.05)).wanted == 0
    assert solve(inputs(0.9, step=0.0069, row=0.0069)).wanted == 0
    assert solve(inputs(0.75, step=0.0069, row=0.00015, round_trip=0.08)).wanted == 0
    good = inputs(0.5, round_trip=0.02)
    assert solve(good).wanted > 0
    assert solve(inputs(0.5, round_trip=0.02, alone=0.8 * good.steps[0])).wanted == 0


@pytest.mark.fault("E4.40")
def test_on_and_off_do_not_alternate():
    made = inputs(0.4, round_trip=0.08)
    promise = solve(made).rate * made.steps[0]
    between = made.steps[0] * 1.02 / promise
    there = inputs(0.4, round_trip=0.08, alone=between)
    on, off = solve(made), solve(inputs(0.05))
    assert (on.wanted > 0, off.wanted) == (True, 0)
    assert solve(there, on).wanted > 0
    assert solve(there, off).wanted == 0


@settings(max_examples=settings().max_examples // 4)
@given(
    alpha=st.floats(0.01, 0.99),
    costs=st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=17),
    interval=st.floats(1e-5, 2.0),
    round_trip=st.floats(0.0, 5.0),
)
def test_any_inputs(alpha, costs, interval, round_trip):
    """Whatever is measured: a policy in bounds, whose waits end with an arrival, never slower than the target alone."""
    made = PolicyInputs(tuple(costs), (alpha,) * len(costs), interval, round_trip + interval, costs[0])
    policy = solve(made)
    assert policy.rate >= 0.999 / costs[0]
    for at, then in enumerate(policy.then):
        assert 0 <= policy.drafts[at] <= max(policy.lead_at(at), 0)
        assert then >= at
        assert then == at or policy.lead_at(then) == pytest.approx(round(policy.lead_at(then)))
    for lower, upper in pairwise((-1e9, -3.3, 0.0, 0.99, 1.0, 17.2, 1e9)):
        assert policy.index(lower) <= policy.index(upper)


# --- many users in virtual time, by events


def costs(first: float = 0.030, each: float = 0.001, most: int = 33) -> StepCosts:
    found = StepCosts()
    for rows in range(1, most + 1):
        for _ in range(3):
            found.record(rows, first + each * (rows - 1))
    return found


SITE = Deployment(costs(), draft=0.005, round_trip=0.004)


@pytest.mark.parametrize(("alpha", "round_trip"), [(0.75, 0.0003), (0.9, 0.08)])
def test_the_promise_is_kept(alpha: float, round_trip: float):
    """Events, not averages, and still the rate that the policy promises; hardly below any fixed number of drafts; and
    acceptance that has to be learned costs little."""
    site = replace(SITE, draft=0.0052, round_trip=round_trip, solving=0.0)
    steps = tuple(SITE.costs.seconds(drafts + 1) for drafts in range(17))
    restart = round_trip + 1.5 * site.draft
    policy = solve(PolicyInputs(steps, (alpha,) * len(steps), site.draft, restart, steps[0]))

    def rate(known: bool, draft_n: int | None = None) -> float:
        chance = random.Random(3)
        luck = [chance.random() < alpha for _ in range(1100)]
        texts = Workload(1, 1000, draft_n)
        return Simulation(site, texts, 1, luck.__getitem__, (lambda _: policy) if known else None).run().total

    adaptive = rate(True)
    assert adaptive == pytest.approx(policy.rate, rel=0.08)
    assert adaptive > 0.97 * max(rate(False, fixed) for fixed in (2, 4, 8))
    assert rate(False) > 0.94 * adaptive


# --- measured costs of a step


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


def test_median_ignores_outliers_and_the_distant_past():
    costs = StepCosts()
    for value in (1.0, 1.0, 50.0, 1.0, 1.0) * 200:
        costs.record(2, value)
        assert costs.seconds(2) == 1.0
    for _ in range(100):
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


def test_a_line_goes_on_from_half_as_many_rows():
    assert measured({1: 1.0, 16: 8.0, 25: 12.0, 32: 12.0}).seconds(64) == 20.0


def test_steps_beside_a_drafter_are_as_much_slower_as_those_that_were_measured():
    """The first measurement counts half, and none more than threads explain."""
    costs = measured({1: 10.0, 4: 16.0})
    costs.split(2.0)
    costs.record(1, 14.0)
    assert [costs.seconds(rows) for rows in (1, 4)] == [12.0, 16.0 * 1.2]
    for _ in range(9):
        costs.record(1, 100.0)
    costs.alone.record(4, 18.0)
    assert [costs.seconds(rows) for rows in (1, 4)] == [100.0, 2 * 17.0]
    assert costs.alone.tables() == {0: {1: 10.0, 4: 17.0}}
    costs.join()
    assert [costs.seconds(rows) for rows in (1, 4)] == [10.0, 17.0]
