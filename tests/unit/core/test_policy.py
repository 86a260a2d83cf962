"""The step policy: the process that it solves, corners with a known answer, simulations."""

import functools
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from harness.sessions import measured
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.simulation import Deployment, Simulation, Workload

MOST, AHEAD = 16, 48  # drafts of a step, and that a drafter is ahead at most
Q8_0 = (1.0, 2.5, 3.4, 4.2, 4.9, 5.3, 4.4, 3.5, *(3.6 + 0.2 * k for k in range(9)))
"""Relative costs of 1, 2, ... rows with a cliff: seven rows cost more than eight."""


def inputs(
    alpha, step=0.0342, row=0.001, interval=0.0052, round_trip=0.005, steps=None, undrafted_s=None
):
    if steps is None:
        steps = tuple(step + row * k for k in range(MOST + 1))
    return PolicyInputs(
        steps=steps,
        rates=(alpha,) * (MOST + 1),
        interval=interval,
        restart=round_trip + 1.5 * interval,
        undrafted_s=undrafted_s or steps[0],
    )


# --- the process itself

NETWORKS = pytest.mark.parametrize("round_trip", [0.0003, 0.005, 0.02, 0.08])
TIMES = pytest.mark.parametrize(
    ("step", "row", "interval"), [(0.0342, 0.001, 0.0052), (0.052, 0.0016, 0.0033)]
)
ALPHAS = pytest.mark.parametrize("alpha", [0.5, 0.75, 0.9])


def rate_of(made, alpha, round_trip, decide):
    """Tokens per second if decide(lead) returns the drafts and the lead to wait for, or None."""
    chance = random.Random(5)
    now = 0.0
    tokens = 0
    behind = round_trip
    held = 0
    while tokens < 6000:
        lead = min((now - behind) / made.interval - held, AHEAD)
        drafts, until = decide(lead)
        if until is not None:
            now += max(until - lead, 1e-6) * made.interval
            continue
        now += made.steps[drafts]
        accepted = 0
        while accepted < drafts and chance.random() < alpha:
            accepted += 1
        tokens += accepted + 1
        if accepted == drafts and chance.random() < alpha:
            held += drafts + 1
            behind = max(behind, now - (AHEAD + held) * made.interval)
        else:
            behind = now + round_trip + chance.random() * made.interval
            held = 0
    return tokens / now


@functools.cache
def reached(alpha, step, row, interval, round_trip):
    """Return the tokens per second of the process by its policy, and those of the forecast."""
    made = inputs(alpha, step, row, interval, round_trip)
    policy = solve(made)

    def decide(lead):
        at = policy.index_of(lead)
        then = policy.then[at]
        return policy.drafts[then], None if then == at else policy.lead_at(then)

    return rate_of(made, alpha, round_trip, decide), policy.rate


@NETWORKS
@TIMES
@ALPHAS
def test_a_policy_keeps_its_promise(alpha, step, row, interval, round_trip):
    rate, promised = reached(alpha, step, row, interval, round_trip)
    assert rate == pytest.approx(promised, rel=0.06)


@NETWORKS
@TIMES
@ALPHAS
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_a_policy_is_as_fast_as_a_fixed_length(alpha, step, row, interval, round_trip, size):
    rate, _ = reached(alpha, step, row, interval, round_trip)
    made = inputs(alpha, step, row, interval, round_trip)
    fixed = rate_of(
        made, alpha, round_trip, lambda lead: (size, None if lead >= size else float(size))
    )
    assert rate > 0.97 * fixed


# --- drafts of another source beside it

LEADS = pytest.mark.parametrize("lead", [-4.0, -1.5, 0.0])


@NETWORKS
@LEADS
def test_a_step_without_drafts_gains_nothing_on_the_policy(round_trip, lead):
    made = inputs(0.75, round_trip=round_trip)
    policy = solve(made)
    assert policy.gain_of(lead, [], made.steps[0]) < 0.01


@NETWORKS
@LEADS
def test_drafts_that_are_right_gain_at_the_price_of_a_step_without(round_trip, lead):
    made = inputs(0.75, round_trip=round_trip)
    policy = solve(made)
    before = policy.gain_of(lead, [], made.steps[0])
    assert policy.gain_of(lead, [1.0], made.steps[0]) > before


@NETWORKS
@LEADS
def test_drafts_gain_less_the_more_seconds_they_take(round_trip, lead):
    made = inputs(0.75, round_trip=round_trip)
    policy = solve(made)
    gains = [policy.gain_of(lead, [0.6], seconds) for seconds in (0.035, 0.05, 0.07, 0.2)]
    assert gains == sorted(gains, reverse=True)


# --- corners

CLIFF = solve(inputs(0.9, interval=0.02, steps=tuple(0.04 * cost for cost in Q8_0)))


def test_a_width_that_costs_more_than_a_wider_one_is_never_used():
    used = {CLIFF.drafts[then] for then in CLIFF.then}
    assert not used & {1, 2, 3, 4, 5, 6}


def test_a_wider_step_beyond_a_cliff_is_used():
    assert CLIFF.wanted >= 7


@pytest.mark.fault("E4.39")
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(inputs(0.05), id="nearly all are rejected"),
        pytest.param(inputs(0.9, step=0.0069, row=0.0069), id="a row costs as much as a step"),
        pytest.param(
            inputs(0.75, step=0.0069, row=0.00015, round_trip=0.08), id="the network is too slow"
        ),
        pytest.param(
            inputs(0.5, round_trip=0.02, undrafted_s=0.8 * 0.0342), id="a step alone is faster"
        ),
    ],
)
def test_off_where_drafting_does_not_pay(made):
    assert solve(made).wanted == 0


def test_on_where_drafting_pays():
    assert solve(inputs(0.5, round_trip=0.02)).wanted > 0


ON = solve(inputs(0.4, round_trip=0.08))
OFF = solve(inputs(0.05))
BETWEEN = inputs(0.4, round_trip=0.08, undrafted_s=1.02 / ON.rate)
"""Drafting promises more than is needed to go on, and less than is needed to begin."""


@pytest.mark.fault("E4.40")
@pytest.mark.parametrize(("start", "wanted"), [(ON, True), (OFF, False)], ids=["on", "off"])
def test_on_and_off_do_not_alternate(start, wanted):
    assert (solve(BETWEEN, start).wanted > 0) == wanted


# --- any inputs

any_inputs = st.builds(
    lambda alpha, costs, interval, round_trip: PolicyInputs(
        steps=tuple(costs),
        rates=(alpha,) * len(costs),
        interval=interval,
        restart=round_trip + interval,
        undrafted_s=costs[0],
    ),
    alpha=st.floats(0.01, 0.99),
    costs=st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=17),
    interval=st.floats(1e-5, 2.0),
    round_trip=st.floats(0.0, 5.0),
)
FEW = settings(max_examples=settings().max_examples // 4)


@FEW
@given(any_inputs)
def test_a_policy_promises_no_less_than_the_target_alone(made):
    assert solve(made).rate >= 0.999 / made.steps[0]


@FEW
@given(any_inputs)
def test_a_policy_steps_with_drafts_in_hand(made):
    policy = solve(made)
    for at, drafts in enumerate(policy.drafts):
        assert 0 <= drafts <= max(policy.lead_at(at), 0)


@FEW
@given(any_inputs)
def test_a_policy_waits_for_an_arrival(made):
    policy = solve(made)
    for at, then in enumerate(policy.then):
        arrival = policy.lead_at(then)
        assert then == at or (then > at and arrival == pytest.approx(round(arrival)))


@FEW
@given(any_inputs)
def test_a_longer_lead_has_no_lower_index(made):
    policy = solve(made)
    for lower, upper in pairwise((-1e9, -3.3, 0.0, 0.99, 1.0, 17.2, 1e9)):
        assert policy.index_of(lower) <= policy.index_of(upper)


# --- events in virtual time

COSTS = measured({rows: 0.029 + 0.001 * rows for rows in range(1, 34)})
SITE = Deployment(costs=COSTS, draft=0.0052, round_trip=0.004, solving=0.0)
SITES = pytest.mark.parametrize(("alpha", "round_trip"), [(0.75, 0.0003), (0.9, 0.08)])


def oracle(alpha, round_trip):
    """Return the policy for a known acceptance."""
    steps = tuple(COSTS.seconds(drafts + 1) for drafts in range(17))
    return solve(
        PolicyInputs(
            steps=steps,
            rates=(alpha,) * len(steps),
            interval=SITE.draft,
            restart=round_trip + 1.5 * SITE.draft,
            undrafted_s=steps[0],
        )
    )


@functools.cache
def simulated(alpha, round_trip, *, known=False):
    """Tokens per second of one user; `known`: by the oracle's policy."""
    chance = random.Random(3)
    luck = [chance.random() < alpha for _ in range(1100)]
    policy = oracle(alpha, round_trip)
    site = replace(SITE, round_trip=round_trip)
    texts = Workload(1, 1000, None)
    simulation = Simulation(site, texts, 1, luck.__getitem__, (lambda _: policy) if known else None)
    return simulation.run().total


@SITES
def test_a_policy_keeps_its_promise_in_a_simulation(alpha, round_trip):
    promised = oracle(alpha, round_trip).rate
    assert simulated(alpha, round_trip, known=True) == pytest.approx(promised, rel=0.08)


@SITES
def test_to_learn_the_acceptance_costs_little(alpha, round_trip):
    known = simulated(alpha, round_trip, known=True)
    assert simulated(alpha, round_trip) > 0.94 * known
