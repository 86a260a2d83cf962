"""Sequences that nobody steps for a while, taken out of the cells.

In a unified memory a row is held against every cell up to the last one in use, if only to find that it is another
sequence's. So what a session left for others would slow down all that run meanwhile. It waits in the host's memory, and
is put back, the same numbers in other cells, before it is used.
"""

import contextlib
from collections.abc import Collection

from specmesh.engines.llama_cache import LlamaCache, SavedState
from specmesh.engines.sequences import Sequences
from specmesh.errors import EngineError

PATIENCE = 16
"""Steps of others after which a sequence is taken out. Sessions that are only waiting for drafts join them sooner."""

MOST_BYTES = 2 * 2**30
"""What is more than this stays in its cells."""


class Resting:
    """What is out of the cells of one cache, `size` bytes. `sequences` count it all the same."""

    def __init__(self, cache: LlamaCache, sequences: Sequences, n_seq: int) -> None:
        self._cache, self._sequences = cache, sequences
        self._rested = [0] * n_seq  # steps of others since it was used
        self._out: dict[int, SavedState] = {}
        self.size = 0

    def __contains__(self, seq: int) -> bool:
        return seq in self._out

    def step(self, seqs: Collection[int]) -> None:
        """Before a step of these: put them back, and take out who has rested long enough; raises EngineError."""
        for seq in seqs:
            self.wake(seq)
        for seq, rested in enumerate(self._rested):
            if seq not in seqs and seq not in self._out and self._sequences.held(seq):
                self._rested[seq] = rested + 1
                if rested >= PATIENCE:
                    self._take_out(seq)

    def wake(self, seq: int) -> None:
        """Put a sequence back that is to be used; raises EngineError, and it is empty then."""
        state = self._taken(seq)
        if state is None:
            return
        try:
            self._cache.put_back(seq, self._sequences.held(seq), state)
        except EngineError:
            self._sequences.set(seq, 0)
            raise

    def drop(self, seq: int) -> None:
        self._taken(seq)

    def _taken(self, seq: int) -> SavedState | None:
        """What is out of a sequence, and not any more."""
        self._rested[seq] = 0
        state = self._out.pop(seq, None)
        self.size -= len(state) if state is not None else 0
        return state

    def _take_out(self, seq: int) -> None:
        self._rested[seq] = 0
        if self.size + self._cache.size(seq) <= MOST_BYTES:
            with contextlib.suppress(EngineError):  # it may stay where it is
                self._out[seq] = state = self._cache.take_out(seq)
                self.size += len(state)
