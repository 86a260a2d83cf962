"""When a session's step begins, and with how many drafts."""

import numpy as np
import pytest
from verifier_sessions import PROMPT, STEP, draft, logits, only, reconsider, session, step

from specmesh.core import events as ev
from specmesh.core.draft_length.gate import SharedStep
from specmesh.core.truth_sender import TELL_EVERY, TELL_SELDOM

# --- waiting


def test_waits_for_a_draft_that_pays_until_a_deadline():
    """A drafter at work is worth a short wait; the deadline stands, and after it the step runs alone."""
    made = session(draft_n=None, interval=0.002)
    draft(made, 1, now=1.0)
    plan = made.plan(1.0)
    assert isinstance(plan, ev.Wait)
    assert 1.002 < plan.until < 1.0 + STEP
    assert made.plan(plan.until - 1e-6) == plan
    assert made.plan(plan.until) == ev.Verify(2, 7, (1,))
    made.begin(plan.until)
    assert made.times.wait == pytest.approx(plan.until - 1.0)


def test_a_missed_deadline_is_the_last_until_the_drafter_speaks():
    """After a missed deadline nothing is waited for, with an adaptive as with a fixed number of drafts."""
    for draft_n in (None, 4):
        made = session(draft_n=draft_n, interval=0.002)
        draft(made, 1, now=1.0)
        until = made.plan(1.0).until
        assert isinstance(made.plan(until), ev.Verify)
        step(made, 9, 9, 9, now=until + STEP)
        for number in range(5):
            assert isinstance(made.plan(2.0 + number), ev.Verify)
            step(made, 9, 9, 9, now=2.0 + number)


def test_nothing_is_waited_for_without_a_drafter():
    """Before the drafter has drafted, after it is gone, and with draft_n = 0 the session steps at once."""
    assert isinstance(session(draft_n=None, interval=0.002).plan(1.0), ev.Verify)
    assert isinstance(session(draft_n=0, interval=0.002).plan(1.0), ev.Verify)
    for draft_n in (None, 4):
        made = session(draft_n=draft_n, interval=0.002)
        draft(made, 1, now=1.0)
        assert isinstance(made.plan(1.0), ev.Wait)
        made.handle(ev.Detached(), 1.0)
        assert not made.attached
        assert isinstance(made.plan(1.0), ev.Verify)
        assert not [e for e in step(made, 1, 9, now=1.0) if isinstance(e, ev.SendTruth)]


def test_slow_drafter_is_not_waited_for():
    """A draft that takes as long as a step is not waited for."""
    made = session(draft_n=None, interval=0.2)
    draft(made, 1, now=1.0)
    assert made.plan(1.0) == ev.Verify(2, 7, (1,))


@pytest.mark.fault("E2.26")
def test_waiting_that_never_paid_stops():
    """A drafter that makes the verifier wait and is always wrong is waited for no more than 1 % of the time."""
    made, now = session(draft_n=None, max_tokens=1000, n_ctx=2000, interval=0.002), 0.0
    for _ in range(300):
        draft(made, 1, now=now)
        plan = made.plan(now)
        now = plan.until if isinstance(plan, ev.Wait) else now
        draft(made, 2, after=(1,), now=now)
        step(made, 9, 9, 9, now=now)
        now += STEP
    assert made.times.wait < 0.015 * now


# --- how many drafts


def run(made, rounds, right, start=0):
    """So many rounds with a drafter that answers each truth in time with the drafts asked for; returns draft_n's."""
    asked = []
    for number in range(start, start + rounds):
        asked.append(made.draft_n)
        if made.draft_n:
            draft(made, *[1] * made.draft_n, now=number * STEP + 0.022)
        step(made, *[1 if right else 9] * 10, now=(number + 1) * STEP)
        reconsider(made, (number + 1) * STEP)
    return asked


def costly(rise):
    """A session for which every row beyond the first costs `rise` of a one-row step."""
    return session(draft_n=None, max_tokens=8000, n_ctx=9000, interval=0.002, rise=rise)


@pytest.mark.fault("E2.27")
def test_draft_n_falls_for_a_wrong_drafter_and_probes():
    """A drafter that is always wrong, where rows cost, is asked for nothing, but for a probe now and then."""
    made = costly(rise=1.0)
    asked = run(made, 400, right=False)[200:]
    assert set(asked) == {0, 1}
    assert 1 <= asked.count(1) <= 5
    assert made.counts.drafted < 60


def test_draft_n_comes_back():
    """After it was turned off, a drafter that has become right is found out by the probes and asked again."""
    made = costly(rise=0.1)
    assert run(made, 200, right=False)[-1] <= 1
    assert run(made, 300, right=True, start=200)[-1] > 2


def test_late_drafts_are_judged():
    """What came too late to be verified is compared with the text, each position once, as far as it agrees."""
    made = session(draft_n=None)
    for token in (1, 2, 3):
        step(made, token)
    rates = [made._pacing.acceptance.pooled()]

    def late(base, *ids):
        made.handle(ev.Drafted(base, made.prefix.crc_at(base), ids), 0.0)
        rates.append(made._pacing.acceptance.pooled())

    late(len(PROMPT), 1)
    assert rates[-1] > rates[-2]
    late(len(PROMPT), 1)
    assert rates[-1] == rates[-2]
    late(len(PROMPT) + 1, 9, 3)
    assert rates[-1] < rates[-2]
    made.handle(ev.Drafted(len(PROMPT) + 2, 77, (3,)), 0.0)
    assert made._pacing.acceptance.pooled() == rates[-1]


def test_shadows_are_judged():
    """Guesses for ids that are committed count, each position once, right or wrong, whatever stands before them;
    not those about the prompt, about another prefix, or beyond the text."""
    made = session(draft_n=None)
    for token in (1, 2, 3):
        step(made, token)
    n = len(PROMPT)

    def shadow(base, *ids, crc=None):
        before, stale = made._pacing.acceptance._tested[0], made.stale_drafts
        assert made.handle(ev.Shadowed(base, made.prefix.crc_at(base) if crc is None else crc, ids), 0.0) == []
        return made._pacing.acceptance._tested[0] != before, made.stale_drafts - stale

    assert shadow(0, *PROMPT) == (False, 0)
    assert shadow(n, 9, 2, crc=77) == (False, 1)
    low = made._pacing.acceptance.pooled()
    assert shadow(n, 9) == (True, 0)
    assert made._pacing.acceptance.pooled() < low
    low = made._pacing.acceptance.pooled()
    assert shadow(n, 9, 2) == (True, 0)
    assert made._pacing.acceptance.pooled() > low
    assert shadow(n, 1, 2) == (False, 0)
    assert shadow(n + 3, 5, 5) == (False, 0)
    assert shadow(n + 2, -1) == (True, 0)  # an id that cannot be is wrong, and reaches nothing
    made.handle(ev.Detached(), 0.0)
    step(made, 4)
    assert shadow(n + 3, 4) == (False, 1)


def test_shadows_bring_a_drafter_back():
    """A drafter that was turned off is asked again once its shadows are right, without any probe."""
    made = costly(rise=0.2)
    assert run(made, 120, right=False)[-1] <= 1
    base = len(made.prefix)
    for number in range(120, 120 + TELL_EVERY):
        step(made, 1, now=(number + 1) * STEP)
    assert made.draft_n == 0
    made.handle(ev.Shadowed(base, made.prefix.crc_at(base), (1,) * TELL_EVERY), 0.0)
    reconsider(made, 500 * STEP)
    step(made, 1, now=501 * STEP)
    assert made.draft_n > 0


def test_the_clock_decides():
    """Where rounds with drafts take longer than their estimates say, the drafter is let be, for longer each time."""
    made = session(draft_n=None, max_tokens=8000, n_ctx=9000, interval=0.002)
    slow, asked, now = 4 * STEP, [], 0.0
    for _ in range(600):
        asked.append(made.draft_n)
        if made.draft_n:
            draft(made, *[1] * made.draft_n, now=now + 0.022)
        step(made, 1, 9, 9, 9, now=now + (slow if asked[-1] else STEP))
        now += slow if asked[-1] else STEP
        reconsider(made, now)
    assert all(asked[:30])
    assert asked.count(0) > 400


def test_fixed_draft_n_stays():
    """A client's own draft_n is never adapted."""
    made = session(draft_n=3, interval=0.002)
    for number in range(20):
        draft(made, 1, 1, 1, now=number)
        assert only(step(made, 9, 9, 9, 9, now=number), ev.SendTruth).draft_n == 3


def test_a_wrong_draft_shows_life_too():
    """A fixed draft_n waits for a drafter whose first drafts were overtaken; one on a foreign prefix shows nothing."""
    made = session(draft_n=4)
    step = np.zeros((1, 16), dtype=np.float32)
    step[0, 5] = 1.0
    made.handle(ev.Stepped((), step, STEP), 1.0)
    base = len(made.prefix) - 1
    made.handle(ev.Drafted(base, made.prefix.crc_at(base) ^ 1, (9,)), 1.0)
    assert isinstance(made.plan(1.0), ev.Verify)
    made.handle(ev.Drafted(base, made.prefix.crc_at(base), (9,)), 1.0)
    assert isinstance(made.plan(1.0), ev.Wait)
    assert made.stale_drafts == 2


def test_a_crowd_that_does_better_alone_tells_seldom():
    """Its drafter would guess for nothing, perhaps on the target's own cores; where the clock has not said so, or only
    of other crowds, it is told as often as ever."""
    made = session(draft_n=None, max_tokens=400, n_ctx=500)
    crowds = made._costs.crowds
    while not crowds.refuse(16):
        crowds.stepped(SharedStep(16, 16, 1.0 + crowds.drafts(16), drafting=crowds.drafts(16)))

    def told(sessions):
        """Ids of the next TRUTHs but one, in steps that so many share."""
        found = []
        while len(found) < 2:
            effects = made.handle(ev.Stepped((), logits(1), STEP, sessions), 0.0)
            found += [len(effect.ids) for effect in effects if isinstance(effect, ev.SendTruth)]
        return found[1]

    assert told(16) == TELL_SELDOM
    made._pacing._bench.rounds = 10**6
    for _ in range(40):
        made.handle(ev.Stepped((), logits(1), STEP, 1), 0.0)
    assert told(1) == TELL_EVERY
