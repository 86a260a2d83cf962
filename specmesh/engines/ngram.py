"""A drafter without a model: prompt lookup.

Text repeats itself. If the last few ids occurred before, the id that followed them then is a good
draft now (Saxena, "Prompt Lookup Decoding", 2023). A draft costs tens of microseconds. It helps
with answers that quote their prompt.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specmesh.core.kv_orders import KVCut, KVOrder
from specmesh.engines.base import ANY_ID, Ask, Capabilities, EngineInfo, Sequences, Unthreaded

CALL_IDS = 4096  # most ids of a call
FIRST_IDS = 4096  # ids of a sequence that there is room for from the start
_SIZES = (4, 3, 2)  # lengths of the suffixes that are tried


class NgramDrafter(Unthreaded):
    """Drafts the id that followed the most recent earlier occurrence of the longest suffix."""

    vocabulary = None

    def __init__(self, max_sessions: int) -> None:
        self.info = EngineInfo(
            model=f"ngram-{_SIZES[0]}",
            n_ctx=ANY_ID - 1,
            n_batch=CALL_IDS,
            max_sessions=max_sessions,
            backend="prompt lookup",
            capabilities=Capabilities(reuse="cut", endless=True),
        )
        self._sequences = Sequences(max_sessions, self.info.n_ctx, ANY_ID, CALL_IDS)
        self._ids = [np.zeros(FIRST_IDS, np.int32) for _ in range(max_sessions)]

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> int | None:
        held = self._sequences.check_append(ask.seq, ask.ids)
        end = held + len(ask.ids)
        self._sequences.lengths[ask.seq] = end
        self._grow(ask.seq, end)
        self._ids[ask.seq][held:end] = ask.ids
        if ask.sampler is None:
            return None
        ids = self._ids[ask.seq][:end]
        for size in _SIZES:
            if size < end:
                begins = _earlier_begins(ids, size)
                if begins.size:
                    return int(ids[begins[-1] + size])
        return None

    def _grow(self, seq: int, end: int) -> None:
        """Make room for so many ids of a sequence: twice as many as it had, at least."""
        room = len(self._ids[seq])
        if end > room:
            grown = np.zeros(max(end, 2 * room), np.int32)
            grown[:room] = self._ids[seq]
            self._ids[seq] = grown

    def carry_out(self, order: KVOrder) -> int:
        if not isinstance(order, KVCut):
            return self._sequences.decline(order)
        kept = self._sequences.cut(order)
        if not kept:
            self._ids[order.seq] = np.zeros(FIRST_IDS, np.int32)
        return kept


def _earlier_begins(ids: NDArray[np.int32], size: int) -> NDArray[np.intp]:
    """Return the positions at which the last `size` of these ids begin earlier too."""
    before = len(ids) - size
    same = np.ones(before, np.bool_)
    for index in range(size):
        same &= ids[index : before + index] == ids[before + index]
    return np.flatnonzero(same)
