"""mlx-lm's caches of a target's sequence: what can be taken back, and what is copied."""

import numpy as np
import pytest
from harness.tables import cases

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import CacheList, KVCache

from specmesh.engines.mlx import caches, target_sequence
from specmesh.engines.mlx.caches import Caches
from specmesh.engines.mlx.target_sequence import TargetSequence

pytestmark = pytest.mark.models

WINDOW = 16
TEXT = tuple(np.random.default_rng(5).integers(33, 126, 80).tolist())
WRONG = (40, 41, 42, 43, 44, 45)


@pytest.fixture(scope="module")
def models(make_hf):
    mx.set_default_device(mx.cpu)
    return {kind: load(str(make_hf(f"caches-{kind}", kind)))[0] for kind in KINDS}


KINDS = ("llama", "sliding", "hybrid")


@pytest.fixture(params=KINDS)
def model(models, request):
    return models[request.param]


def read(sequence, ids):
    """Read ids as a prompt; return the last row."""
    rows = sequence.append(ids, drafted=False)
    mx.eval(rows, sequence.caches.arrays())
    return np.array(rows[-1])


def row_after(model, ids):
    return read(TargetSequence(model), ids)


def same(found, expected):
    return float(np.abs(found - expected).max()) < 1e-3 * float(np.ptp(expected))


@pytest.mark.parametrize("length", [3, WINDOW - 3, WINDOW - 1, WINDOW, 3 * WINDOW])
@pytest.mark.parametrize("right", [1, 3])
def test_rejected_rows_leave_no_trace(model, length, right):
    """Before, at and behind the end of a window, and one row after another afterwards."""
    sequence = TargetSequence(model)
    read(sequence, TEXT[:length])
    end = length + right
    sequence.append((*TEXT[length:end], *WRONG), drafted=True)
    assert sequence.trim(end) == end
    for at in range(end, end + WINDOW + 2):
        row = read(sequence, TEXT[at : at + 1])
    assert same(row, row_after(model, TEXT[: at + 1]))


def test_step_after_step_is_rejected(model):
    """The ids that stay are decoded again with the next ones, and on their own if they are many."""
    sequence = TargetSequence(model)
    read(sequence, TEXT[:20])
    for end in range(22, 60, 2):
        sequence.append((*TEXT[end - 2 : end], *WRONG), drafted=True)
        assert sequence.trim(end) == end
    assert same(read(sequence, TEXT[end : end + 2]), row_after(model, TEXT[: end + 2]))


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_the_first_row_of_a_step_is_taken_back_wholly_or_not(models, kind):
    """What cannot go back holds nothing, rather than something else."""
    sequence = TargetSequence(models[kind])
    read(sequence, TEXT[:40])
    sequence.append(WRONG, drafted=True)
    held = sequence.trim(40)
    assert held in (0, 40)
    assert same(read(sequence, TEXT[held:42]), row_after(models[kind], TEXT[:42]))


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_a_checkpoint(models, kind):
    """A sequence, and a copy of it, go on from a checkpoint as if nothing had followed."""
    model = models[kind]
    sequence, other = TargetSequence(model), TargetSequence(model)
    read(sequence, TEXT[:30])
    sequence.keep()
    read(sequence, WRONG * 5)
    other.begin_as(sequence, 30)
    expected = row_after(model, TEXT[:50])
    assert same(read(other, TEXT[30:50]), expected)
    assert sequence.trim(30) == 30
    assert same(read(sequence, TEXT[30:50]), expected)
    assert same(read(other, TEXT[50:52]), row_after(model, TEXT[:52]))


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_a_checkpoint_that_is_dropped(models, kind):
    sequence = TargetSequence(models[kind])
    read(sequence, TEXT[:30])
    sequence.keep()
    assert sequence.can_share(30)
    [checkpoint] = sequence.checkpoints.values()
    assert checkpoint.size_bytes > 0
    sequence.drop(30)
    assert not sequence.can_share(30)


def test_a_copy_is_its_own(models):
    """It and its source grow apart, in arrays that they shared."""
    model = models["llama"]
    sequence, other = TargetSequence(model), TargetSequence(model)
    read(sequence, TEXT[:20])
    other.begin_as(sequence, 12)
    sequence.trim(10)
    read(sequence, WRONG)
    assert same(read(other, TEXT[12:30]), row_after(model, TEXT[:30]))
    assert same(read(sequence, TEXT[:4]), row_after(model, (*TEXT[:10], *WRONG, *TEXT[:4])))


LONG = tuple(np.random.default_rng(6).integers(33, 126, 1500).tolist())


def held_bytes(sequence):
    return sum(part.nbytes for part in sequence.caches.parts)


@pytest.fixture(params=["llama", "hybrid"])
def long_model(models, request):
    return models[request.param]


@pytest.fixture
def long_one(long_model):
    """A sequence of many ids, which may be shared and cut after 40."""
    sequence = TargetSequence(long_model)
    read(sequence, LONG[:40])
    sequence.keep()
    read(sequence, LONG[40:])
    return sequence


def test_a_copy_of_few_ids_takes_little_memory(long_model, long_one):
    copy = TargetSequence(long_model)
    copy.begin_as(long_one, 40)
    assert held_bytes(copy) < held_bytes(long_one) / 2
    assert same(read(copy, LONG[40:400]), row_after(long_model, LONG[:400]))


def test_a_long_text_that_is_cut_gives_memory_back(long_model, long_one):
    before = held_bytes(long_one)
    long_one.trim(40)
    assert held_bytes(long_one) < before / 2
    assert same(read(long_one, LONG[40:400]), row_after(long_model, LONG[:400]))


@cases(
    "kind, cuts, takes_back",
    """
    ["llama", true, true]
    ["sliding", false, true]
    ["hybrid", false, false]
    """,
)
def test_what_the_caches_of_a_model_can_do(models, kind, cuts, takes_back):
    found = Caches(models[kind])
    assert (found.can_cut, found.windows_only) == (cuts, takes_back)


def test_caches_of_a_layer_that_has_several(models, monkeypatch):
    monkeypatch.setattr(caches, "make_prompt_cache", lambda _: [CacheList(KVCache(), KVCache())])
    found = Caches(models["llama"])
    assert (len(found.layers), len(found.parts)) == (1, 2)


def test_without_the_saved_states_rows_leave_traces(models, monkeypatch):
    """The guard is needed, and the comparison finds what it prevents."""
    monkeypatch.setattr(target_sequence.Caches, "restore", lambda *_: True)
    sequence = TargetSequence(models["hybrid"])
    read(sequence, TEXT[:20])
    sequence.append((*TEXT[20:22], *WRONG), drafted=True)
    sequence.trim(22)
    assert not same(read(sequence, TEXT[22:24]), row_after(models["hybrid"], TEXT[:24]))
