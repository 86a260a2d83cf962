"""Many users in virtual time: known answers, bounds, and what must not matter. Not how fast anything is."""

import random
from dataclasses import replace

import pytest

from specmesh.core.costs import StepCosts
from specmesh.core.forecast import Forecast, Site, Texts, forecast
from specmesh.core.ideal import Pair, ideal_seconds

TEXTS = Texts(prompt=1, tokens=60)
ALONE = replace(TEXTS, draft_n=0)


def costs(first: float = 0.030, each: float = 0.001, most: int = 33) -> StepCosts:
    """Steps of 1 to `most` rows along a line."""
    found = StepCosts()
    for rows in range(1, most + 1):
        for _ in range(3):
            found.record(rows, first + each * (rows - 1))
    return found


SITE = Site(costs(), draft=0.005, round_trip=0.004, alpha=0.75)


def run(site: Site, texts: Texts, users: int, seed: int = 1) -> Forecast:
    return forecast(site, texts, users, random.Random(seed).random)


def test_one_user_alone():
    """A token a step, and nothing else takes time but the pause."""
    found = run(replace(SITE, pause=0.002), ALONE, 1)
    assert found.total == found.mean == found.slowest
    assert found.total == pytest.approx(1 / 0.032, rel=0.02)
    assert (found.users, found.rows, found.drafts, found.acceptance) == (1, 1.0, 0.0, None)
    assert found.busy == pytest.approx(30 / 32, rel=0.01)


def test_users_alone_share_steps():
    """As many tokens a step as there are users, at what a step of so many rows costs; all alike."""
    found = run(SITE, ALONE, 20)
    assert found.rows == pytest.approx(20, rel=0.05)
    assert found.total == pytest.approx(20 / 0.049, rel=0.05)
    assert found.slowest > 0.9 * found.mean


def test_prompts_take_rows_too():
    """What is prefilled costs time."""
    long = run(SITE, replace(ALONE, prompt=600), 4)
    assert long.total < 0.9 * run(SITE, ALONE, 4).total


def test_one_user_with_drafts_is_as_the_ideal_pair():
    """Two simulations of the same daemons, written apart."""
    found = run(SITE, replace(TEXTS, tokens=1000), 1)
    chance = random.Random(2)
    pair = Pair(tuple(SITE.costs.seconds(k + 1) for k in range(17)), SITE.draft, SITE.round_trip)
    luck = [chance.random() < SITE.alpha for _ in range(1000)]
    assert found.total == pytest.approx(1000 / ideal_seconds(pair, luck), rel=0.06)


def test_a_fixed_draft_stands_as_often_as_was_said():
    """Acceptance of one draft a step is alpha."""
    found = run(replace(SITE, alpha=0.6), Texts(1, 600, draft_n=1), 1)
    assert found.acceptance == pytest.approx(0.6, abs=0.06)
    assert found.drafts == pytest.approx(1 / 1.6, rel=0.1)


def test_a_drafter_that_is_never_right_costs_little():
    """The policy lets it be, with many users as with one."""
    site = replace(SITE, alpha=0.0)
    for users, tokens in ((1, 400), (4, 120)):
        assert run(site, replace(TEXTS, tokens=tokens), users).total > 0.9 * run(site, ALONE, users).total


def test_places():
    """Users beyond the verifier's places wait, in order: all together get what so many users would."""
    found = run(replace(SITE, places=2), ALONE, 6)
    assert found.total == pytest.approx(run(SITE, ALONE, 2).total, rel=0.1)
    assert found.slowest > 0.5 * found.mean


def test_a_shared_drafter():
    """Six users of one drafter that is slow have fewer drafts than with one each."""
    slow = replace(SITE, draft=0.02)
    fixed = Texts(1, 40, draft_n=2)
    assert run(replace(slow, drafters=1), fixed, 6).drafts < 0.8 * run(slow, fixed, 6).drafts


def test_the_same_luck_is_the_same_forecast():
    """Nothing but its arguments decides; the costs it was given do not change."""
    before = SITE.costs.table()
    short = Texts(1, 16)
    assert run(SITE, short, 2) == run(SITE, short, 2)
    assert run(SITE, short, 2) != run(SITE, short, 2, seed=2)
    assert SITE.costs.table() == before
