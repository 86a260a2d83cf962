"""The memory of one of a drafter's sequences, with snapshots of what cannot be cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from specmesh.core.sampling.sampler import Sampler
from specmesh.engines.mlx.caches import Caches, SavedStates, evaluate
from specmesh.engines.mlx.model import mapped
from specmesh.errors import EngineError

STRIDE = 4  # ids after which another snapshot is taken
REACH = 48  # ids that the snapshots cover; no draft chain is longer

_TOGETHER = 8
"""Most ids of one pass with logits.

Of more ids, all but the last run without logits: the output layer is wide.
"""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """States after `length` ids."""

    length: int
    states: SavedStates


class MlxSequence:
    """The memory of one sequence, used from the model's thread."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        self.caches = Caches(self._model)
        self._snapshots: list[_Snapshot] = []
        self.length = 0
        self.n_vocab = 0

    def feed(self, ids: Sequence[int], sampler: Sampler | None, shift: int = 0) -> int | None:
        """Append ids; with a `sampler` return its choice after the last of them.

        shift: position in the text of the sequence's first id.

        After an EngineError the sequence is empty.
        """
        with mapped(self._failed):
            if sampler is not None and len(ids) > _TOGETHER:
                self._run(ids[:-1], None, shift)
                ids = ids[-1:]
            return self._run(ids, sampler, shift)

    def trim(self, length: int) -> int:
        """Keep at most the first `length` ids; return how many are kept.

        They are fewer if the model must go further back. After an EngineError the sequence is
        empty.
        """
        surplus = self.length - length
        if surplus <= 0:
            return self.length
        with mapped(self._failed):
            if not length or not self._go_back(length):
                self.clear()
        while self._snapshots and self._snapshots[-1].length > self.length:
            self._snapshots.pop()
        return self.length

    def _failed(self, reason: str) -> EngineError:
        self.clear()
        return EngineError(f"MLX cannot run this model: {reason}")

    def _run(self, ids: Sequence[int], sampler: Sampler | None, shift: int) -> int | None:
        rows = self._model(mx.array([ids]), cache=self.caches.layers)
        self.length += len(ids)
        self.n_vocab = int(rows.shape[-1])
        if sampler is None:  # nothing but the states is evaluated, and the output layer never runs
            evaluate(self.caches.arrays())
            self._remember()
            return None
        row = rows[0, -1]
        best = mx.argmax(row)
        evaluate(best, row, self.caches.watched_arrays())
        self._remember()
        if sampler.argmax:
            return int(best.item())  # type: ignore[arg-type] # an index
        return sampler.choose(np.array(row.astype(mx.float32)), self.length + shift)

    def _go_back(self, length: int) -> bool:
        """Go back to `length` ids, or to the newest snapshot of fewer; return False if none can."""
        if self.caches.can_cut_now:
            surplus = self.length - length
            self.length = length
            return self.caches.cut(surplus)
        for snapshot in reversed(self._snapshots):
            if snapshot.length <= length:
                surplus = self.length - snapshot.length
                self.length = snapshot.length
                return self.caches.restore(snapshot.states, surplus)
        return False

    def _remember(self) -> None:
        """Snapshot the layers that cannot be cut, or soon cannot."""
        if self._snapshots and self.length < self._snapshots[-1].length + STRIDE:
            return
        states = self.caches.saved(REACH)
        if states:
            del self._snapshots[: -REACH // STRIDE]
            self._snapshots.append(_Snapshot(self.length, states))
