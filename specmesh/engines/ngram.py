"""A drafter without a model: prompt lookup.

Text repeats itself: where the last few ids occurred before, what followed them then is a good guess now
(Saxena, "Prompt Lookup Decoding", 2023). Costs microseconds, and helps where answers quote their prompt.
"""

from collections.abc import Sequence

from specmesh.core.sampling.sampler import Sampler
from specmesh.engines.base import ANY_ID, EngineInfo, Sequences
from specmesh.errors import ConfigError, LocalProtocolError


class NgramDrafter:
    """Guesses the id that followed the most recent earlier occurrence of the longest known suffix.

    n_ctx and n_seq are as in EngineInfo; suffixes of `longest` down to `shortest` ids are tried.
    """

    def __init__(self, n_ctx: int, n_seq: int, *, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ConfigError(f"n-gram sizes {shortest} to {longest}: need 1 <= shortest <= longest")
        name = f"ngram-{longest}"
        backend = "prompt lookup"
        self.info = EngineInfo(name, n_ctx, n_ctx, n_seq, trimming="removal", backend=backend, reuse="cut")
        self.vocabulary = None
        self._sequences = Sequences(n_seq, n_ctx, ANY_ID)
        self._histories = [_History(longest, shortest) for _ in range(n_seq)]

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        held = self._sequences.check_append(seq, ids, self.info.n_batch)
        history = self._histories[seq]
        history.extend(ids)
        self._sequences.set(seq, held + len(ids))
        return None if sampler is None else history.guess()

    def trim(self, seq: int, length: int) -> int:
        held = self._sequences.held(seq)
        if length < 0:
            raise LocalProtocolError(f"sequence {seq} cannot be cut to {length}")
        kept = min(held, length)
        self._histories[seq].truncate(kept)
        self._sequences.set(seq, kept)
        return kept

    def close(self) -> None:
        pass


class _History:
    """Ids with an index of their n-grams that grows and shrinks with them, in constant time per id."""

    def __init__(self, longest: int, shortest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
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
        return [tuple(self._ids[-size:]) for size in self._sizes if size <= len(self._ids)]
