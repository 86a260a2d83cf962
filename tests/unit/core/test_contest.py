"""By the clock: drafting in crowds goes on only where it is faster."""

import pytest

from specmesh.core.draft_length.gate import (
    COLD,
    FADING,
    LASTING,
    LEFT_OUT,
    LONGEST,
    SETTLE,
    SPAN,
    WITH,
    WITHOUT,
    Contest,
    Contests,
    SharedStep,
)

STEPS_WITH, STEPS_WITHOUT = WITH // 16, WITHOUT // 16
"""Of sixteen sessions."""


def run(contest: Contest, steps: int, gain: float) -> list[bool]:
    """Whether each of so many steps had drafts, which commit twice the tokens in 2 / gain of the time."""
    drafted = []
    for _ in range(steps):
        drafted.append(contest.drafts)
        tokens, seconds = (32, 0.02 / gain) if contest.drafts else (16, 0.01)
        contest.stepped(SharedStep(16, tokens, seconds, drafting=contest.drafts))
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
        contest.stepped(SharedStep(16, 16, 1.0, drafting=False))
    assert contest.drafts


def test_each_size_of_crowd_has_its_own():
    """What holds for sixteen does not for two; three are as two."""
    contests = Contests()
    for _ in range(SETTLE + STEPS_WITH):
        contests.stepped(SharedStep(16, 32, 0.01, drafting=True))
    assert [contests.drafts(size) for size in (2, 3, 8, 16, 31, 32)] == [True, True, True, False, False, True]


def share(contests: Contests, sessions: int, gain: float = 1.0) -> bool:
    """A step that so many share, with drafts if they are to ask for some, which give `gain` times the tokens; whether
    they were."""
    drafts = contests.drafts(sessions)
    contests.shared(sessions)
    contests.stepped(SharedStep(sessions, round(sessions * (gain if drafts else 1)), 0.01, drafting=drafts))
    return drafts


def pass_by(contests: Contests, sessions: int, steps: int) -> list[bool]:
    """Steps without drafts that so many share; whether each might have asked for some."""
    found = []
    for _ in range(steps):
        found.append(contests.drafts(sessions))
        contests.shared(sessions)
        contests.stepped(SharedStep(sessions, sessions, 0.01, drafting=False))
    return found


def decided(pays: bool, sessions: int = 16) -> Contests:
    """So many sessions have been compared, and have gone."""
    contests = Contests()
    while contests._of.get(sessions.bit_length(), Contest()).verdict is None:
        share(contests, sessions, 2 if pays else 1)
    contests.rest()
    return contests


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
    pass_by(contests, 3, LASTING)
    assert not contests.drafts(16)
    assert contests.refuse(16)
    assert not any(pass_by(contests, 16, LASTING))
    assert contests.drafts(16)


def test_a_crowd_lasts_while_one_after_the_other_ends_and_begins():
    """Where every twelfth step is of fifteen, it is compared again all the same."""
    contests = decided(pays=False)
    drafted = 0
    for number in range(3 * (SPAN + SETTLE + STEPS_WITH + STEPS_WITHOUT)):
        drafted += share(contests, 16 if number % 12 else 15)
    assert drafted >= STEPS_WITH


def test_a_crowd_does_not_last_through_one_that_is_left_alone():
    """Steps of one are of another size."""
    contests = decided(pays=False)
    pass_by(contests, 13, LASTING)
    assert contests.drafts(13)
    for _ in range(LASTING):
        contests.shared(1)
    assert not contests.drafts(13)


def test_steps_of_a_crowd_that_is_passed_over_say_nothing():
    """Somebody's own drafts are no trial."""
    contests = decided(pays=False)
    pass_by(contests, 13, LASTING // 2)
    for _ in range(WITH):
        assert not contests.drafts(13)
        contests.shared(7)
        for _ in range(FADING):
            contests.shared(13)
            contests.stepped(SharedStep(13, 13, 0.01, drafting=True, drafts=False, left_out=True))
    assert contests._of[4].verdict is None


def test_what_pays_is_not_doubted():
    """A crowd that did better with drafts has them from its first step on."""
    contests = decided(pays=True)
    assert contests.drafts(16)
    assert not contests.refuse(16)


def test_drafters_may_get_ready_first():
    """Steps before the first draft comes count for nothing, but for so many: it may never come."""

    def until_compared(drafts: bool, cold: int) -> int:
        contest, steps = Contest(), 0
        while contest.drafts:
            steps += 1
            contest.stepped(SharedStep(16, 16, 1.0, drafting=True, drafts=drafts and steps > SETTLE + cold))
        return steps

    assert until_compared(drafts=True, cold=0) == SETTLE + STEPS_WITH
    assert until_compared(drafts=True, cold=10) == SETTLE + 10 + STEPS_WITH
    assert until_compared(drafts=False, cold=0) == SETTLE + COLD + STEPS_WITH


def test_a_slow_drafter_of_a_few_is_compared():
    """What comes after sixty steps comes in time for two, whose comparison takes more than a hundred."""
    contest, steps = Contest(), 0
    while contest.verdict is None:
        steps += 1
        had = contest.drafts and steps > 60
        contest.stepped(SharedStep(2, 4 if had else 2, 0.01, drafting=contest.drafts, drafts=had))
    assert contest.verdict


def test_each_crowd_has_texts_to_be_read():
    """A drafter that was late for one is waited for by the next: as many steps as if it were the first."""
    contests = Contests()
    for _ in range(3):
        for _ in range(COLD + SETTLE - 2):
            contests.shared(2)
            contests.stepped(SharedStep(2, 2, 0.01, drafting=True, drafts=False))
        contests.rest()
    assert contests._of[2]._with.rounds == 0


def test_drafts_that_are_left_out_do_not_pay():
    """Luck is not asked: steps that are the same by chance took a little longer or shorter."""
    contest = Contest()
    for _ in range(2):
        for _ in range(SETTLE + LEFT_OUT):
            assert contest.drafts
            contest.stepped(SharedStep(16, 16, 0.001, drafting=True, drafts=False, left_out=True))
        assert contest.refuses
        while not contest.drafts:
            contest.stepped(SharedStep(16, 16, 1.0, drafting=False))


def test_drafts_that_are_left_out_at_times_are_compared():
    """What comes along counts, whatever is left out after it."""
    contest = Contest()
    for drafts in [True] * (SETTLE + 1) + [False] * (STEPS_WITH - 1):
        assert contest.drafts
        contest.stepped(SharedStep(16, 16, 0.001, drafting=True, drafts=drafts, left_out=not drafts))
    assert contest.verdict is None


def test_refusing_is_more_than_trying_without():
    """While the two are compared nothing is known; while it is compared again, what was."""
    contest, refused = Contest(), []
    while contest.verdict is None:
        refused.append(contest.refuses)
        contest.stepped(SharedStep(16, 16, 0.01 + contest.drafts, drafting=contest.drafts))
    assert not any(refused)
    assert contest.refuses
    while not contest.drafts:
        contest.stepped(SharedStep(16, 16, 0.01, drafting=False))
    assert not contest.refuses


@pytest.mark.parametrize(("gain", "pays"), [(1.0, False), (1.005, False), (1.02, True)])
def test_drafts_must_give_more(gain: float, pays: bool):
    """As much is too little: the work for it is a machine's, and somebody's."""
    contest = Contest()
    while contest.verdict is None:
        run(contest, 1, gain)
    assert contest.drafts == pays
