"""Sequences that rest: out of the cells, and the same when they are used again."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specmesh.engines import llama_cache, llama_resting
from specmesh.engines.base import Span, saved_bytes
from specmesh.engines.llama import LlamaDrafter, LlamaSettings, LlamaVerifier
from specmesh.engines.llama_resting import PATIENCE
from specmesh.errors import EngineError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

IDS = tuple(np.random.default_rng(5).integers(33, 126, 60).tolist())


@pytest.fixture
def settings(tiny_gguf: Path) -> LlamaSettings:
    return LlamaSettings(tiny_gguf, n_ctx=96, n_seq=3, n_batch=64, threads=1, gpu_layers=0)


@pytest.fixture
def target(settings: LlamaSettings) -> Iterator[LlamaVerifier]:
    engine = LlamaVerifier(settings)
    yield engine
    engine.close()


def row(target: LlamaVerifier, seq: int, at: int, ids: tuple[int, ...] = IDS) -> NDArray[np.float32]:
    """Logits after one more id of a sequence."""
    found = target.decode([Span(seq, at, (ids[at],), logits=True)])[0]
    assert found is not None
    return found[0].copy()


def others_step(target: LlamaVerifier, steps: int = PATIENCE + 1) -> None:
    """Sequence 2 takes so many steps alone."""
    for at in range(steps):
        row(target, 2, at, IDS[::-1])


def out(target: LlamaVerifier) -> set[int]:
    """What is out of the cells, whose size is told."""
    resting = target._context.resting
    assert resting is not None
    assert target.saved_bytes == saved_bytes(target) == sum(map(len, resting._out.values()))
    return {seq for seq in range(3) if seq in resting}


def test_it_goes_on_as_it_was(target: LlamaVerifier):
    """Taken out after so many steps of others, put back by its next."""
    target.decode([Span(0, 0, IDS[:30], logits=False)])
    straight = row(target, 0, 30)
    target.trim(0, 0)
    target.decode([Span(seq, 0, IDS[:30], logits=False) for seq in (0, 1)])
    others_step(target, PATIENCE)
    assert out(target) == set()
    row(target, 2, PATIENCE, IDS[::-1])
    assert out(target) == {0, 1}
    assert np.abs(row(target, 1, 30) - straight).max() < 1e-3
    assert out(target) == {0}


@pytest.mark.parametrize("use", ["cut", "copied", "emptied"])
def test_whatever_is_done_with_it(target: LlamaVerifier, use: str):
    """Cut, copied from and emptied as if it had never been out."""
    target.decode([Span(0, 0, IDS[:40], logits=False)])
    target.decode([Span(1, 0, IDS[:30], logits=False)])
    straight = row(target, 1, 30)
    target.trim(1, 0)
    others_step(target)
    assert out(target) == {0}
    if use == "cut":
        target.trim(0, 30)
    elif use == "copied":
        target.copy(1, 0, 30)
    else:
        target.trim(0, 0)
        target.decode([Span(0, 0, IDS[:30], logits=False)])
    assert out(target) == set()
    assert np.abs(row(target, int(use == "copied"), 30) - straight).max() < 1e-3


def test_too_much_stays(target: LlamaVerifier, monkeypatch: pytest.MonkeyPatch):
    """Beyond what the host's memory may be used for, sequences stay in their cells."""
    target.decode([Span(0, 0, IDS[:40], logits=False), Span(1, 0, IDS[:20], logits=False)])
    monkeypatch.setattr(llama_resting, "MOST_BYTES", target._context.cache.size(1))
    others_step(target)
    assert out(target) == {1}


def test_without_memory_it_stays(target: LlamaVerifier, monkeypatch: pytest.MonkeyPatch):
    """Where the host has none for it, a sequence stays in its cells, and nobody's step fails."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    target.decode([Span(0, 0, IDS[:40], logits=False)])
    monkeypatch.setattr(llama_cache.mmap, "mmap", full)
    others_step(target)
    assert out(target) == set()


def test_what_cannot_be_saved_stays(target: LlamaVerifier, monkeypatch: pytest.MonkeyPatch):
    """A save that fails is nothing to those who step."""
    target.decode([Span(0, 0, IDS[:40], logits=False)])
    straight = row(target, 0, 40)
    target.trim(0, 40)
    monkeypatch.setattr(target._context.cache.lib, "llama_state_seq_get_data_ext", lambda *_: 0)
    others_step(target)
    assert out(target) == set()
    assert np.abs(row(target, 0, 40) - straight).max() < 1e-3


def test_what_does_not_come_back_is_empty(target: LlamaVerifier, monkeypatch: pytest.MonkeyPatch):
    """Where llama.cpp does not take it back the step fails, and the sequence begins anew."""
    target.decode([Span(0, 0, IDS[:40], logits=False)])
    others_step(target)
    monkeypatch.setattr(target._context.cache.lib, "llama_state_seq_set_data_ext", lambda *_: 0)
    with pytest.raises(EngineError, match="take the state"):
        row(target, 0, 40)
    target.trim(0, 0)
    assert row(target, 0, 0).size


def test_a_drafters_rest_too(settings: LlamaSettings):
    """A draft model's sequences are the same kind of cells."""
    engine = LlamaDrafter(settings)
    engine.predict(0, IDS[:30], None)
    for token in IDS[: PATIENCE + 1]:
        engine.predict(1, [token], None)
    resting = engine._context.resting
    assert resting is not None
    assert 0 in resting
    assert engine.trim(0, 10) == 10
    assert 0 not in resting
    engine.close()


def test_not_where_cells_are_its_own(settings: LlamaSettings, make_gguf: Callable[..., Path]):
    """With cells of its own a sequence is in nobody's way; a recurrent state is no cell."""
    for path, reproducible in ((settings.path, True), (make_gguf("tiny-mamba", arch="mamba"), False)):
        engine = LlamaVerifier(LlamaSettings(path, n_ctx=64, threads=1, gpu_layers=0, reproducible=reproducible))
        assert engine._context.resting is None
        engine.close()
