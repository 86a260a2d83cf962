"""The ideal pair: known answers, bounds, and the promise of the policy."""

import random

import pytest

from specmesh.core.ideal import Pair, ideal_seconds, solved

STEPS = tuple(0.0342 + 0.001 * k for k in range(17))


def lucky(alpha, tokens=3000):
    chance = random.Random(3)
    return [chance.random() < alpha for _ in range(tokens)]


def test_alone():
    """Without drafts a token costs a step."""
    assert ideal_seconds(Pair(STEPS, 0.005, 0.01), lucky(0.9, 100), None, 0) == pytest.approx(100 * STEPS[0])


def test_a_drafter_that_is_always_right():
    """Fixed drafts, a fast drafter, no distance: each step commits k + 1, but for the first, which comes too soon."""
    seconds = ideal_seconds(Pair(STEPS, 0.001, 0.0), [True] * 501, None, 4)
    assert seconds == pytest.approx(100 * STEPS[4], rel=0.03)


def test_a_drafter_that_is_always_wrong():
    """The policy lets it be."""
    pair = Pair(STEPS, 0.005, 0.01)
    policy = solved(pair, 0.05)
    assert ideal_seconds(pair, [False] * 300, lambda _: policy) < 1.01 * 300 * STEPS[0]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.75, 0.9])
def test_learning_costs_little(alpha):
    """Acceptance that has to be learned takes a few percent longer than where it is told."""
    pair, luck = Pair(STEPS, 0.0052, 0.005), lucky(alpha)
    policy = solved(pair, alpha)
    assert ideal_seconds(pair, luck) < 1.05 * ideal_seconds(pair, luck, lambda _: policy)


@pytest.mark.parametrize("round_trip", [0.0003, 0.005, 0.02, 0.08])
@pytest.mark.parametrize("alpha", [0.5, 0.75, 0.9])
def test_the_promise_is_kept(alpha, round_trip):
    """Events, not averages, and still the rate that the policy promises; never below any fixed number of drafts."""
    pair, luck = Pair(STEPS, 0.0052, round_trip), lucky(alpha)
    policy = solved(pair, alpha)
    adaptive = ideal_seconds(pair, luck, lambda _: policy)
    assert len(luck) / adaptive == pytest.approx(policy.rate, rel=0.05)
    assert adaptive < 1.02 * min(ideal_seconds(pair, luck, None, k) for k in (1, 2, 3, 4, 6, 8))
