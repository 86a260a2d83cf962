"""The pace of one session: what it knows as it steps, and when the clock overrules the policy."""

from itertools import groupby, pairwise

import pytest

from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import Arrivals
from specmesh.core.draft_length.controller import FIRST_DRAFT_N, LONGEST_INTERVAL, SOLVE_INTERVAL, Pacing
from specmesh.core.draft_length.drafter_backoff import BENCHED, COMPARISON, LONGEST_BENCHED, TRIAL
from specmesh.core.draft_length.gate import Contest, SharedStep
from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.statistics import SessionTimes

STEP, ROW, INTERVAL = 0.010, 0.0005, 0.001


def pacing(*, pauses: bool = True) -> Pacing:
    """One that drafts: cheap drafts that mostly stand, as far as it knows."""
    costs, arrivals = StepCosts(), Arrivals()
    for rows in range(1, 10):
        costs.record(rows, STEP + ROW * (rows - 1))
    if pauses:
        for drafting in (False, True):
            costs.record_pause(0.0, drafting=drafting)
    arrivals.record_round_trip(0.0003)
    arrivals.record_restart(0.002, 1)
    arrivals.record_interval(INTERVAL, 1)
    made = Pacing(None, 8, costs, RollingAcceptance(), SessionTimes(0.0))
    made.attach(arrivals)
    steps = tuple(STEP + ROW * drafts for drafts in range(9))
    made.adopt(solve(PolicyInputs(steps, (0.9,) * 9, INTERVAL, 0.002, STEP)))
    assert made.policy is not None
    assert made.policy.wanted > 0
    return made


def rounds(pace: Pacing, count: int, seconds: float, start: float = 0.0) -> list[int]:
    """Rounds of so many seconds in which one of four drafts stands; what the drafter was asked for after each."""
    asked = []
    for number in range(1, count + 1):
        pace.stepped(2 * number, 2, 1, flushed=True, now=start + number * seconds)
        asked.append(pace.draft_n)
    return asked


def test_shadows_tell_that_a_drafter_is_faster_than_it_was():
    """Guesses of the ids it was last told shorten what a draft is believed to take; those of earlier ids do not."""
    pace = pacing()
    assert pace.arrivals is not None
    pace.told(40, 1.0)
    pace.shadowed(32, 8, 1.0004)
    assert pace.arrivals.interval == INTERVAL
    pace.shadowed(40, 8, 1.0004)
    pace.told(56, 1.1)
    pace.shadowed(56, 8, 1.1004)
    assert pace.arrivals.interval == pytest.approx(0.0004 / 8)


def test_a_step_is_expected_to_cost_what_it_does_in_this_context():
    """A long text makes steps dearer, whatever short ones cost."""
    pace = pacing()
    pace._costs.record(1, 0.025, context=5000)
    pause = pace._costs.pause(drafting=False)
    pace.plan(100, 0, 8, 0.0)
    assert pace.alone == STEP + pause
    pace.plan(5000, 0, 8, 1.0)
    assert pace.alone == 0.025 + pause


def reconsider(pace: Pacing, now: float) -> bool:
    """Whether a policy is wanted, which is solved then."""
    inputs = pace.unsolved(now)
    if inputs is not None:
        pace.adopt(solve(inputs, pace.policy))
    return inputs is not None


def test_policies_that_say_the_same_are_put_off_but_not_news():
    """While estimates move a little, policies are solved ever more rarely; once they have moved far, at once."""
    pace, solved = pacing(), [100.0]
    assert reconsider(pace, solved[0])
    for number in range(1, 400):
        now = solved[0] + number * SOLVE_INTERVAL
        for _ in range(31):  # as many as are remembered
            pace.arrivals.record_interval(INTERVAL * (1 + 0.1 * (number % 2)), 1)
        if reconsider(pace, now):
            solved.append(now)
    gaps = [after - before for before, after in pairwise(solved)]
    assert gaps[0] < LONGEST_INTERVAL / 8
    assert max(gaps) == pytest.approx(LONGEST_INTERVAL, abs=2 * SOLVE_INTERVAL)
    for _ in range(20):
        pace.judged(right=False)
    assert reconsider(pace, solved[-1] + SOLVE_INTERVAL / 2) is False
    assert reconsider(pace, solved[-1] + 1.5 * SOLVE_INTERVAL) is True


def test_a_drafter_that_measures_slower_is_benched():
    """Two tokens a round, and rounds take three steps' time: off after a trial, longer each time it fails again."""
    pace, now = pacing(), 0.0
    benched = BENCHED
    for _ in range(3):
        asked = rounds(pace, TRIAL + benched + 1, 3 * STEP, now)
        now += len(asked) * 3 * STEP
        assert all(asked[:TRIAL])
        assert asked.count(0) == benched
        assert asked[-1] > 0
        benched = min(2 * benched, LONGEST_BENCHED)


def test_a_drafter_that_measures_faster_stays():
    """Two tokens a round in little more than one step's time; what it failed before is forgotten."""
    pace = pacing()
    failed = rounds(pace, TRIAL + BENCHED + 1, 3 * STEP)
    assert 0 in failed
    now = len(failed) * 3 * STEP
    assert all(rounds(pace, 3 * TRIAL, 1.2 * STEP, now))
    now += 3 * TRIAL * 1.2 * STEP
    again = rounds(pace, 2 * TRIAL + BENCHED, 3 * STEP, now)
    off = [len(list(run)) for asked, run in groupby(again) if asked == 0]
    assert off[0] == BENCHED


def test_shared_steps_are_no_trial():
    """What a step took beside other sessions says nothing about this one's drafter."""
    pace = pacing()
    for number in range(1, 4 * TRIAL):
        pace.stepped(2 * number, 2, 2, flushed=True, now=number * 3 * STEP, sessions=2)
        assert pace.draft_n > 0


def test_a_crowd_wants_fewer_drafts():
    """Rows are cheap up to eight and dear beyond: what pays for one does not for eight, and does again alone."""
    pace = pacing()
    for rows in (8, 9, 16, 32, 64):
        pace._costs.record(rows, STEP + max(rows - 8, 0) * STEP, context=0)
    for number in range(1, 12):
        pace.stepped(2 * number, 2, 2, flushed=True, now=number * STEP, sessions=8)
        pace.alive()
    assert (pace.draft_n, pace.plan(24, 3, 8, 1.0), pace.unsolved(9.0)) == (0, (0, None), None)
    for number in range(12, 30):
        pace.stepped(2 * number, 2, 2, flushed=True, now=number * STEP)
    assert pace.draft_n > 0


def test_the_pause_without_drafting_is_measured_first():
    """A trial needs to know what the target alone takes, everything included: a few rounds without drafts show it."""
    pace = pacing(pauses=False)
    asked = rounds(pace, TRIAL + COMPARISON + 1, 1.2 * STEP)
    assert asked.count(0) == COMPARISON
    assert asked[-1] > 0


def test_a_trial_goes_on_over_short_spells():
    """Rounds with drafts count although there are others between them, which do not."""
    pace, now = pacing(), 0.0
    for number in range(1, 200):
        off = number % 10 > 6
        if off:
            pace.draft_n = 0
        now += (1 if off else 3) * STEP
        pace.stepped(number, 0 if off else 2, 0 if off else 1, flushed=True, now=now)
        if pace._bench.rounds:
            break
    assert TRIAL < number < 2 * TRIAL


def test_who_failed_a_trial_is_not_believed():
    """Guesses of known ids may be the text repeated: they count no more until a trial with drafts has been passed."""
    pace = pacing()
    slow = rounds(pace, TRIAL + 2, 3 * STEP)
    assert slow[-1] == 0
    before = pace.acceptance.pooled()
    pace.judged(right=True)
    assert pace.acceptance.pooled() == before
    rounds(pace, BENCHED + TRIAL + 2, STEP, (TRIAL + 2) * 3 * STEP)
    before = pace.acceptance.pooled()
    pace.judged(right=True)
    assert pace.acceptance.pooled() > before


def test_a_crowd_asks_for_drafts_only_while_that_is_faster():
    """Where the clock said no, steps that are shared ask for none; others do, and so do crowds of another size."""

    def asked(sessions: int) -> int:
        for number in range(15):
            pace.stepped(number, 0, 0, flushed=True, now=float(number), sessions=sessions)
        return pace.draft_n

    pace = pacing()
    assert asked(4) > 0
    while pace._costs.crowds.drafts(4):
        pace._costs.crowds.stepped(SharedStep(4, 4, 1.0, drafting=True))
    assert asked(4) == 0
    assert asked(2) > 0
    assert asked(4) == 0
    assert asked(1) > 0


def test_a_session_knows_the_crowd_that_it_joins():
    """Where the clock said no to a crowd of that size it asks for nothing from the start, nor in a smaller one that may
    be growing and of which nothing is known, and otherwise from the first step of such a crowd on; one that has gone is
    believed to have after some steps."""
    pace = pacing()
    costs = pace._costs

    def decide(sessions: int, *, pays: bool) -> None:
        contest = costs.crowds._of.setdefault(sessions.bit_length(), Contest())
        while contest.verdict is None:
            tokens = 2 * sessions if contest.drafts == pays else sessions
            contest.stepped(SharedStep(sessions, tokens, 1.0, drafting=contest.drafts))

    def joined(company: int, fixed: int | None = None) -> int:
        return Pacing(fixed, 8, costs, RollingAcceptance(), SessionTimes(0.0), company).draft_n

    decide(3, pays=True)
    decide(16, pays=False)
    assert [joined(size) for size in (4, 8, 16)] == [0, 0, 0]
    assert [joined(size) for size in (1, 2, 32)] == [FIRST_DRAFT_N] * 3
    assert joined(16, fixed=3) == 3
    assert pace.draft_n > 0
    pace.stepped(1, 0, 0, flushed=True, now=0.0, sessions=16)
    assert pace.draft_n == 0
    for sessions in (4, 8):
        decide(sessions, pays=False)
    spell = 0
    while pace.draft_n == 0:
        spell += 1
        pace.stepped(1 + spell, 0, 0, flushed=True, now=float(spell), sessions=1)
    assert 5 <= spell <= 20
