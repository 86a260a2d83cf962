"""Engines from settings: which one `auto` means; timing steps at start-up, in virtual time, on a target that sleeps."""

import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.engines import load, sim
from specmesh.engines.load import calibrate
from specmesh.engines.sim import SimSettings, SimVerifier


class Clock:
    """Stands in for the module `time`; each sleep takes a microsecond at least."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sim, "time", clock)
    monkeypatch.setattr(load, "time", clock)


class Target(SimVerifier):
    """Its info may say otherwise."""

    def __init__(self, settings: SimSettings, **info: object) -> None:
        super().__init__(settings)
        self.info = replace(self.info, **info)


def measured(engine: SimVerifier) -> StepCosts:
    costs = StepCosts()
    calibrate(engine, costs)
    return costs


def widths(settings: SimSettings, **info: object) -> set[int]:
    return set(measured(Target(settings, **info)).tables()[0])


def test_steps_of_any_width_are_known():
    """As long as they take, with the most drafts too; the target's sequences are empty afterwards."""
    engine = Target(SimSettings(step_ms=1, row_ms=0.2))
    costs = measured(engine)
    assert {1, 2, 4, 8, 9, 16, 17, MAX_DRAFTS + 1} <= set(costs.tables()[0]), "where kernels change"
    for rows in range(1, MAX_DRAFTS + 2):
        assert costs.seconds(rows) == pytest.approx(0.001 + 0.0002 * (rows - 1), rel=0.05)
    assert engine.trim(0, 1) == 0


def test_a_slow_target_is_not_measured_for_long():
    assert {1, 2, 4} <= widths(SimSettings(step_ms=250)) < widths(SimSettings(step_ms=1))
    assert widths(SimSettings(step_ms=2100)) == {1}, "what a row costs is always known"


@pytest.mark.parametrize(
    ("settings", "info", "most"),
    [(SimSettings(n_batch=4), {}, 4), (SimSettings(n_ctx=3), {}, 3), (SimSettings(), {"n_outputs": 5}, 5)],
    ids=["batch", "context", "logits"],
)
def test_narrow_targets(settings: SimSettings, info: dict[str, object], most: int):
    """No step is wider than the target takes, longer than its context, or asks for more logits than it has room for."""
    assert widths(settings, **info) == {*range(1, most + 1)}


def test_a_target_that_saves_has_something_to_save():
    """Before a step with drafts it saves its state, which takes time too: none is there without an id."""
    engine, held = Target(SimSettings(n_ctx=3), trimming="restore"), set[int]()
    decode = engine.decode
    engine.decode = lambda spans: held.update(span.position for span in spans if span.logits) or decode(spans)
    assert sorted(measured(engine).tables()[0]) == [1, 2]
    assert held == {1}


# --- which engine `auto` means


APPLE, LINUX, INTEL = ("darwin", "arm64"), ("linux", "x86_64"), ("darwin", "x86_64")
BOTH = {"llama_cpp", "mlx_lm"}


@pytest.mark.parametrize(
    ("machine", "installed", "model", "engine"),
    [
        (APPLE, BOTH, None, "ngram"),
        (APPLE, BOTH, "bundled", "mlx"),
        (APPLE, {"llama_cpp"}, "bundled", "llama"),
        (INTEL, BOTH, "bundled", "llama"),
        (LINUX, BOTH, "bundled", "llama"),
        (LINUX, {"mlx_lm"}, "bundled", "mlx"),
        (LINUX, (), "bundled", "llama"),
        *[(machine, BOTH, model, "mlx") for machine in (APPLE, LINUX) for model in ("folder", "org/name")],
        *[(machine, BOTH, model, "llama") for machine in (APPLE, LINUX) for model in ("m.gguf", "file")],
    ],
)
def test_auto(monkeypatch, tmp_path, machine, installed, model, engine):
    monkeypatch.setattr(sys, "platform", machine[0])
    monkeypatch.setattr(platform, "machine", lambda: machine[1])
    monkeypatch.setattr(load, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    assert load.choose_engine(model) == engine
