"""Timing steps at start-up, on a target that sleeps."""

from dataclasses import replace

import pytest

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.daemons.runtime import calibration as calibrating
from specmesh.daemons.runtime.calibration import WIDTHS, calibrate
from specmesh.engines.sim import SimSettings, SimVerifier


class Counting(SimVerifier):
    """Counts its steps."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.steps = 0

    def decode(self, spans):  # type: ignore[no-untyped-def]
        self.steps += 1
        return super().decode(spans)


def test_every_width_is_measured():
    """A quick target is measured at all widths; its sequences are empty afterwards."""
    engine, costs = Counting(SimSettings(step_ms=1, row_ms=0.2)), StepCosts()
    calibrate(engine, costs)
    assert sorted(costs.table()) == sorted(WIDTHS)
    assert costs.seconds(17) > 2 * costs.seconds(1)
    assert engine.decode([]) == []


def test_a_slow_target_is_not_measured_for_long(monkeypatch: pytest.MonkeyPatch):
    """The budget ends it; the widths that tell most come first."""
    monkeypatch.setattr(calibrating, "BUDGET", 0.5)
    costs = StepCosts()
    calibrate(SimVerifier(SimSettings(step_ms=100)), costs)
    assert {1, 2, 3} <= set(costs.table()) < set(WIDTHS)


@pytest.mark.parametrize(
    ("remembered", "taken"),
    [
        ({1: 0.02, 9: 0.5}, True),
        ({1: 0.02, 3: 0.02, 5: 0.02, 9: 0.5}, True),
        ({1: 0.02, 3: 0.04, 9: 0.5}, False),
        ({1: 0.05, 9: 0.5}, False),
        ({9: 1.0}, False),
    ],
)
def test_what_is_remembered(remembered: dict[int, float], taken: bool, monkeypatch: pytest.MonkeyPatch):
    """Earlier times hold where steps of a few widths take as long as they did; else all is measured anew."""
    monkeypatch.setattr(calibrating, "BUDGET", 0.4)
    engine, costs = Counting(SimSettings(step_ms=20)), StepCosts()
    calibrate(engine, costs, remembered)
    assert (costs.table() == remembered) == taken
    assert (engine.steps < 12) == taken


def test_narrow_targets():
    """No step is wider than the target takes, or longer than its context."""
    costs = StepCosts()
    calibrate(SimVerifier(SimSettings(n_batch=4)), costs)
    assert sorted(costs.table()) == [1, 2, 3, 4]
    costs = StepCosts()
    calibrate(SimVerifier(SimSettings(n_ctx=3, can_trim=False)), costs)
    assert sorted(costs.table()) == [1, 2, 3]


class FewLogits(SimVerifier):
    """Has room for the logits of a few rows, as a context made for one session."""

    @property
    def info(self):  # type: ignore[no-untyped-def]
        return replace(super().info, n_outputs=5)


def test_few_rows_of_logits():
    """No step asks for more logits than the target has room for."""
    costs = StepCosts()
    calibrate(FewLogits(SimSettings()), costs)
    assert sorted(costs.table()) == [1, 2, 3, 4, 5]


class OfWidth(Counting):
    """Has one width."""

    @property
    def info(self):  # type: ignore[no-untyped-def]
        return replace(super().info, width=4)


def test_one_width():
    """A target whose steps are all as wide has one time, for every number of drafts; it is remembered as others are."""
    engine, costs = OfWidth(SimSettings(step_ms=20)), StepCosts()
    calibrate(engine, costs)
    assert list(costs.table()) == [4]
    assert costs.seconds(1) == costs.seconds(3) == costs.seconds(4)
    for remembered, taken in (({4: 0.02, 9: 0.5}, True), ({4: 0.05}, False), ({1: 0.02}, False)):
        costs = StepCosts()
        calibrate(engine, costs, remembered)
        assert (costs.table() == remembered) == taken
