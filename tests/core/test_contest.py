"""By the clock: drafting in crowds goes on only where it is faster."""

import pytest

from specmesh.core.contest import COLD, LASTING, LEFT_OUT, LONGEST, SETTLE, SPAN, WITH, WITHOUT, Contest, Contests

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


def decided(pays: bool, sessions: int = 16) -> Contests:
    """So many sessions have been compared."""
    contests = Contests()
    while contests._of.get(sessions.bit_length(), Contest()).verdict is None:
        gain = 2 if contests.drafts(sessions) == pays else 1
        contests.stepped(sessions, gain * sessions, 0.01, drafting=contests.drafts(sessions))
    return contests


def pass_by(contests: Contests, sessions: int, steps: int) -> list[bool]:
    """Steps without drafts that so many share; whether each might have asked for some."""
    found = []
    for _ in range(steps):
        found.append(contests.drafts(sessions))
        contests.stepped(sessions, sessions, 0.01, drafting=False)
    return found


def test_a_smaller_crowd_than_one_that_does_better_alone_tries_once_it_lasts():
    """Crowds that come and go try nothing, however often; where more do better with drafts, fewer try at once."""
    contests = decided(pays=False)
    for _ in range(3):
        assert not any(pass_by(contests, 13, LASTING - 1))
        assert contests.refuse(13)
        assert not any(pass_by(contests, 7, LASTING - 1))
    assert not any(pass_by(contests, 13, LASTING))
    assert all(pass_by(contests, 9, 5))
    assert not contests.refuse(13)
    contests.rest()
    assert not contests.drafts(13)
    assert contests.drafts(32)
    assert contests.drafts(1)
    assert all(pass_by(decided(pays=True), 13, LASTING))


def test_a_crowd_tries_again_once_it_lasts():
    """The next comparison is due, and waits for a crowd that does not vanish."""
    contests = decided(pays=False)
    pass_by(contests, 16, SETTLE + SPAN + STEPS_WITHOUT)
    assert contests.drafts(16)
    pass_by(contests, 3, 1)
    assert not contests.drafts(16)
    assert contests.refuse(16)
    assert not any(pass_by(contests, 16, LASTING))
    assert contests.drafts(16)


def test_what_pays_is_not_doubted():
    """A crowd that did better with drafts has them from its first step on."""
    contests = decided(pays=True)
    contests.rest()
    assert contests.drafts(16)
    assert not contests.refuse(16)


def test_drafters_may_get_ready_first():
    """Steps before the first draft comes count for nothing."""
    for cold in (0, 10, COLD):
        contest, steps = Contest(), 0
        while contest.drafts:
            steps += 1
            contest.stepped(16, 16, 1.0, drafting=True, drafts=steps > SETTLE + cold)
        assert steps == SETTLE + cold + STEPS_WITH
        assert contest.verdict is None


@pytest.mark.parametrize(("left_out", "patience"), [(False, COLD + 1), (True, LEFT_OUT)])
def test_drafts_that_never_come_along_do_not_pay(left_out: bool, patience: int):
    """Luck is not asked: steps that are the same by chance took a little longer or shorter."""
    contest = Contest()
    for _ in range(2):
        for _ in range(SETTLE + patience):
            assert contest.drafts
            contest.stepped(16, 16, 0.001, drafting=True, drafts=False, left_out=left_out)
        assert contest.refuses
        while not contest.drafts:
            contest.stepped(16, 16, 1.0, drafting=False)


def test_drafts_that_are_left_out_at_times_are_compared():
    """What comes along counts, whatever is left out after it."""
    contest = Contest()
    for drafts in [True] * (SETTLE + 1) + [False] * (STEPS_WITH - 1):
        assert contest.drafts
        contest.stepped(16, 16, 0.001, drafting=True, drafts=drafts, left_out=not drafts)
    assert contest.verdict is None


def test_refusing_is_more_than_trying_without():
    """While the two are compared nothing is known; while it is compared again, what was."""
    contest, refused = Contest(), []
    while contest.verdict is None:
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
    while contest.verdict is None:
        run(contest, 1, gain)
    assert contest.drafts == pays
