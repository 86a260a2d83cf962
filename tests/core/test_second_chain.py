"""A session with two drafters: steps with a second chain, and what is learnt of whom."""

from dataclasses import replace

import pytest
from verifier_sessions import GREEDY, STEP, crc, draft, logits, only, session, step

from specmesh.core import events as ev
from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.arrivals import Arrivals
from specmesh.core.sampling import SamplingParams
from specmesh.core.second import Second, rescues
from specmesh.core.side import Side
from specmesh.core.strategy import Strategy


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
