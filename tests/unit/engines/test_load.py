"""Engines from settings, times of a target's steps, remapped drafters and prompt lookup.

Steps are timed in virtual time, on a target that sleeps.
"""

import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness.engine_contract import GREEDY, SAMPLED, predict, shuffled
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_orders import KVCut
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.match import compare
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import load, sim, steps
from specmesh.engines.base import Capabilities, EngineInfo, Unthreaded
from specmesh.engines.ngram import NgramDrafter
from specmesh.engines.remapped import RemappedDrafter
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.engines.steps import calibrate
from specmesh.errors import LocalProtocolError


class Clock:
    """Stands in for the module `time`; each sleep takes a microsecond at least."""

    now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now += max(seconds, 1e-6)


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sim, "time", clock)
    monkeypatch.setattr(steps, "time", clock)


class Target(SimVerifier):
    """A simulated target with another info."""

    def __init__(self, settings, **info):
        super().__init__(settings)
        self.info = replace(self.info, **info)


def measured(engine):
    costs = StepCosts()
    calibrate(engine, costs)
    return costs


def widths(settings, **info):
    return set(measured(Target(settings, **info)).tables()[0])


def test_steps_of_any_width_are_known():
    """Their times are measured, with the most drafts too. The sequences are empty afterwards."""
    engine = Target(SimSettings(step_ms=1, row_ms=0.2))
    costs = measured(engine)
    assert {1, 2, 4, 8, 9, 16, 17, MAX_DRAFTS + 1} <= set(costs.tables()[0]), "where kernels change"
    for rows in range(1, MAX_DRAFTS + 2):
        assert costs.seconds(rows) == pytest.approx(0.001 + 0.0002 * (rows - 1), rel=0.05)
    assert engine.carry_out(KVCut(0, 1)) == 0


def test_a_slow_target_is_not_measured_for_long():
    assert {1, 2, 4} <= widths(SimSettings(step_ms=250)) < widths(SimSettings(step_ms=1))
    assert widths(SimSettings(step_ms=2100)) == {1}, "what a row costs is always known"


@cases(
    "settings, info, most",
    '[{"n_batch": 4}, {}, 4] [{"n_ctx": 3}, {}, 3] [{}, {"n_outputs": 5}, 5]',
)
def test_narrow_targets(settings, info, most):
    """No measured step exceeds the target's batch, context or rows of logits."""
    assert widths(SimSettings(**settings), **info) == {*range(1, most + 1)}


def test_a_target_that_saves_has_something_to_save():
    """Saving the state before a step takes time too, and an empty sequence has none."""
    capabilities = Capabilities(trimming="restore")
    engine = Target(SimSettings(n_ctx=3), capabilities=capabilities)
    held = set()
    decode = engine.decode

    def noting(spans):
        held.update(span.position for span in spans if span.logits)
        return decode(spans)

    engine.decode = noting
    assert sorted(measured(engine).tables()[0]) == [1, 2]
    assert held == {1}


# --- which engine `auto` means


@cases(
    "system, installed, model, engine",
    """
    ["darwin arm64", "llama_cpp mlx_lm", null, "ngram"]
    ["darwin arm64", "llama_cpp mlx_lm", "bundled", "mlx"]
    ["darwin arm64", "llama_cpp", "bundled", "llama"]
    ["darwin x86_64", "llama_cpp mlx_lm", "bundled", "llama"]
    ["linux x86_64", "llama_cpp mlx_lm", "bundled", "llama"]
    ["linux x86_64", "mlx_lm", "bundled", "mlx"]
    ["linux x86_64", "", "bundled", "llama"]
    ["darwin arm64", "llama_cpp mlx_lm", "folder", "mlx"]
    ["darwin arm64", "llama_cpp mlx_lm", "org/name", "mlx"]
    ["darwin arm64", "llama_cpp mlx_lm", "m.gguf", "llama"]
    ["darwin arm64", "llama_cpp mlx_lm", "file", "llama"]
    ["linux x86_64", "llama_cpp mlx_lm", "folder", "mlx"]
    ["linux x86_64", "llama_cpp mlx_lm", "org/name", "mlx"]
    ["linux x86_64", "llama_cpp mlx_lm", "m.gguf", "llama"]
    ["linux x86_64", "llama_cpp mlx_lm", "file", "llama"]
    """,
)
def test_auto(monkeypatch, tmp_path, system, installed, model, engine):
    name, machine = system.split()
    monkeypatch.setattr(sys, "platform", name)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(load, "find_spec", lambda name: name in installed.split() or None)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    assert load.choose_engine(model) == engine


# --- a table around another engine

WORDS = tuple(b"w%d" % number for number in range(40))
VERIFIER = Vocabulary((*WORDS, b""), frozenset({40}))


class Scripted(Unthreaded):
    """A draft model with the logits of the test; it keeps the ids that it was fed."""

    def __init__(self, vocabulary):
        self.info = EngineInfo(
            model="scripted",
            n_ctx=64,
            n_batch=8,
            max_sessions=1,
            backend="test",
            capabilities=Capabilities(),
        )
        self.vocabulary = vocabulary
        self.logits = np.zeros(len(vocabulary), np.float32)
        self.fed = []

    def predict(self, asks):
        [ask] = asks
        self.fed += ask.ids
        return [None if ask.sampler is None else ask.sampler.choose(self.logits, len(self.fed))]

    def carry_out(self, order):
        del self.fed[order.length :]
        return len(self.fed)


def wrapped(draft):
    remap = compare(draft, VERIFIER).remap
    inner = Scripted(draft)
    return RemappedDrafter(inner, remap, VERIFIER), inner


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_choices_are_those_of_an_identical_model(sampler):
    """With a permuted vocabulary the sampler chooses as in the verifier's order, everywhere."""
    draft, order = shuffled(VERIFIER)
    engine, inner = wrapped(draft)
    rng = np.random.default_rng(1)
    for position in range(1, 60):
        logits = rng.standard_normal(len(VERIFIER)).astype(np.float32)
        inner.logits = logits[order]
        drafted = predict(engine, 0, (position % 41,), sampler)
        assert drafted == sampler.choose(logits, position)
    assert [order[token] for token in inner.fed] == [position % 41 for position in range(1, 60)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_best_token_without_counterpart_is_no_draft(temperature):
    """If the best token is foreign there is no draft, not a second-best one."""
    engine, inner = wrapped(Vocabulary((*WORDS[:39], b"foreign", b""), frozenset({40})))
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
    inner.logits[39] = 9.0
    assert predict(engine, 0, (1,), sampler) is None
    inner.logits[5] = 60.0
    assert predict(engine, 0, (1,), sampler) == 5


def test_ids_outside_the_vocabulary():
    """No id looks up a row of the table behind its end; the engine inside gets nothing."""
    draft, _ = shuffled(VERIFIER)
    engine, inner = wrapped(draft)
    with pytest.raises(LocalProtocolError, match="outside"):
        predict(engine, 0, (1, 41), None)
    assert inner.fed == []
    inner.predict = lambda asks: [-1]
    assert predict(engine, 0, (1,), GREEDY) is None


# --- prompt lookup: what it drafts, and that its index follows every cut


def searched(ids, longest=4, shortest=2):
    """The same draft by looking through everything."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(ids) - 1, size - 1, -1):
            if size < len(ids) and ids[end - size : end] == ids[-size:]:
                return ids[end]
    return None


@given(
    st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=12)), max_size=12)
)
def test_equals_a_full_search_after_any_history(moves):
    drafter = NgramDrafter(1)
    ids = []
    for length, more in moves:
        held = drafter.carry_out(KVCut(0, length))
        del ids[length:]
        assert held == len(ids)
        if more:
            ids += more
            assert predict(drafter, 0, more, GREEDY) == searched(ids)
