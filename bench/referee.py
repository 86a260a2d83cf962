"""The target in the benchmark's own process: it encodes prompts, and judges texts that differ."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.core.sampling.noise import gumbel
from specmesh.engines.llama.engine import LlamaVerifier

MARGIN = 0.05
"""Largest observed difference of logits between kernels of different row widths."""


@contextmanager
def referee(path: str, n_ctx: int = 1024, gpu_layers: int = 0) -> Iterator[LlamaVerifier]:
    """Load the model of this file on one thread."""
    settings = ModelSettings(
        engine="llama", model=path, ctx=n_ctx, max_sessions=1, threads=1, gpu_layers=gpu_layers
    )
    engine = LlamaVerifier(settings, n_batch=n_ctx)
    try:
        yield engine
    finally:
        engine.close()


def near_tie(
    target: LlamaVerifier,
    prompt: Sequence[int],
    ids: Sequence[int],
    others: Sequence[int],
    noise: tuple[float, int] | None = None,
) -> bool:
    """Return True if two different texts after a prompt part at a near tie.

    There both ids are the target's first two choices, decoded anew in one row, and closer than
    MARGIN. noise: (temperature, seed) of sampled texts, whose noise at that position counts.
    """
    common = min(len(ids), len(others))
    at = 0
    while at < common and ids[at] == others[at]:
        at += 1
    if at == common:
        return False
    prefix = (*prompt, *ids[:at])
    target.carry_out(KVCut(0, 0))
    target.decode([Span(0, 0, prefix[:-1], logits=False)])
    [row] = target.decode([Span(0, len(prefix) - 1, prefix[-1:], logits=True)])
    assert row is not None
    scores = row[0].astype(np.float64)
    margin = MARGIN
    if noise is not None:
        temperature, seed = noise
        every_id = np.arange(len(scores))
        scores = scores / temperature + gumbel(np.uint64(seed), len(prefix), every_id)
        margin = MARGIN / temperature
    second, first = np.argsort(scores)[-2:].tolist()
    close = bool(scores[first] - scores[second] < margin)
    return close and {first, second} == {ids[at], others[at]}
