"""Which way of taking rows back a model allows, found out by trying each at load."""

from dataclasses import replace

import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.engines.base import Span
from specmesh.engines.llama_cache import CacheSizes, LlamaCache
from specmesh.engines.llama_model import LlamaModel
from specmesh.engines.llama_rewind import CARRY, Removal, Restore, Rewind, Rollback
from specmesh.errors import ConfigError, EngineError

_log = structlog.get_logger("specmesh.engines.llama")

_LEAST_BUDGET = 64 * 2**20
_NOISE = 0.05
"""Share of the spread of logits that kernels of different width may differ by; a wrong state differs by all of it."""


def open_cache(model: LlamaModel, sizes: CacheSizes, rollback: int) -> tuple[LlamaCache, Rewind]:
    """Reserve a model's memory and choose the cheapest way of taking rows back that works.

    rollback: how many rows of one step a verifier takes back at most; 0 for a drafter, which takes its rows in one by
    one, so that llama.cpp's own states, which are of one step, never reach far enough. Raises ConfigError.
    """
    cache = LlamaCache(model, sizes)
    try:
        if _removes(cache, model):
            return cache, Removal(cache)
        needed = len(cache.save(0)) * (rollback + 1) * sizes.n_seq
    except EngineError:
        return cache, Removal(cache, works=False)
    except BaseException:
        cache.close()
        raise
    cache.close()
    if rollback and needed <= max(model.size // 4, _LEAST_BUDGET):
        found = _with_rollback(model, sizes, rollback)
        if found is not None:
            return found
    return _with_restore(model, sizes, ahead=not rollback)


def _removes(cache: LlamaCache, model: LlamaModel) -> bool:
    """Whether plain removal works; leaves one or two ids, and pays what only the very first step costs."""
    try:
        cache.run([Span(0, 0, (0, 0), logits=False)])
    except EngineError as error:
        raise ConfigError(f"{model.name} does not run: {error}") from error
    if not cache.remove(0, 1):
        return False
    cache.forget(0)
    return True


def _with_rollback(model: LlamaModel, sizes: CacheSizes, rows: int) -> tuple[LlamaCache, Rewind] | None:
    # A part of a batch must hold more rows than are kept, or llama.cpp ends the process; and all sequences at once.
    most = max(sizes.rows, (rows + 1) * sizes.n_seq, rows + 2)
    try:
        cache = LlamaCache(model, replace(sizes, rows=most, snapshots=rows))
    except ConfigError as error:
        _log.warning("rollback_not_possible", model=model.name, reason=str(error))
        return None
    if cache.snapshots == rows and _rolls_back(cache):
        return cache, Rollback(cache, sizes.n_seq)
    cache.close()
    return None


def _with_restore(model: LlamaModel, sizes: CacheSizes, *, ahead: bool) -> tuple[LlamaCache, Rewind]:
    cache = LlamaCache(model, replace(sizes, rows=sizes.rows + CARRY * sizes.n_seq))
    for cache.partial in (True, False):
        if _restores(cache):
            return cache, Restore(cache, sizes.n_seq, sizes.rows, ahead=ahead)
    return cache, Removal(cache, works=False)


def _rolls_back(cache: LlamaCache) -> bool:
    try:
        expected = _straight(cache)
        cache.run([Span(0, 0, (1, 2, 4, 5), logits=False)])
        return cache.remove(0, 2) and _same(_third(cache), expected)
    except EngineError:
        return False
    finally:
        cache.forget(0)


def _restores(cache: LlamaCache) -> bool:
    try:
        expected = _straight(cache)
        cache.run([Span(0, 0, (1, 2), logits=False)])
        state = cache.save(0)
        cache.run([Span(0, 2, (4, 5), logits=False)])
        cache.load(0, 2, state)
        return _same(_third(cache), expected)
    except EngineError:
        return False
    finally:
        cache.forget(0)


def _straight(cache: LlamaCache) -> NDArray[np.float32]:
    """Logits after three ids with nothing taken back."""
    cache.forget(0)
    cache.run([Span(0, 0, (1, 2), logits=False)])
    logits = _third(cache)
    cache.forget(0)
    return logits


def _third(cache: LlamaCache) -> NDArray[np.float32]:
    cache.run([Span(0, 2, (3,), logits=True)])
    row: NDArray[np.float32] = cache.logits(1)[0].copy()
    return row


def _same(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    spread = float(expected.max() - expected.mean())
    return float(np.abs(logits - expected).max()) <= _NOISE * spread
