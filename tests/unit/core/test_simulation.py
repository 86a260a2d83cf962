"""Many users in virtual time: known answers, bounds, and what must not matter. Not how fast anything is."""

import random
from dataclasses import replace

import pytest

from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.simulation import Deployment, Simulation, Workload


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
        luck = [chance.random() < alpha for _ in range(2100)]
        texts = Workload(1, 2000, draft_n)
        return Simulation(site, texts, 1, luck.__getitem__, (lambda _: policy) if known else None).run().total

    adaptive = rate(True)
    assert adaptive == pytest.approx(policy.rate, rel=0.08)
    assert adaptive > 0.97 * max(rate(False, fixed) for fixed in (2, 4, 8))
    assert rate(False) > 0.94 * adaptive
