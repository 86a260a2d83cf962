"""A drafter without a model: prompt lookup.

Text repeats itself: where the last few ids occurred before, what followed them then is a good draft now
(Saxena, "Prompt Lookup Decoding", 2023). Costs tens of microseconds, and helps where answers quote their prompt.
"""

from collections.abc import Sequence

import numpy as np

from specmesh.engines.base import ANY_ID, Ask, EngineInfo, Sequences

_SIZES = (4, 3, 2)  # lengths of the suffixes that are tried


class NgramDrafter:
    """Drafts the id that followed the most recent earlier occurrence of the longest known suffix."""

    vocabulary = None

    def __init__(self, n_ctx: int, max_sessions: int) -> None:
        name, backend = f"ngram-{_SIZES[0]}", "prompt lookup"
        self.info = EngineInfo(
            name, n_ctx, n_ctx, max_sessions, trimming="removal", backend=backend, reuse="cut"
        )
        self._sequences = Sequences(max_sessions, n_ctx, ANY_ID, n_ctx)
        self._ids = np.zeros((max_sessions, n_ctx), np.int32)

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> int | None:
        held = self._sequences.check_append(ask.seq, ask.ids)
        self._sequences.lengths[ask.seq] = end = held + len(ask.ids)
        self._ids[ask.seq, held:end] = ask.ids
        if ask.sampler is None:
            return None
        ids = self._ids[ask.seq, :end]
        for size in _SIZES:
            before = max(end - size, 0)  # so many places where an earlier occurrence may begin
            same = np.ones(before, np.bool_)
            for index in range(size if before else 0):
                same &= ids[index : before + index] == ids[before + index]
            if (begins := np.flatnonzero(same)).size:
                return int(ids[begins[-1] + size])
        return None

    def trim(self, seq: int, length: int) -> int:
        self._sequences.lengths[seq] = kept = self._sequences.check_trim(seq, length)
        return kept

    def close(self) -> None:
        pass
