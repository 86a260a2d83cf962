"""Many users in virtual time: known answers, bounds, and what must not matter. Not how fast anything is."""

import random
from dataclasses import replace

import pytest

from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.simulation import Deployment, Forecast, Workload, simulate

TEXTS = Workload(prompt=1, tokens=60)
ALONE = replace(TEXTS, draft_n=0)


def costs(first: float = 0.030, each: float = 0.001, most: int = 33) -> StepCosts:
    found = StepCosts()
    for rows in range(1, most + 1):
        for _ in range(3):
            found.record(rows, first + each * (rows - 1))
    return found


SITE = Deployment(costs(), draft=0.005, round_trip=0.004)


def run(site: Deployment, texts: Workload, users: int, seed: int = 1, alpha: float = 0.75) -> Forecast:
    chance = random.Random(seed)
    return simulate(site, texts, users, lambda _: chance.random() < alpha)


def test_one_user_alone():
    found = run(replace(SITE, pause=0.002), ALONE, 1)
    assert found.total == found.mean == found.slowest
    assert found.total == pytest.approx(1 / 0.032, rel=0.02)
    assert (found.users, found.rows, found.drafts, found.acceptance) == (1, 1.0, 0.0, None)
    assert found.busy == pytest.approx(30 / 32, rel=0.01)


@pytest.mark.parametrize(("alpha", "round_trip"), [(0.75, 0.0003), (0.75, 0.08), (0.9, 0.005)])
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
        return simulate(site, texts, 1, luck.__getitem__, (lambda _: policy) if known else None).total

    adaptive = rate(True)
    assert adaptive == pytest.approx(policy.rate, rel=0.08)
    assert adaptive > 0.97 * max(rate(False, fixed) for fixed in (1, 2, 3, 4, 6, 8))
    assert rate(False) > 0.94 * adaptive


def test_a_drafter_that_is_never_right_costs_little():
    for users, tokens in ((1, 400), (4, 120)):
        found = run(SITE, replace(TEXTS, tokens=tokens), users, alpha=0.0)
        assert found.total > 0.9 * run(SITE, ALONE, users).total


def test_places():
    """Users beyond the verifier's places wait, in order: all together get what so many users would."""
    found = run(replace(SITE, places=2), ALONE, 6)
    assert found.total == pytest.approx(run(SITE, ALONE, 2).total, rel=0.1)
    assert found.slowest > 0.5 * found.mean


def test_the_same_luck_is_the_same_forecast():
    before = SITE.costs.table()
    short = Workload(1, 16)
    assert run(SITE, short, 2) == run(SITE, short, 2)
    assert run(SITE, short, 2) != run(SITE, short, 2, seed=2)
    assert SITE.costs.table() == before
