"""By the clock: drafting in crowds goes on only where it is faster."""

import pytest

from specmesh.core.contest import COLD, LONGEST, SETTLE, SPAN, WITH, WITHOUT, Contest, Contests

STEPS_WITH, STEPS_WITHOUT = WITH // 16, WITHOUT // 16
"""Of sixteen sessions."""


def run(contest: Contest, steps: int, gain: float) -> list[bool]:
    """Whether each of so many steps had drafts, which commit twice the tokens in 2 / gain of the time."""
    drafted = []
    for _ in range(steps):
        drafted.append(contest.drafts)
        tokens, seconds = (32, 0.02 / gain) if contest.drafts else (16, 0.01)
        contest.stepped(16, tokens, seconds, drafting=contest.drafts)
    return drafted


def rate(drafted: list[bool], gain: float) -> float:
    """Tokens per second over all these steps, over those of the target alone."""
    tokens = sum(32 if with_drafts else 16 for with_drafts in drafted)
    seconds = sum(0.02 / gain if with_drafts else 0.01 for with_drafts in drafted)
    return tokens / seconds / 1600


def test_what_is_slower_is_left_out():
    """It costs the first comparison, and ever rarer ones after it."""
    drafted = run(Contest(), 20_000, gain=0.7)
    assert drafted[: SETTLE + STEPS_WITH] == [True] * (SETTLE + STEPS_WITH)
    assert not any(drafted[SETTLE + STEPS_WITH : SETTLE + STEPS_WITH + SPAN])
    assert rate(drafted, 0.7) > 0.98
    assert rate(drafted[:1000], 0.7) > 0.93


def test_what_is_faster_goes_on():
    """Little is lost by looking what it would be without."""
    drafted = run(Contest(), 20_000, gain=1.5)
    assert drafted.count(False) == pytest.approx((SETTLE + STEPS_WITHOUT) * 8, abs=2 * (SETTLE + STEPS_WITHOUT))
    assert drafted[-1]


def test_it_is_noticed_when_that_changes():
    """After the longest span, at most."""
    contest = Contest()
    run(contest, 40_000, gain=0.7)
    assert any(run(contest, LONGEST + SETTLE + STEPS_WITH, gain=1.5))
    assert run(contest, LONGEST, gain=1.5)[-1]
    assert not all(run(contest, 2 * LONGEST, gain=0.7))
    assert not run(contest, 1, gain=0.7)[-1]


def test_steps_for_which_nobody_wanted_drafts_say_nothing():
    """Nothing is compared, so nothing is turned off."""
    contest = Contest()
    for _ in range(1000):
        contest.stepped(16, 16, 1.0, drafting=False)
    assert contest.drafts


def test_each_size_of_crowd_has_its_own():
    """What holds for sixteen does not for two; three are as two."""
    contests = Contests()
    for _ in range(SETTLE + STEPS_WITH):
        contests.stepped(16, 32, 0.01, drafting=True)
    assert [contests.drafts(size) for size in (2, 3, 8, 16, 31, 32)] == [True, True, True, False, False, True]


def test_drafters_may_get_ready_first():
    """Steps before the first draft comes count for nothing, but for so many: it may never come."""

    def until_compared(drafts: bool, cold: int) -> int:
        contest, steps = Contest(), 0
        while contest.drafts:
            steps += 1
            contest.stepped(16, 16, 1.0, drafting=True, drafts=drafts and steps > SETTLE + cold)
        return steps

    assert until_compared(drafts=True, cold=0) == SETTLE + STEPS_WITH
    assert until_compared(drafts=True, cold=10) == SETTLE + 10 + STEPS_WITH
    assert until_compared(drafts=False, cold=0) == SETTLE + COLD + STEPS_WITH


def test_refusing_is_more_than_trying_without():
    """While the two are compared nothing is known; while it is compared again, what was."""
    contest, refused = Contest(), []
    while not contest.decided:
        refused.append(contest.refuses)
        contest.stepped(16, 16, 0.01 + contest.drafts, drafting=contest.drafts)
    assert not any(refused)
    assert contest.refuses
    while not contest.drafts:
        contest.stepped(16, 16, 0.01, drafting=False)
    assert not contest.refuses


@pytest.mark.parametrize(("gain", "pays"), [(1.0, False), (1.005, False), (1.02, True)])
def test_drafts_must_give_more(gain: float, pays: bool):
    """As much is too little: the work for it is a machine's, and somebody's."""
    contest = Contest()
    while not contest.decided:
        run(contest, 1, gain)
    assert contest.drafts == pays
