"""The memory of one of a target's sequences: rows are taken back, states saved and copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from specmesh.engines.mlx.caches import SPARE, Caches, SavedStates, evaluate, size_of
from specmesh.errors import EngineError

_CARRY = 8
"""Most ids that are decoded again within the next pass, which reads the weights only once.

More are decoded on their own, and the states are saved after them.
"""

_NO_STATES: SavedStates = {}


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """States that the daemon's core has ordered to save; copies of a sequence share them."""

    states: SavedStates
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Saved:
    """States after `length` ids."""

    length: int
    states: SavedStates


class TargetSequence:
    """The memory of one sequence, used from the model's thread.

    Where all layers can be cut, or only windows cannot, rows are taken back from the caches. Else
    the states before rows that may be taken back are saved. To take rows back these are restored,
    and the ids that stay are decoded again.

    After an exception it is in no known state, and must be cleared.

    ids: that it holds. read: how many of them the caches hold; the others are decoded again.
    checkpoints: by the number of ids before them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self.caches = Caches(self._model)
        self.ids: list[int] = []
        self.read = 0
        self._before: _Saved | None = None  # the newest rows that may be taken back
        self.checkpoints: dict[int, Checkpoint] = {}

    @property
    def length(self) -> int:
        """Return the number of ids that it holds."""
        return len(self.ids)

    def measure(self) -> int:
        """Take some ids in, so that the caches have sizes; return the number of the model's ids."""
        rows = self.append((0, 0), drafted=False)
        evaluate(rows, self.caches.arrays())
        return int(rows.shape[-1])

    def append(self, ids: Sequence[int], *, drafted: bool) -> Any:
        """Append ids; return their logits, (ids, n_vocab), which are not evaluated yet.

        drafted: all but the first may be taken back.
        """
        behind = self.ids[self.read :]
        if len(behind) > _CARRY:
            self._pass(behind)
            evaluate(self.caches.arrays())
            behind = []
        self._prepare(drafted=drafted and len(ids) > 1)
        self.ids += ids
        rows = self._pass([*behind, *ids])[0]
        return rows[len(behind) :] if behind else rows

    def _prepare(self, *, drafted: bool) -> None:
        """Save the states before rows that may be taken back, if they will be needed."""
        if not drafted:
            self._before = None
        elif not self.caches.windows_only:
            self._before = _Saved(self.read, self.caches.saved())

    def _pass(self, ids: Sequence[int]) -> Any:
        rows = self._model(mx.array([ids]), cache=self.caches.layers)
        self.read += len(ids)
        return rows

    def trim(self, length: int) -> int:
        """Keep at most the first `length` ids; return how many are kept.

        It is emptied if the model cannot go back so far.
        """
        if length >= self.length:
            return self.length
        for saved in [saved for saved in self.checkpoints if saved > length]:
            del self.checkpoints[saved]
        is_much = self.length - length >= SPARE
        if not length or not self._go_back(length):
            self.clear()
        elif is_much:
            self.caches.shrink()
        del self.ids[length:]
        return self.length

    def _go_back(self, length: int) -> bool:
        """Have the caches hold at most `length` ids; return False if they cannot."""
        if length >= self.read:
            return True
        surplus = self.read - length
        if self.caches.windows_only and self.caches.can_lose(surplus):
            self.read = length
            return self.caches.cut(surplus)
        saved = self._newest(length)
        if saved is None:
            return False
        surplus = self.read - saved.length
        self.read = saved.length
        return self.caches.restore(saved.states, surplus)

    def _newest(self, length: int) -> _Saved | None:
        """Return the newest saved states of at most `length` ids."""
        found: list[_Saved] = []
        for kept, checkpoint in self.checkpoints.items():
            if kept <= length:
                found.append(_Saved(kept, checkpoint.states))
        if self._before is not None and self._before.length <= length:
            found.append(self._before)
        return max(found, key=lambda saved: saved.length, default=None)

    # --- checkpoints and copies

    def keep(self) -> None:
        """Save a checkpoint of all ids."""
        behind = self.ids[self.read :]
        if behind:
            self._pass(behind)
            evaluate(self.caches.arrays())
        states = self.caches.saved()
        self.checkpoints[self.length] = Checkpoint(states, size_of(states))

    def drop(self, length: int) -> None:
        """Forget a checkpoint."""
        self.checkpoints.pop(length, None)

    def can_share(self, length: int) -> bool:
        """Return True if another sequence can begin with the first `length` ids."""
        return self.caches.can_cut or length in self.checkpoints

    def begin_as(self, source: "TargetSequence", length: int) -> None:
        """Begin with the first `length` ids of another that can share them; this one is empty."""
        checkpoint = source.checkpoints.get(length)
        states = _NO_STATES if checkpoint is None else checkpoint.states
        if not self.caches.copy_from(source.caches, states, source.read - length):
            raise EngineError("a sequence could not be copied")
        self.caches.shrink()
        self.ids = source.ids[:length]
        self.read = length
        for saved, kept in source.checkpoints.items():
            if saved <= length:
                self.checkpoints[saved] = kept
