"""A target is tried before it serves: a wrong state, or another bit, would be in a text."""

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut
from specmesh.engines.base import VerifyEngine
from specmesh.errors import ConfigError

_NOISE = 0.05
"""Share of the logits' spread by which passes of different width may differ.

A wrong state differs by all of it.
"""

_PROMPT = (7, 3, 11, 5, 2, 13, 1, 17, 4, 19, 6, 23, 8, 29, 9, 31)
_TEXT = (10, 37, 12, 41)
_WRONG = (14, 15, 16)


def check_rollback(engine: VerifyEngine) -> None:
    """Raise ConfigError if a text goes on otherwise after ids were taken back, or in a copy."""
    expected = _next_row(engine, 0, [(1, 2)])
    back = _next_row(engine, 0, [(1,), (2, 4, 5)])
    name = engine.info.model
    if expected is None or back is None or not _alike(back, expected):
        reason = f"{name} does not return to an earlier state, so it cannot verify"
        raise ConfigError(reason, "choose another model")
    if engine.info.capabilities.reuse != "copied" or engine.info.max_sessions < 2:
        return
    _read(engine, 0, [(1,), (2, 4, 5)])
    engine.carry_out(KVCut(1, 0))
    engine.carry_out(KVCopy(1, 0, 2))
    copied = _row(engine, Span(1, 2, (3,), logits=True))
    _empty(engine, 0, 1)
    if not _alike(copied, expected):
        reason = f"{name} goes on otherwise in a copy of a sequence, so it cannot verify"
        raise ConfigError(reason, "choose another model")


def check_bits(engine: VerifyEngine) -> None:
    """Raise ConfigError if rows depend on what else their step computes."""
    alone = _rows_of_text(engine, drafted=False)
    drafted = _rows_of_text(engine, drafted=True)
    if not np.array_equal(alone, drafted):
        reason = f"--reproducible: MLX rounds rows of {engine.info.model} by what is beside them"
        raise ConfigError(reason, "leave it out")


def _next_row(
    engine: VerifyEngine, seq: int, steps: list[tuple[int, ...]]
) -> NDArray[np.float32] | None:
    """Return the row after the ids 1, 2, 3, of which steps read the first two and wrong ones.

    None if the wrong ones cannot be taken back.
    """
    _read(engine, seq, steps)
    row = None
    if engine.carry_out(KVCut(seq, 2)) == 2:
        row = _row(engine, Span(seq, 2, (3,), logits=True))
    _empty(engine, seq)
    return row


def _read(engine: VerifyEngine, seq: int, steps: list[tuple[int, ...]]) -> None:
    position = 0
    for ids in steps:
        engine.decode([Span(seq, position, ids, logits=True)])
        position += len(ids)


def _rows_of_text(engine: VerifyEngine, *, drafted: bool) -> NDArray[np.float32]:
    """Return the rows of a text, (ids, n_vocab), read with right and wrong drafts or without."""
    engine.decode([Span(0, 0, _PROMPT, logits=False)])
    end = len(_PROMPT)
    rows: list[NDArray[np.float32]] = []
    steps = [(1, 0)] * len(_TEXT)
    if drafted:
        steps = [(1, 3), (2, 1), (1, 0)]
    at = 0
    for right, wrong in steps:
        ids = (*_TEXT[at : at + right], *_WRONG[:wrong])
        [found] = engine.decode([Span(0, end + at, ids, logits=True)])
        assert found is not None, "all of its rows have logits"
        rows.append(found[:right].copy())
        at += right
        engine.carry_out(KVCut(0, end + at))
    _empty(engine, 0)
    return np.concatenate(rows)


def _row(engine: VerifyEngine, span: Span) -> NDArray[np.float32]:
    [rows] = engine.decode([span])
    assert rows is not None, "all of its rows have logits"
    last: NDArray[np.float32] = rows[-1].copy()
    return last


def _empty(engine: VerifyEngine, *seqs: int) -> None:
    for seq in seqs:
        engine.carry_out(KVCut(seq, 0))


def _alike(found: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    spread = float(expected.max() - expected.mean())
    return float(np.abs(found - expected).max()) <= _NOISE * spread
