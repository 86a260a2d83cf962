"""Steps that measure a target in its idle time, through the verifier's core."""

import numpy as np
import pytest
from harness.sessions import measured

from specmesh.core import events as ev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_orders import KVCut
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.calibration import AGAIN_S, Calibration
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.errors import EngineError

MOST = 3  # rows of a step with logits
CLIENT = 1


class Idle:
    """A core that calibrates, and a clock that steps and waits move on."""

    def __init__(self, *, held=0, width=None, sessions=2):
        limits = TargetLimits(100, 8, frozenset({7}), max_drafts=2, width=width)
        self.costs = measured({})
        self.slots = KVSlots(sessions, "cut", 64)
        target = Target(
            limits=limits,
            costs=self.costs,
            slots=self.slots,
            n_batch=8,
            max_sessions=sessions,
            calibration=Calibration(limits, most=MOST, held=held),
        )
        self.core = VerifierCore(target)
        self.now = 0.0
        self.steps = []

    def step(self, seconds=0.01, error=None):
        """Take the next step, after a wait if there is one; return it, None for a wait for ever."""
        begun = self.core.next_step(self.now)
        if isinstance(begun, ev.Wait) and begun.until < np.inf:
            self.now = begun.until
            self.core.handle(vev.Signal.TIME_UP, self.now)
            begun = self.core.next_step(self.now)
        if isinstance(begun, ev.Wait):
            return None
        rows = [np.zeros((len(span.ids), 8), np.float32) for span in begun.spans]
        started = self.now
        self.now += seconds
        self.core.finish(begun, error or rows, started, self.now)
        self.steps.append(begun)
        return begun

    def rest(self, seconds):
        """Take steps until it waits for ever."""
        while self.step(seconds):
            pass

    def open(self, ids=(1, 2, 3)):
        request = Request(None, ids, SessionParams(SamplingParams(), 4))
        opening = vev.Opening(client=CLIENT, request=request, ids=ids, n_prompt=len(ids))
        self.core.handle(opening, self.now)


def test_an_idle_target_is_measured_at_each_width():
    idle = Idle()
    while (step := idle.core.next_step(idle.now)) != ev.Wait(np.inf):
        if isinstance(step, ev.Wait):
            idle.now = step.until
            continue
        rows = len(step.spans[0].ids)
        idle.core.finish(step, [None], idle.now, idle.now + 0.01 * rows)
    assert idle.costs.tables() == {0: pytest.approx({1: 0.01, 2: 0.02, 3: 0.03})}


def test_it_begins_after_a_moment_of_quiet():
    assert Idle().core.next_step(5.0) == ev.Wait(5.5)


def test_each_session_makes_the_quiet_begin_anew():
    idle = Idle()
    idle.step()
    idle.open()
    idle.step()
    idle.core.handle(vev.ClientLeft(CLIENT), 7.0)
    assert idle.core.next_step(7.0) == ev.Wait(7.5)


def test_a_step_fits_into_the_context():
    limits = TargetLimits(5, 8, frozenset({7}))
    calibration = Calibration(limits, most=16, held=1)
    widths = set()
    while not calibration.over:
        [span] = calibration.spans(0)
        if span.logits:
            widths.add(len(span.ids))
        calibration.ended(measured({}), 0.0)
    assert widths == {1, 2, 3, 4}


def test_it_ends():
    idle = Idle()
    idle.rest(0.01)
    assert len(idle.steps) == 10, "one that warms up, and three of each width"


def test_slow_steps_end_it_sooner():
    idle = Idle()
    idle.rest(1.2)
    assert len(idle.steps) == 3, "one that warms up, and two that are measured"


def test_a_slow_target_is_measured_at_the_widest_steps():
    """Those between widths where kernels change are left out before them."""
    limits = TargetLimits(4096, 8, frozenset({7}), max_drafts=24)
    calibration = Calibration(limits, most=129)
    costs = StepCosts()
    while not calibration.over:
        calibration.ended(costs, 0.07 + 0.006 * calibration.cells)
    [table] = costs.tables().values()
    assert {64, 128} <= table.keys()


def test_a_request_in_between_is_served_next():
    idle = Idle()
    idle.step()
    idle.open()
    assert idle.step().spans[0] == ev.Span(0, 0, (1, 2), logits=False)


def test_a_request_waits_for_one_step_at_most():
    """It comes while one runs."""
    idle = Idle()
    idle.step()
    begun = idle.core.next_step(idle.now)
    idle.open()
    idle.core.finish(begun, [None], idle.now, idle.now + 0.01)
    assert idle.step().spans[0] == ev.Span(0, 0, (1, 2), logits=False)


def test_the_next_step_finds_the_sequence_empty():
    idle = Idle()
    idle.step()
    idle.open()
    assert KVCut(0, 0) in idle.step().orders


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_request_before_a_measured_step_gets_an_empty_sequence(sessions):
    """It comes while a step fills the sequence with what is saved in the measured one."""
    idle = Idle(held=1, sessions=sessions)
    idle.core.next_step(0.0)
    begun = idle.core.next_step(0.5)
    idle.open()
    idle.core.finish(begun, [None], 0.5, 0.5 + 0.01)
    step = idle.step()
    held = {0: 1, 1: 0}  # ids by sequence
    for order in step.orders:
        held[order.seq] = order.length
    assert held[step.spans[0].seq] == step.spans[0].position == 0


def test_a_session_that_has_gone_had_the_sequence_of_a_measured_step():
    idle = Idle(held=1, sessions=1)
    idle.step()
    idle.open()
    idle.core.handle(vev.ClientLeft(CLIENT), idle.now)
    assert idle.step().spans == (ev.Span(0, 0, (0,), logits=False),)


def test_no_session_loses_what_it_has_left():
    """Its sequence keeps its ids; another one is measured on."""
    idle = Idle()
    ids = tuple(range(1, 7)) * 5
    idle.open(ids)
    idle.step()
    idle.core.handle(vev.ClientLeft(CLIENT), idle.now)
    assert idle.step().spans[0].seq == 1


def test_no_sequence_is_emptied_for_it():
    idle = Idle()
    for ids in ((1, 2, 3, 4, 5, 6) * 5, (6, 5, 4, 3, 2, 1) * 5):
        idle.open(ids)
        idle.step()
        idle.core.handle(vev.ClientLeft(CLIENT), idle.now)
    assert idle.step() is None


def test_a_paused_session_is_company():
    idle = Idle()
    idle.open()
    idle.core.handle(vev.ClientPaused(CLIENT, paused=True), idle.now)
    step = idle.core.next_step(idle.now)
    assert step.until > idle.now + 0.5, "when the session is given up"


def test_a_failure_ends_it():
    idle = Idle()
    idle.step(error=EngineError("no room"))
    assert idle.step() is None


def test_a_failure_leaves_an_empty_sequence():
    idle = Idle()
    idle.step(error=EngineError("no room"))
    idle.open()
    assert KVCut(0, 0) in idle.step().orders


def test_a_target_that_saves_has_something_to_save():
    """Saving the state before a step takes time too, and an empty sequence has none."""
    idle = Idle(held=1)
    idle.rest(0.01)
    positions = {span.position for step in idle.steps for span in step.spans if span.logits}
    assert positions == {1}


@pytest.mark.parametrize("held", [0, 1])
def test_each_measured_step_begins_at_the_ids_held(held):
    idle = Idle(held=held)
    cells = 0
    for _ in range(5):
        step = idle.step()
        cells = 0 if step.orders else cells
        [span] = step.spans
        assert span.position == cells
        cells += len(span.ids)


def test_reproducible_steps_have_one_width():
    idle = Idle(width=2)
    idle.rest(0.01)
    assert {len(step.spans[0].ids) for step in idle.steps} == {2}


def test_what_was_thrown_away_is_measured_again_later():
    """A verifier may be measured while its host boots. Steps of texts show that."""
    idle = Idle()
    idle.rest(0.1)
    idle.steps.clear()
    for _ in range(3):
        idle.costs.record(1, 0.01)
    assert idle.core.next_step(idle.now) == ev.Wait(idle.now + AGAIN_S)
    idle.rest(0.01)
    [table] = idle.costs.tables().values()
    assert table[MOST - 1] == pytest.approx(0.01)


def test_a_failure_is_not_tried_again():
    idle = Idle()
    while idle.step(0.1, EngineError("no") if len(idle.steps) == 4 else None):
        pass
    for _ in range(3):
        idle.costs.record(1, 0.01)
    assert idle.costs.lost_advance
    assert idle.step() is None
