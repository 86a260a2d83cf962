"""Steps of a constant width: the same bits with and without drafts, however they are cut, and beside any others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.engines.llama import LlamaVerifier
from specmesh.errors import ConfigError, LocalProtocolError
from specmesh.paths import bundled

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

WIDTH, N_CTX, PROMPT, STEPS = 4, 600, 250, 40


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaVerifier]:
    path = Path(bundled("target.gguf"))
    engine = LlamaVerifier(ModelSettings("llama", str(path), ctx=N_CTX, max_sessions=3, threads=1, reproducible=True))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _empty(target: LlamaVerifier) -> None:
    for seq in range(3):
        target.trim(seq, 0)


@pytest.fixture(scope="module")
def ids(target: LlamaVerifier) -> tuple[int, ...]:
    return tuple(np.random.default_rng(3).integers(300, len(target.vocabulary) - 1, 600).tolist())


def rows(target: LlamaVerifier, *spans: Span) -> NDArray[np.float32]:
    found = target.decode(spans)[0]
    assert found is not None
    return found.copy()


def plain(target: LlamaVerifier, ids: tuple[int, ...], seq: int = 0) -> list[NDArray[np.float32]]:
    """The row after each id from PROMPT on, one id per step."""
    target.decode([Span(seq, 0, ids[:PROMPT], logits=False)])
    return [rows(target, Span(seq, at, (ids[at],), logits=True))[0] for at in range(PROMPT, PROMPT + STEPS)]


def test_drafts_change_no_bit(target, ids):
    """Right and wrong drafts of every number, over a boundary of the blocks that attention is computed in."""
    expected = plain(target, ids)
    target.decode([Span(1, 0, ids[:PROMPT], logits=False)])
    at, luck = PROMPT, np.random.default_rng(5)
    while at < PROMPT + STEPS:
        right = int(luck.integers(0, WIDTH))
        wrong = int(luck.integers(0, WIDTH - right))
        drafts = (*ids[at + 1 : at + 1 + right], *ids[:wrong])
        found = rows(target, Span(1, at, (ids[at], *drafts), logits=True))
        for row, shall in zip(found[: right + 1], expected[at - PROMPT :], strict=False):
            assert np.array_equal(row, shall)
        at += right + 1
        target.trim(1, at)


def test_other_sequences_change_no_bit(target, ids):
    """A sequence that shares its steps with others, whose rows come and go, is computed as it is alone."""
    expected = plain(target, ids)
    target.decode([Span(2, 0, ids[100:130], logits=False), Span(1, 0, ids[:PROMPT], logits=False)])
    for at in range(PROMPT, PROMPT + STEPS):
        other = Span(2, 30, ids[at - 3 : at], logits=True)
        found = rows(target, Span(1, at, (ids[at],), logits=True), other)
        target.trim(2, 30)
        assert np.array_equal(found[0], expected[at - PROMPT])


def test_the_whole_context(target, ids):
    """A step at the very end of a sequence has room for what fills it up; a prompt may be longer than one decode."""
    most = target.info.n_batch
    target.decode([Span(0, 0, ids[:most], logits=False)])
    target.decode([Span(0, most, ids[most : N_CTX - 1], logits=False)])
    assert target.decode([Span(0, N_CTX - 1, (5,), logits=True)])[0] is not None
    with pytest.raises(LocalProtocolError):
        target.decode([Span(0, N_CTX, (5,), logits=True)])


def test_models_that_cannot(make_gguf: Callable[..., Path]):
    """Rows that fill a step up must be removed again, which a recurrent state does not allow."""
    path = str(make_gguf("tiny-mamba", arch="mamba"))
    with pytest.raises(ConfigError, match="leave --reproducible out"):
        LlamaVerifier(ModelSettings("llama", path, ctx=64, max_sessions=1, threads=1, reproducible=True))
