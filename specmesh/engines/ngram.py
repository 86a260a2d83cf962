"""A drafter without a model: prompt lookup.

Text repeats itself: where the last few ids occurred before, what followed them then is a good guess now
(Saxena, "Prompt Lookup Decoding", 2023). Costs microseconds, and helps where answers quote their prompt.
"""

from collections.abc import Sequence

from specmesh.engines.base import ANY_ID, Ask, EngineInfo, Sequences

_SIZES = (4, 3, 2)
"""Lengths of the suffixes that are tried."""


class NgramDrafter:
    """Guesses the id that followed the most recent earlier occurrence of the longest known suffix."""

    vocabulary = None

    def __init__(self, n_ctx: int, n_seq: int) -> None:
        name, backend = f"ngram-{_SIZES[0]}", "prompt lookup"
        self.info = EngineInfo(name, n_ctx, n_ctx, n_seq, trimming="removal", backend=backend, reuse="cut")
        self._sequences = Sequences(n_seq, n_ctx, ANY_ID, n_ctx)
        self._histories = [_History() for _ in range(n_seq)]

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        return [self._guess(ask) for ask in asks]

    def _guess(self, ask: Ask) -> int | None:
        held = self._sequences.check_append(ask.seq, ask.ids)
        history = self._histories[ask.seq]
        history.extend(ask.ids)
        self._sequences.lengths[ask.seq] = held + len(ask.ids)
        return None if ask.sampler is None else history.guess()

    def trim(self, seq: int, length: int) -> int:
        kept = self._sequences.check_cut(seq, length)
        self._histories[seq].truncate(kept)
        self._sequences.lengths[seq] = kept
        return kept

    def close(self) -> None:
        pass


class _History:
    """Ids with an index of their n-grams that grows and shrinks with them, in constant time per id."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        # For each n-gram where it ended, oldest first: the index of the id after it.
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def extend(self, ids: Sequence[int]) -> None:
        for token in ids:
            self._ids.append(token)
            for gram in self._suffixes():
                self._ends.setdefault(gram, []).append(len(self._ids))

    def guess(self) -> int | None:
        for gram in self._suffixes():
            ends = self._ends[gram]
            if len(ends) > 1:
                return self._ids[ends[-2]]
        return None

    def truncate(self, length: int) -> None:
        while len(self._ids) > length:
            for gram in self._suffixes():
                self._ends[gram].pop()
                if not self._ends[gram]:
                    del self._ends[gram]
            self._ids.pop()

    def _suffixes(self) -> list[tuple[int, ...]]:
        return [tuple(self._ids[-size:]) for size in _SIZES if size <= len(self._ids)]
