"""The target once more, in the benchmark's own process: it encodes prompts, and judges where texts part."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.sampling.noise import gumbel
from specmesh.engines.llama import LlamaVerifier

MARGIN = 0.05
"""Logits by which kernels of different row widths were seen to differ."""


@contextmanager
def referee(path: str, n_ctx: int = 1024) -> Iterator[LlamaVerifier]:
    """The model of this file on one thread."""
    engine = LlamaVerifier(
        ModelSettings("llama", path, ctx=n_ctx, max_sessions=1, threads=1), n_batch=n_ctx
    )
    try:
        yield engine
    finally:
        engine.close()


def near_tie(
    target: LlamaVerifier,
    prefix: Sequence[int],
    ids: set[int],
    noise: tuple[float, int] | None = None,
) -> bool:
    """Whether these ids are the target's first two choices after `prefix`, decoded anew in one row, and lie closer than
    MARGIN; sampled with this (temperature, seed), with the noise of that position."""
    target.trim(0, 0)
    target.decode([Span(0, 0, tuple(prefix[:-1]), logits=False)])
    row = target.decode([Span(0, len(prefix) - 1, (prefix[-1],), logits=True)])[0]
    assert row is not None
    scores, margin = row[0].astype(np.float64), MARGIN
    if noise is not None:
        temperature, seed = noise
        scores = scores / temperature + gumbel(np.uint64(seed), len(prefix), np.arange(len(scores)))
        margin = MARGIN / temperature
    second, first = np.argsort(scores)[-2:].tolist()
    return {first, second} == ids and bool(scores[first] - scores[second] < margin)
