"""The pace of one session: how many drafts its drafter is asked for."""

from harness.sessions import measured

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.drafter_estimates import DrafterEstimates
from specmesh.core.draft_length.gate import StepOutcome
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.statistics.counters import SessionTimes


def controller(costs):
    return DraftLengthController(
        fixed=None,
        most=8,
        costs=costs,
        speculations=Speculations(),
        times=SessionTimes(opened=0.0),
    )


# --- a drafter that does not pay


def step_that_does_not_pay(gate):
    """A step without drafts takes 1 second, one with drafts 5; both have one token."""
    gate.stepped(
        StepOutcome(
            sessions=1,
            tokens=1,
            seconds=5.0 if gate.open else 1.0,
            drafting=gate.open,
            has_drafts=gate.open,
            rate_without=1.0,
        )
    )


def refused():
    """A controller whose drafter was found not to pay, and that drafter."""
    drafter = DrafterEstimates()
    draft_length = controller(StepCosts())
    draft_length.attach(drafter)
    for _ in range(40):
        step_that_does_not_pay(drafter.speculation.gate)
    return draft_length, drafter


def test_late_drafts_of_a_refused_drafter_count_for_nothing():
    """They count once it may be tried again."""
    draft_length, drafter = refused()
    assert draft_length.refuses(drafter)
    draft_length.judged(right=True)
    assert not draft_length.acceptance.known
    while draft_length.refuses(drafter):
        step_that_does_not_pay(drafter.speculation.gate)
    draft_length.judged(right=True)
    assert draft_length.acceptance.known


# --- a drafter that drafts nothing, by its own account


def muted():
    """A controller whose drafter drafts nothing."""
    draft_length = controller(StepCosts())
    draft_length.attach(DrafterEstimates())
    draft_length.mute(muted=True)
    return draft_length


def test_a_drafter_that_drafts_nothing_is_not_probed():
    draft_length = muted()
    asked = []
    for frontier in range(1, 600):
        draft_length.stepped(frontier, tested=0, accepted=0, flushed=True, now=frontier / 100)
        asked.append(draft_length.draft_n)
    assert not any(asked)


def test_the_next_drafter_is_asked_for_drafts():
    draft_length = muted()
    draft_length.detach()
    draft_length.attach(DrafterEstimates())
    assert draft_length.draft_n > 0


# --- steps that sessions share


def test_a_share_has_the_drafts_that_pay():
    draft_length = controller(measured({2: 10.0, 4: 12.0, 6: 30.0}))
    draft_length.note_sessions(2)
    assert draft_length.draft_n == 1


def test_a_share_pays_for_the_threads_that_a_drafter_of_this_host_takes():
    costs = measured({2: 10.0, 4: 12.0, 6: 30.0})
    draft_length = controller(costs)
    costs.split(2.0)
    costs.record(2, 28.0)
    costs.record(4, 30.0)
    draft_length.note_sessions(2)
    assert draft_length.draft_n == 0


def test_a_share_is_by_the_acceptance_of_the_drafter():
    drafter = DrafterEstimates()
    for _ in range(200):
        drafter.acceptance.record(1, 0)
    draft_length = controller(measured({2: 10.0, 16: 24.0}))
    draft_length.note_sessions(2)
    draft_length.attach(drafter)
    assert draft_length.draft_n == 0


def test_a_share_without_a_measured_acceptance_has_drafts():
    draft_length = controller(measured({2: 10.0, 16: 24.0}))
    draft_length.note_sessions(2)
    assert draft_length.draft_n > 0
