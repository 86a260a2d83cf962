"""The closed form by which drafters are compared."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.drafting.drafter_pool import usefulness

STEP, ROW = 0.030, 0.001


def drafter(rate: float, interval: float, round_trip: float, step: float = STEP, row: float = ROW) -> PolicyInputs:
    """One whose drafts stand with this probability, come so often, from so far."""
    steps = tuple(step + row * drafts for drafts in range(17))
    return PolicyInputs(steps, (rate,) * 17, interval, round_trip + 1.5 * interval, step)


PROFILES = [drafter(*one) for one in product((0.3, 0.6, 0.8, 0.95), (0.002, 0.008, 0.025), (0.0005, 0.02, 0.08))]


def test_it_ranks_drafters_as_the_solved_policies_do():
    """Near and far, fast and slow, right and wrong: where two differ by a tenth, the closed form agrees which is
    better. Within a tenth it is the policy's own rate."""
    ranked = [(solve(inputs).rate, usefulness(inputs)) for inputs in PROFILES]
    for solved, found in ranked:
        assert found == pytest.approx(solved, rel=0.1)
    for (one, first), (other, second) in combinations(ranked, 2):
        if one > 1.1 * other:
            assert first > second
        if other > 1.1 * one:
            assert second > first


@pytest.mark.parametrize(
    "useless",
    [drafter(0.0, 0.002, 0.0005), drafter(0.9, 1.0, 0.0005), drafter(0.5, 0.01, 0.0005, step=0.001, row=0.001)],
    ids=["always wrong", "slower than the target", "each row costs a step"],
)
def test_a_useless_drafter_is_worth_the_target_alone(useless: PolicyInputs):
    """Never less: nobody has to draft."""
    assert usefulness(useless) == pytest.approx(1 / useless.alone)


def test_certain_drafts():
    """A drafter that is always right is worth what the widest step gives, near enough."""
    perfect = drafter(1.0, 0.0005, 0.0005)
    assert usefulness(perfect) == pytest.approx(17 / perfect.steps[-1], rel=0.02)


times = st.sampled_from([1e-6, 1e-4, 0.01, 1.0, 1e4])


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 1), times, times, times, times)
def test_whatever_is_measured_it_is_a_rate(rate: float, step: float, row: float, interval: float, restart: float):
    """Finite, and no less than the target alone, for times that no pair has and for those that a liar brings about."""
    inputs = PolicyInputs(tuple(step + row * n for n in range(17)), (rate,) * 17, interval, restart, step)
    assert 1 / step <= usefulness(inputs) < float("inf")
