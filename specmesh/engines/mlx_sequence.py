"""What an MLX model remembers of one sequence: mlx-lm's caches, and snapshots of those that cannot be cut.

A layer that attends to all that came before keeps keys and values, and can be cut anywhere. A recurrent layer keeps one
state, and a sliding window forgets: neither can go back. MLX arrays are immutable, so keeping an earlier state costs
its memory and no work.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache
from numpy.typing import NDArray

RECENT = 4
"""Each of the newest so many positions has a snapshot,"""

STRIDE = 8
"""then each position divisible by this,"""

REACH = 40
"""down to so many ids before the newest, and one beyond: no draft chain is longer."""

_TOGETHER = 8
"""Up to so many ids run in one pass with logits; of more, all but the last run without: the output layer is wide."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """States of the layers that cannot be cut, by layer, after `length` ids."""

    length: int
    states: dict[int, Any]


@dataclass(frozen=True, slots=True)
class MlxRow:
    """Logits after the last id fed. Reading a large vocabulary takes a while: `best` is known without it."""

    logits: Any
    best: int

    def numpy(self) -> NDArray[np.float32]:
        """Float32, shape (n_vocab,)."""
        return np.array(self.logits.astype(mx.float32))


class MlxSequence:
    """The memory of one sequence. Everything here runs on the model's thread; errors are mlx-lm's own."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        self._caches: list[Any] = make_prompt_cache(self._model)
        self._watched = [index for index, cache in enumerate(self._caches) if not _always_trims(cache)]
        self._snapshots: list[_Snapshot] = []
        self.length = 0

    @property
    def can_trim(self) -> bool:
        """Whether every layer can be cut anywhere, however long the sequence is."""
        return not self._watched

    def feed(self, ids: Sequence[int], *, logits: bool) -> MlxRow | None:
        """Append ids; with `logits` the row after the last of them."""
        if not logits:
            self._run(ids, logits=False)
            return None
        if len(ids) > _TOGETHER:
            self._run(ids[:-1], logits=False)
            ids = ids[-1:]
        return self._run(ids, logits=True)

    def trim(self, length: int) -> int:
        """Keep at most the first `length` ids; how many are held now, fewer where the model cannot go back so far."""
        surplus = self.length - length
        if surplus <= 0:
            return self.length
        if not length or not (self._cut(surplus) if can_trim_prompt_cache(self._caches) else self._go_back(length)):
            self.clear()
        self._snapshots = [kept for kept in self._snapshots if kept.length <= self.length]
        return self.length

    def _run(self, ids: Sequence[int], *, logits: bool) -> MlxRow | None:
        rows = self._model(mx.array([ids]), cache=self._caches)
        self.length += len(ids)
        if not logits:  # nothing but the states is evaluated, and the output layer never runs
            mx.eval(self._states())
            self._remember()
            return None
        row = rows[0, -1]
        best = mx.argmax(row)
        mx.eval(best, row, [self._caches[index].state for index in self._watched])
        self._remember()
        return MlxRow(row, int(best.item()))  # type: ignore[arg-type] # an index

    def _states(self) -> list[Any]:
        return [cache.state for cache in self._caches]

    def _cut(self, surplus: int) -> bool:
        """Cut every layer; whether each really lost `surplus` ids."""
        trimmed: Any = trim_prompt_cache(self._caches, surplus)  # a count, whatever its annotation says
        if trimmed != surplus:
            return False
        self.length -= surplus
        return all(getattr(cache, "offset", 0) in (0, self.length) for cache in self._caches)  # 0: an unused layer

    def _go_back(self, length: int) -> bool:
        """Return to the newest snapshot of at most `length` ids; whether there was one and every layer went along."""
        snapshot = next((kept for kept in reversed(self._snapshots) if kept.length <= length), None)
        if snapshot is None:
            return False
        surplus = self.length - snapshot.length
        for index, cache in enumerate(self._caches):
            if index in snapshot.states:
                cache.state = _handles(snapshot.states[index])
            elif not cache.is_trimmable() or cache.trim(surplus) != surplus:
                return False
        self.length = snapshot.length
        return True

    def _remember(self) -> None:
        """Keep the present state of the layers that cannot be cut, or soon cannot."""
        states = {i: _handles(self._caches[i].state) for i in self._watched if _loses_its_past(self._caches[i])}
        if not states:
            return
        self._snapshots.append(_Snapshot(self.length, states))
        self._snapshots = [kept for kept in self._snapshots if self._is_worth_keeping(kept)]
        while len(self._snapshots) > 1 and self._snapshots[1].length <= self.length - REACH:
            del self._snapshots[0]

    def _is_worth_keeping(self, snapshot: _Snapshot) -> bool:
        oldest = snapshot is self._snapshots[0]
        return oldest or snapshot.length > self.length - RECENT or snapshot.length % STRIDE == 0


def _always_trims(cache: Any) -> bool:
    """Whether a fresh cache can be cut and stays so: no state, no window, nothing nested that might have one."""
    return cache.is_trimmable() and not hasattr(cache, "max_size") and not hasattr(cache, "caches")


def _loses_its_past(cache: Any) -> bool:
    """Whether a cache cannot be cut, or is a window so nearly full that drafting may fill it."""
    nested = getattr(cache, "caches", ())
    if nested:
        return any(_loses_its_past(one) for one in nested)
    room = getattr(cache, "max_size", np.inf) - getattr(cache, "offset", 0)
    return not cache.is_trimmable() or room <= REACH


def _handles(state: Any) -> Any:
    """The same arrays under handles of their own: a cache that assigns to a slice changes only the handle it holds."""
    if isinstance(state, mx.array):
        return copy.copy(state)
    if isinstance(state, list | tuple):
        return type(state)(_handles(one) for one in state)
    return state
