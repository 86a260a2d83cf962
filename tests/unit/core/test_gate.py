"""The gate: whether drafting pays, by the measured rates of steps with drafts and without."""

import random

import pytest
from harness.tables import cases

from specmesh.core.draft_length.gate import STEPS_WITHOUT, SpeculationGate, StepOutcome

# A step without drafts takes 1 second and brings one token to each session.


def stepped(
    gate, *, tokens=1, seconds=1.0, sessions=1, rate_without=1.0, shared_host=False, others=False
):
    """Let a step happen, with drafts if the gate is open, or if those of others come always."""
    drafting = gate.open
    gate.stepped(
        StepOutcome(
            sessions=sessions,
            tokens=tokens,
            seconds=seconds,
            drafting=drafting,
            has_drafts=drafting or others,
            rate_without=rate_without,
            shared_host=shared_host,
        )
    )


def accepted(luck, mean, drafts=4):
    """Return the number of accepted drafts if a step has `mean` tokens on average."""
    return sum(luck.random() < (mean - 1) / 4 for _ in range(drafts))


def run(gate, seconds, mean, steps, sessions=1):
    """Let steps happen that take so many seconds with drafts; the share of steps with drafts."""
    luck = random.Random(2)
    drafting = 0
    for _ in range(steps):
        if gate.open:
            drafting += 1
            tokens = sessions + accepted(luck, mean, 4 * sessions)
            stepped(gate, tokens=tokens, seconds=seconds, sessions=sessions, rate_without=sessions)
        else:
            stepped(gate, tokens=sessions, sessions=sessions, rate_without=sessions)
    return drafting / steps


SESSIONS = pytest.mark.parametrize("sessions", [1, 2, 16])


@SESSIONS
@cases(
    "seconds, least, most, pays",
    """
    [1.0, 0.99, 1.0, true]
    [1.1, 0.9, 1.0, true]
    [1.8, 0.8, 1.0, true]
    [3.5, 0.0, 0.4, false]
    [9.0, 0.0, 0.15, false]
    """,
)
def test_drafting_goes_on_as_far_as_it_pays(sessions, seconds, least, most, pays):
    """Two tokens a step and session pay below twice the seconds."""
    gate = SpeculationGate()
    share = run(gate, seconds, 2.0, 3000, sessions)
    assert least <= share <= most
    assert gate.verdict is pays


@pytest.mark.parametrize("sessions", [1, 4, 16])
@pytest.mark.parametrize("seconds", [2.8, 4.0, 20.0])
def test_drafting_loses_a_share_of_the_time_at_most(sessions, seconds):
    """However many sessions share a step, and however much slower it is."""
    gate = SpeculationGate()
    run(gate, seconds, 2.6, 200, sessions)
    share = run(gate, seconds, 2.6, 5000, sessions)
    assert share * (seconds - 2.6) < 0.02


def test_the_time_that_a_drafter_needs_to_begin_counts():
    """It may read the text on the cores of the verifier's steps, for the time of many of them."""
    gate = SpeculationGate()
    now = 0.0
    drafting = False
    for _ in range(50_000):
        begins = gate.open and not drafting
        drafting = gate.open
        seconds = 60.0 if begins else 1.0
        stepped(gate, seconds=seconds)
        now += seconds
    assert now < 50_000 * 1.012


@cases("means, least", "[[3.0, 1.0], 1.1] [[1.8, 1.2], 0.985] [[1.0, 1.0], 0.985]")
def test_texts_in_turn(means, least):
    """Losses are bounded by gains before, and by a share of the time without drafts.

    Drafts pay for every other text; they nearly do; they never do.
    """
    gate = SpeculationGate()
    luck = random.Random(3)
    now = 0.0
    tokens = 0
    for step in range(20_000):
        brought = 1
        seconds = 1.0
        if gate.open:
            brought += accepted(luck, means[step // 100 % 2])
            seconds = 1.9
        stepped(gate, tokens=brought, seconds=seconds)
        now += seconds
        tokens += brought
    assert tokens > least * now


@pytest.mark.parametrize("seconds", [10.0, 100.0, 1000.0])
def test_a_machine_that_stood_still_does_not_stop_drafting(seconds):
    """It costs no more than the measurement that it may cause."""
    gate = SpeculationGate()
    run(gate, 1.5, 2.5, 600)
    stepped(gate, tokens=2, seconds=seconds)
    assert run(gate, 1.5, 2.5, 600) > 0.9


@pytest.mark.parametrize("seconds", [10.0, 100.0, 1000.0])
def test_a_first_step_that_stood_still_does_not_stop_drafting(seconds):
    """A GPU may load the kernels of wider steps with it."""
    gate = SpeculationGate()
    stepped(gate, tokens=2, seconds=seconds)
    assert run(gate, 1.5, 2.5, 600) > 0.9


def test_a_drafter_that_holds_up_the_first_step_is_stopped():
    """It reads the text on the cores of the verifier's steps; no drafts are there yet."""
    gate = SpeculationGate()
    asked = StepOutcome(
        sessions=1, tokens=1, seconds=1.0, drafting=True, has_drafts=False, rate_without=1.0
    )
    gate.stepped(asked._replace(seconds=30.0))
    for _ in range(5):
        gate.stepped(asked)
    assert not gate.open


def steps_until_open(gate):
    """Let other sources draft in each step until the gate is open; return how many those were."""
    for number in range(2000):
        if gate.open:
            return number
        stepped(gate, tokens=3, seconds=2.0, others=True)
    raise AssertionError("it is shut for ever")


def test_refused_drafting_is_tried_again_while_other_sources_draft():
    gate = SpeculationGate()
    while gate.verdict is None:
        stepped(gate, seconds=2.0 if gate.open else 1.0)
    assert 400 < steps_until_open(gate) < 600


def test_measurement_does_not_wait_for_other_sources():
    gate = SpeculationGate()
    while gate.verdict is None or gate.open:
        tokens, seconds = (2, 1.9) if gate.open else (1, 1.0)
        stepped(gate, tokens=tokens, seconds=seconds)
    assert gate.verdict is True
    assert steps_until_open(gate) < 60
    assert run(gate, 1.9, 2.0, 300) > 0.9


def test_measurement_waits_for_steps_between_those_of_other_sources():
    gate = SpeculationGate()
    while gate.verdict is None or gate.open:
        tokens, seconds = (2, 1.9) if gate.open else (1, 1.0)
        stepped(gate, tokens=tokens, seconds=seconds)
    steps = 0
    while not gate.open:
        steps += 1
        others = steps % 2 == 0
        stepped(gate, tokens=3 if others else 1, seconds=2.0 if others else 1.0, others=others)
    assert steps >= 2 * STEPS_WITHOUT


def test_drafting_begins_without_an_estimate():
    gate = SpeculationGate()
    stepped(gate, rate_without=0.0)
    assert run(gate, 1.5, 2.5, 600) > 0.9


def test_a_measurement_beside_a_drafter_that_goes_on_is_corrected():
    """It costs little.

    Steps without drafts take eight times as long at first: the drafter has not stopped yet.
    """
    gate = SpeculationGate()
    lost = 0.0
    withheld = 0
    for _ in range(6000):
        if gate.open:
            withheld = 0
            lost += 0.5
            stepped(gate, tokens=2, seconds=2.5)
            continue
        withheld += 1
        seconds = 8.0 if withheld < 30 and lost < 400 else 1.0
        lost += seconds - 1
        stepped(gate, seconds=seconds)
    assert gate.verdict is False
    assert lost < 700


@cases(
    "shared_host, estimate, most",
    """
    [false, 0.0, 20]
    [false, 0.1, 270]
    [false, 0.6, 270]
    [false, 1.0, 20]
    [true, 0.0, 20]
    [true, 0.1, 20]
    [true, 0.6, 20]
    [true, 1.0, 20]
    """,
)
def test_a_first_estimate_that_is_too_low_costs_little(shared_host, estimate, most):
    """Drafting has 0.8 of the rate without, more than expected.

    With a drafter of this host the rate without is measured.
    """
    gate = SpeculationGate()
    lost = 0.0
    for _ in range(1000):
        tokens = 1
        seconds = 1.0
        if gate.open:
            tokens = 2
            seconds = 2.5
        lost += seconds - tokens
        stepped(
            gate, tokens=tokens, seconds=seconds, rate_without=estimate, shared_host=shared_host
        )
    assert lost < most


def test_a_first_estimate_that_is_too_high_withholds_drafts_once():
    """Only until the rate is measured: drafting that gains goes on then."""
    gate = SpeculationGate()
    withheld = 0
    for number in range(400):
        withheld += not gate.open
        tokens, seconds = (8, 2.0) if gate.open else (1, 1.0)
        stepped(gate, tokens=tokens, seconds=seconds, rate_without=50.0 if number == 10 else 1.0)
    assert (withheld < 40, gate.verdict) == (True, None)


def test_without_drafts_nothing_is_withheld_and_there_is_no_verdict():
    """No session asked for any."""
    gate = SpeculationGate()
    unasked = StepOutcome(
        sessions=1, tokens=1, seconds=1.0, drafting=False, has_drafts=False, rate_without=1.0
    )
    for _ in range(3000):
        gate.stepped(unasked)
    assert (gate.open, gate.verdict) == (True, None)
