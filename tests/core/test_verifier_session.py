"""One session at the verifier, event by event."""

from dataclasses import replace

import numpy as np
import pytest

from specmesh.core import events as ev
from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.arrivals import Arrivals
from specmesh.core.costs import StepCosts
from specmesh.core.held_drafts import NACK_INTERVAL
from specmesh.core.penalties import Penalties
from specmesh.core.places import NOTHING, Memory
from specmesh.core.policy import solve
from specmesh.core.prefix import Prefix
from specmesh.core.proposal import Offer, Proposal
from specmesh.core.sampling import SamplingParams
from specmesh.core.second import Second, rescues
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.side import Side
from specmesh.core.strategy import Strategy
from specmesh.core.telling import TELL_EVERY, TELL_SELDOM
from specmesh.core.verifier_session import VerifierSession

END = 0
PROMPT = (5, 6, 7)
STEP = 0.03


def test_what_is_in_memory_is_not_read_again():
    """A session begins behind what its sequence holds; of all but the last id, with a step."""
    limits, params = TargetLimits(64, 16, frozenset({END})), SessionParams(GREEDY, 10)
    for held, plan in ((0, ev.Prefill(0, (5, 6))), (1, ev.Prefill(1, (6,))), (2, ev.Verify(2, 7, ()))):
        made = VerifierSession(PROMPT, params, limits, StepCosts(), RollingAcceptance(), 0.0, held=held)
        assert made.plan(0.0) == plan
        assert made.cached == held
        assert made.memory == Memory([5, 6][:held], 2)


def test_what_is_left_for_others():
    """All but the last id, however the text ends; nothing of a session that is for itself."""
    for cached in (True, False):
        params = SessionParams(GREEDY, 2, cache_prompt=cached)
        made = VerifierSession(
            PROMPT, params, TargetLimits(64, 16, frozenset({END})), StepCosts(), RollingAcceptance(), 0.0
        )
        made.handle(ev.Prefilled(2), 0.0)
        made.handle(ev.Stepped((9,), logits(8, 3), 0.1), 0.1)
        assert made.memory == (Memory([5, 6, 7], 2) if cached else NOTHING)
        made.handle(ev.Stepped((9,), logits(9, 3), 0.1), 0.1)
        assert made.finished == "length"
        assert made.memory == (Memory([5, 6, 7, 8], 2) if cached else NOTHING)


def crc(*ids):
    """CRC-32 of a prefix."""
    return Prefix(ids).crc


GREEDY = SamplingParams()


def logits(*tokens):
    """Rows in which these tokens are the largest."""
    rows = np.zeros((len(tokens), 16), np.float32)
    rows[np.arange(len(tokens)), tokens] = 9.0
    return rows


def session(
    draft_n=4, max_tokens=100, n_ctx=64, max_drafts=8, interval=None, filled=True, rise=0.0, stop=(), sampling=GREEDY
):
    """A session on PROMPT with its memory filled, attached to a drafter of a known interval (20 ms round trip)."""
    costs = StepCosts()
    costs.record_pause(0.0, drafting=False)
    for rows in (1, 9):
        costs.record(rows, STEP * (1 + rise * (rows - 1)))
    limits = TargetLimits(n_ctx, 16, frozenset({END}), max_drafts, [b"%d" % token for token in range(16)])
    params = SessionParams(sampling, max_tokens, draft_n, stop)
    made = VerifierSession(PROMPT, params, limits, costs, RollingAcceptance(), 0.0)
    if filled:
        made.handle(ev.Prefilled(len(PROMPT) - 1), 0.0)
    arrivals = Arrivals()
    if interval is not None:
        arrivals.record_round_trip(0.02)
        arrivals.record_restart(0.02 + interval, 1)
        arrivals.record_interval(interval, 1)
    made.attach(arrivals)
    reconsider(made, 0.0)
    return made


def reconsider(made, now):
    """Solve a policy for the session, if it wants one."""
    inputs = made.unsolved(now)
    if inputs is not None:
        made.adopt(solve(inputs, made.policy))


def draft(made, *ids, now=0.0, after=()):
    """A DRAFT on what is committed, followed by the drafts in `after`."""
    prefix = (*made.prefix[0 : len(made.prefix)], *after)
    return made.handle(ev.Drafted(len(prefix), crc(*prefix), ids, 0), now)


def step(made, *says, now=0.0):
    """Run the session's plan with a target that says this, row by row; returns the effects."""
    plan = made.plan(now)
    plan = plan if isinstance(plan, ev.Verify) else made.verify()
    made.begin(now)
    rows = logits(*says[: len(plan.drafts) + 1])
    return made.handle(ev.Stepped(plan.drafts, rows, STEP), now)


def only(effects, kind):
    """The one effect of a kind."""
    (effect,) = [effect for effect in effects if isinstance(effect, kind)]
    return effect


# --- plans


def test_prompt_goes_in_but_for_its_last_id():
    """Prefill asks for what memory lacks, up to the last id, which the first verification carries."""
    made = session(filled=False)
    assert made.plan(0.0) == ev.Prefill(0, (5, 6))
    made.handle(ev.Prefilled(1), 0.0)
    assert made.plan(0.0) == ev.Prefill(1, (6,))
    made.handle(ev.Prefilled(1), 0.0)
    assert made.plan(0.0) == ev.Verify(2, 7, ())


def test_one_id_prompt_needs_no_prefill():
    """A prompt of one id is verified at once."""
    params, limits = SessionParams(SamplingParams(), 9), TargetLimits(64, 16, frozenset())
    made = VerifierSession((5,), params, limits, StepCosts(), RollingAcceptance(), 0.0)
    assert made.plan(0.0) == ev.Verify(0, 5, ())


def test_drafts_in_hand_are_verified():
    """Drafts on the committed prefix, and drafts on those, come into the next step in order."""
    made = session()
    draft(made, 1, 2)
    draft(made, 3, 4, 8, after=(1, 2))
    assert made.lead == 5
    assert made.plan(0.0) == ev.Verify(2, 7, (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("limits", "drafts"),
    [({}, 4), ({"max_drafts": 2}, 2), ({"max_drafts": 0}, 0), ({"max_tokens": 3}, 2), ({"n_ctx": 5}, 1)],
    ids=str,
)
@pytest.mark.fault("E7.80")
def test_drafts_never_exceed_what_may_be_committed(limits, drafts):
    """A step takes no more drafts than the target allows, nor than there is room for beside the target's own token."""
    made = session(**limits)
    draft(made, 1, 2, 3, 4, 8)
    assert len(made.plan(1.0).drafts) == drafts


# --- steps


def test_correction():
    """The first draft that differs ends the round: truth goes out, memory is cut, the client sees it."""
    made = session()
    draft(made, 1, 2, 3, 4)
    effects = step(made, 1, 2, 9, 9, 9)
    truth = only(effects, ev.SendTruth)
    assert (truth.base, truth.crc, truth.ids) == (3, crc(*PROMPT), (1, 2, 9))
    assert only(effects, ev.Trim) == ev.Trim(5)
    emit = only(effects, ev.Emit)
    assert (emit.ids, emit.accepted, emit.drafts, emit.tested) == ((1, 2, 9), 2, (1, 2, 3, 4), 3)
    assert made.lead == 0
    assert made.plan(9.0) == ev.Verify(5, 9, ())


def test_bonus_and_what_was_drafted_ahead():
    """A fully accepted round commits the target's next token too; drafts beyond it that agree stay in hand."""
    made = session()
    draft(made, 1, 2, 3, 4, 8, 9)
    effects = step(made, 1, 2, 3, 4, 8)
    assert only(effects, ev.Emit).ids == (1, 2, 3, 4, 8)
    assert not [effect for effect in effects if isinstance(effect, ev.Trim)]
    assert made.plan(9.0) == ev.Verify(7, 8, (9,))


def test_stop_string_stops_inside_a_block():
    """What follows it in the step is not committed; its own ids are, and are told to the drafter."""
    made = session(stop=("12", "99"))
    draft(made, 3, 1, 2, 4)
    effects = step(made, 3, 1, 2, 4, 6, now=1.0)
    assert only(effects, ev.SendTruth).ids == (3, 1, 2)
    assert only(effects, ev.Emit) == ev.Emit((3, 1, 2), 3, (3, 1, 2, 4), 3)
    assert effects[-1] == ev.Finish("stop")
    assert only(effects, ev.Trim).length == len(PROMPT) + 2


def test_stop_string_over_two_steps():
    """It may begin in one step and end in another."""
    made = session(draft_n=0, stop=("12",))
    assert made.finished is None
    step(made, 1, now=1.0)
    assert made.finished is None
    step(made, 2, now=2.0)
    assert made.finished == "stop"


def test_end_id_stops_and_is_not_shown():
    """An end id ends the session, goes out as truth and is not given to the client; afterwards nothing follows."""
    made = session()
    draft(made, 1, END, 3)
    effects = step(made, 1, END, 3, 3, now=1.0)
    assert only(effects, ev.SendTruth).ids == (1, END)
    assert only(effects, ev.Emit).ids == (1,)
    assert effects[-1] == ev.Finish("stop") and made.finished == "stop"  # noqa: PT018
    assert made.handle(ev.Drafted(5, 0, (1,), 0), 1.0) == []
    assert made.handle(ev.Cancelled("again"), 1.0) == []


@pytest.mark.fault("E7.80")
def test_length_is_exact():
    """The session ends when max_tokens are out, or the context is full."""
    made = session(draft_n=0, max_tokens=2)
    assert made.finished is None
    step(made, 1)
    assert step(made, 2)[-1] == ev.Finish("length")
    made = session(draft_n=0, n_ctx=4)
    assert step(made, 1)[-1] == ev.Finish("length")
    assert made.counts.generated == 1


def test_cancel_ends_with_its_reason():
    """A cancelled session finishes with the reason given."""
    assert session().handle(ev.Cancelled("cancelled"), 0.0) == [ev.Finish("cancelled")]


# --- drafts that do not fit


@pytest.mark.fault("E2.20")
def test_late_draft_is_taken_as_far_as_it_is_new():
    """A draft that starts in committed ids is used from where it goes beyond them, if it agrees with them."""
    made = session(draft_n=None)
    step(made, 1)
    made.handle(ev.Drafted(3, crc(*PROMPT), (1, 2, 3), 0), 0.0)
    assert made.verify() == ev.Verify(3, 1, (2, 3))
    made.handle(ev.Drafted(3, crc(*PROMPT), (9, 9), 0), 0.0)
    assert made.stale_drafts == 1
    assert made.verify() == ev.Verify(3, 1, (2, 3))


@pytest.mark.parametrize(
    "event",
    [
        ev.Drafted(3, crc(*PROMPT) ^ 1, (1,), 0),
        ev.Drafted(2, crc(*PROMPT), (1,), 0),
        ev.Drafted(4, crc(*PROMPT), (1,), 0),
        ev.Drafted(2**32 - 1, 0, (1,), 0),
        ev.Drafted(3, crc(*PROMPT), (-1,), 0),
        ev.Drafted(3, crc(*PROMPT), (1, 16), 0),
        ev.Drafted(3, crc(*PROMPT), (1, 2**31 - 1), 0),
    ],
    ids=["wrong crc", "wrong base", "base ahead", "huge base", "negative id", "id over vocabulary", "largest id"],
)
@pytest.mark.fault("E1.10")
@pytest.mark.fault("E1.11")
def test_foreign_drafts_are_counted_and_dropped(event):
    """A draft for another prefix, or with impossible ids, changes nothing but a counter."""
    made = session()
    assert made.handle(event, 0.0) == []
    assert (made.lead, made.stale_drafts) == (0, 1)


@pytest.mark.fault("E1.8")
def test_empty_draft_is_legal():
    """A DRAFT without ids is no offence and no draft."""
    made = session()
    assert draft(made) == []
    assert (made.lead, made.stale_drafts) == (0, 0)


@pytest.mark.fault("E2.21")
def test_orphans_are_asked_about_once_they_last():
    """Drafts that hang on nothing are those of a rejected chain, or follow a lost frame: if they go on, a NACK says
    where to continue, once per interval. A draft that fits ends it."""
    made = session()
    assert draft(made, 2, after=(1,), now=1.0) == []
    assert draft(made, 3, after=(1, 2), now=1.0 + NACK_INTERVAL / 2) == []
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + NACK_INTERVAL) == [ev.SendNack(3, crc(*PROMPT))]
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + 1.5 * NACK_INTERVAL) == []
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + 2.5 * NACK_INTERVAL) == [ev.SendNack(3, crc(*PROMPT))]
    draft(made, 1, 2, now=2.0)
    assert draft(made, 9, after=(3, 3), now=2.0 + NACK_INTERVAL) == []


def test_orphans_are_asked_about_though_the_verifier_goes_on():
    """Steps without drafts do not put the question off: a drafter that stays ahead would never know."""
    made = session(draft_n=None)
    nacks = []
    for number in range(20):
        now = 0.03 * number
        step(made, 1, now=now)
        nacks += draft(made, 2, after=(1, 1), now=now)
    assert len(nacks) > 2


# --- resync


def test_attach_sends_the_whole_prefix():
    """A drafter is told everything from position 0, and how many drafts are wanted."""
    assert session().attach(Arrivals()) == [ev.SendSync(0, 0, PROMPT, 4)]


def test_nack_is_answered_from_where_the_drafter_is():
    """A drafter whose prefix is right gets the rest; one whose prefix is wrong gets everything."""
    made = session()
    assert made.handle(ev.Nacked(2, crc(5, 6)), 1.0) == [ev.SendSync(2, crc(5, 6), (7,), 4)]
    assert made.handle(ev.Nacked(2, 99), 2.0) == [ev.SendSync(0, 0, PROMPT, 4)]
    assert made.handle(ev.Nacked(77, 99), 3.0) == [ev.SendSync(0, 0, PROMPT, 4)]


def test_nack_flood_is_limited():
    """Before a round trip is known, as after, a SYNC is sent at most every 10 ms."""
    made = session()
    answers = [made.handle(ev.Nacked(0, 0), 1.0 + number * 1e-4) for number in range(1000)]
    assert 9 <= sum(map(len, answers)) <= 11


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
        made.handle(ev.Drafted(base, made.prefix.crc_at(base), ids, 0), 0.0)
        rates.append(made._pacing.acceptance.pooled())

    late(len(PROMPT), 1)
    assert rates[-1] > rates[-2]
    late(len(PROMPT), 1)
    assert rates[-1] == rates[-2]
    late(len(PROMPT) + 1, 9, 3)
    assert rates[-1] < rates[-2]
    made.handle(ev.Drafted(len(PROMPT) + 2, 77, (3,), 0), 0.0)
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
    made.handle(ev.Drafted(base, made.prefix.crc_at(base) ^ 1, (9,), 0), 1.0)
    assert isinstance(made.plan(1.0), ev.Verify)
    made.handle(ev.Drafted(base, made.prefix.crc_at(base), (9,), 0), 1.0)
    assert isinstance(made.plan(1.0), ev.Wait)
    assert made.stale_drafts == 2


# --- penalties


@pytest.mark.parametrize("window", [-1, 2, 64])
def test_penalties_see_the_drafts_that_stand(window):
    """A row's choice is made after the drafts before it, as if each had been committed by a step of its own."""
    sampling = SamplingParams(penalties=Penalties(presence=20.0, window=window), logit_bias=((END, -90.0),))
    alone, drafted = session(sampling=sampling), session(sampling=sampling)
    said = [only(step(alone, 3), ev.Emit).ids[0] for _ in range(3)]
    assert said[0] == 3 != said[1]
    draft(drafted, *said[:2])
    assert only(step(drafted, 3, 3, 3), ev.Emit).ids == tuple(said)


# --- strategies


SURE = Proposal((1, 2), (65535, 65535))


def sampled(made, *ids, proposals, after=()):
    """Drafts with what they were sampled from."""
    prefix = (*made.prefix[0 : len(made.prefix)], *after)
    return made.handle(ev.Drafted(len(prefix), crc(*prefix), ids, 0, proposals), 0.0)


@pytest.mark.parametrize(
    "proposals",
    [
        (SURE,),
        (SURE, SURE, SURE),
        (SURE, Proposal((3,), (1,))),
        (SURE, Proposal((2, 16), (1, 1))),
        (None, Proposal((), ())),
    ],
    ids=str,
)
def test_drafts_with_impossible_laws_are_dropped(proposals):
    """A law for each draft or none; the draft in it; known ids. The whole frame is dropped otherwise."""
    made = session(sampling=SamplingParams(1.0, strategy="probabilistic"))
    assert sampled(made, 1, 2, proposals=proposals) == []
    assert (made.lead, made.stale_drafts) == (0, 1)
    sampled(made, 1, 2, proposals=(SURE, None))
    assert made.lead == 2


@pytest.mark.parametrize(("strategy", "kept"), [("probabilistic", 0), ("deterministic", 1)])
def test_another_drafter_brings_laws_of_its_own(strategy, kept):
    """A draft of the one before was sampled from another law than the same draft of the new one."""
    made = session(sampling=SamplingParams(1.0, strategy=strategy))
    made.handle(ev.Drafted(3, crc(*PROMPT), (8,), 0, (Proposal((8,), (1,)),)), 0.0)
    assert made.lead == 1
    made.attach(Arrivals())
    assert made.lead == kept


def test_drafts_of_a_step_get_no_law_of_a_drafter_that_takes_over():
    """In the middle of the step its draft may be the same, by chance: this one is no sample of that law."""
    law = Proposal((8, 9), (1, 1))
    made = session(sampling=SamplingParams(1.0, strategy="probabilistic"))
    made.attach(Arrivals())
    made.handle(ev.Drafted(3, crc(*PROMPT), (8,), 0, (law,)), 0.0)
    drafts = made.verify().drafts
    assert made._drafts.offers(drafts) == (Offer(8, law),)
    made.begin(0.0)
    made.attach(Arrivals())
    made.handle(ev.Drafted(3, crc(*PROMPT), (8, 9), 0, (law, law)), 0.0)
    assert made._drafts.offers(drafts) == (Offer(8),)
    made.handle(ev.Stepped(drafts, logits(8, 9), STEP), 0.0)
    made.attach(Arrivals())
    made.handle(ev.Drafted(5, crc(*PROMPT, 8, 9), (8,), 0, (law,)), 0.0)
    assert made._drafts.offers((8,)) == (Offer(8, law),)


def test_drafts_in_hand_outlive_a_probabilistic_step():
    """Where all drafts of a step stand, the next one in hand is held against the last row; what was drafted beyond it
    stays, as often as the two laws agree, and the round's figures are those of its own drafts."""
    stayed = 0
    for seed in range(30):
        made = session(draft_n=2, sampling=SamplingParams(1.0, seed=seed, strategy="probabilistic"))
        sampled(made, 1, 2, 1, 2, proposals=(SURE,) * 4)
        rows = np.full((3, 16), -99.0, np.float32)
        rows[:, 1:3] = 0.0
        made.begin(0.0)
        emit = only(made.handle(ev.Stepped((1, 2), rows, STEP), 0.0), ev.Emit)
        assert (emit.ids, emit.accepted, emit.tested, emit.drafts) == ((1, 2, 1), 2, 2, (1, 2))
        stayed += made.lead
    assert stayed == 30


@pytest.mark.parametrize("strategy", ["deterministic", "threshold"])
def test_laws_are_nothing_to_other_strategies(strategy):
    """Sampled drafts count as any others."""
    made = session(sampling=SamplingParams(strategy=strategy))
    sampled(made, 1, 2, 3, proposals=(SURE, SURE, None))
    assert only(step(made, 1, 2, 4, 4), ev.Emit).ids == (1, 2, 4)


def test_greedy_strategy_never_drafts():
    """Whatever was asked for, nothing is drafted, and drafts that come all the same change nothing."""
    made = session(draft_n=4, sampling=SamplingParams(1.0, strategy="greedy"))
    assert (made.draft_n, made.may_draft, made.drafting) == (0, False, False)
    draft(made, 1, 2)
    assert made.plan(0.0) == ev.Verify(2, 7, ())


# --- a second drafter


def assisted(trees=True, **options):
    """A session with two drafters, which asks for as many drafts as pay; and the second one."""
    made, seen = session(None, **options), rescues()
    for _ in range(20):
        seen.record(1, 1)
    made._limits = replace(made._limits, trees=trees)
    assert made.may_be_assisted
    made.assist(Second(RollingAcceptance(positions=1), seen))
    return made


def beside(made, *ids, after=()):
    """A DRAFT of the second drafter."""
    prefix = (*made.prefix[0 : len(made.prefix)], *after)
    return made.handle(ev.Drafted(len(prefix), crc(*prefix), ids, 0, second=True), 0.0)


def test_a_step_of_two_chains():
    """The second drafter's chain from where it leaves the first's; the text goes along it, and the session goes on in
    its sequence. All that was verified is counted."""
    made = assisted()
    draft(made, 1, 2, 3)
    beside(made, 1, 8, 9, 4)
    plan = made.verify()
    assert plan == ev.Verify(2, 7, (1, 2, 3), Side(1, (8, 9, 4)))
    rows = logits(1, 8, 5, 5, 9, 6, 5)  # after 7, 1, 2, 3, 8, 9, 4
    effects = made.handle(ev.Stepped(plan.drafts, rows, STEP, side=plan.side), 0.0)
    assert only(effects, ev.Trim) == ev.Trim(6, aside=True)
    told = only(effects, ev.Emit)
    assert (told.ids, told.accepted, told.drafts, told.tested) == ((1, 8, 9, 6), 3, (1, 8, 9, 4), 4)
    assert (told.beside, told.side_drafted, told.side_accepted) == (2, 3, 2)
    counts = made.counts
    assert (counts.drafted, counts.accepted, counts.side_drafted, counts.side_accepted) == (6, 3, 3, 2)
    assert counts.generated == counts.rounds + counts.accepted
    assert made.memory.ids == [5, 6, 7, 1, 8, 9]


def test_the_text_goes_along_the_first_chain():
    """Where that one is right; the other sequence is nobody's concern."""
    made = assisted()
    draft(made, 1, 2, 3)
    beside(made, 1, 8)
    plan = made.verify()
    effects = made.handle(ev.Stepped(plan.drafts, logits(1, 2, 4, 5, 5), STEP, side=plan.side), 0.0)
    assert only(effects, ev.Trim) == ev.Trim(5)
    told = only(effects, ev.Emit)
    assert (told.ids, told.accepted, told.drafts, told.side_accepted) == ((1, 2, 4), 2, (1, 2, 3), 0)


def test_a_second_chain_is_for_targets_that_take_it_and_no_longer_than_any():
    """Else there is one chain, and the other one's drafts go on after its correction all the same."""
    made = assisted(trees=False)
    draft(made, 1, 2)
    beside(made, 1, 8, 9)
    assert made.verify() == ev.Verify(2, 7, (1, 2))
    step(made, 1, 8, 5)
    assert made.verify().drafts == (9,)
    short = assisted(max_drafts=3)
    draft(short, 1, 2)
    beside(short, 1, 8, 9, 4)
    assert short.verify().side == Side(1, (8, 9))


def test_a_drafter_is_judged_by_its_own_drafts():
    """What stood because of the second one tells nothing of the first: not its acceptance, nor how soon it is back."""
    made = assisted(trees=False, interval=0.001)
    own = made.pacing.acceptance
    draft(made, 1, 2)
    beside(made, 1, 8, 9, 3, 4)
    step(made, 1, 8, 5)
    known = own.rates()[0]
    assert list(made.rejections) == [4]
    assert made.verify().drafts[:3] == (9, 3, 4)
    before = own.pooled()
    effects = step(made, 9, 3, 4, 5)
    assert only(effects, ev.Emit).accepted > 0
    assert (own.pooled(), own.rates()[0]) == (before, known)
    assert list(made.rejections) == [4]


@pytest.mark.parametrize("second", [False, True])
def test_who_is_right_where_the_first_is_wrong(second):
    """Its draft for the correction counts, if it was here in time."""
    made = assisted(trees=False)
    draft(made, 1, 2)
    if second:
        beside(made, 1, 8)
    before = made.second.rescue
    step(made, 1, 8, 5)
    assert (made.second.rescue > before) == second


@pytest.mark.parametrize(
    ("draft_n", "sampling", "may"),
    [
        (None, GREEDY, True),
        (None, SamplingParams(temperature=1.0), True),
        (4, GREEDY, False),
        (0, GREEDY, False),
        (None, SamplingParams(temperature=1.0, strategy=Strategy.PROBABILISTIC), False),
        (None, SamplingParams(strategy=Strategy.THRESHOLD), False),
        (None, SamplingParams(strategy=Strategy.GREEDY), False),
    ],
)
def test_which_sessions_may_have_two(draft_n, sampling, may):
    """Those whose draft_n adapts and whose text is the target's own choice, while a drafter drafts."""
    made = session(draft_n, sampling=sampling)
    assert made.may_be_assisted == may
    made.handle(ev.Detached(), 0.0)
    assert not made.may_be_assisted


def test_another_first_drafter_has_no_second():
    """Whoever comes, or where nobody is left, it is to be seen anew."""
    for change in (lambda made: made.attach(Arrivals()), lambda made: made.handle(ev.Detached(), 0.0)):
        made = assisted()
        change(made)
        assert not made.assisted


def test_a_crowd_that_does_better_alone_tells_seldom():
    """Its drafter would guess for nothing, perhaps on the target's own cores; where the clock has not said so, or only
    of other crowds, it is told as often as ever."""
    made = session(draft_n=None, max_tokens=400, n_ctx=500)
    crowds = made._costs.crowds
    while not crowds.refuse(16):
        crowds.stepped(16, 16, 1.0 + crowds.drafts(16), drafting=crowds.drafts(16))

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
