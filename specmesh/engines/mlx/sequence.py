"""One sequence's memory in MLX: mlx-lm's caches, and snapshots of those that cannot be cut.

Full attention can be cut anywhere. A recurrent layer keeps one state, and a sliding window forgets: neither can go
back. MLX arrays are immutable, so keeping an earlier state costs memory and no work.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map  # pyright: ignore[reportUnknownVariableType]  # of any tree
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from specmesh.core.sampling.sampler import Sampler
from specmesh.engines.mlx.model import mapped
from specmesh.errors import EngineError

# A snapshot is taken where STRIDE ids have come since the last; as many are kept as cover REACH ids: no draft chain is
# longer.
STRIDE = 4
REACH = 48

_TOGETHER = 8  # most ids of one pass with logits; of more, all but the last run without: the output layer is wide


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """States of the layers that cannot be cut, by layer, after `length` ids. Their arrays have handles of their own: a
    cache that assigns to a slice changes only the handle it holds."""

    length: int
    states: dict[int, Any]


class MlxSequence:
    """Used from the model's thread."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        self._caches: list[Any] = make_prompt_cache(self._model)
        self._watched = [
            index for index, cache in enumerate(self._caches) if not _always_trims(cache)
        ]
        self._snapshots: list[_Snapshot] = []
        self.length = self.n_vocab = 0

    @property
    def can_trim(self) -> bool:
        """Whether every layer can be cut anywhere, however long the sequence is."""
        return not self._watched

    def feed(self, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        """Append ids; with a `sampler` return its choice after the last of them. After an EngineError it is empty."""
        with mapped(self._failed):
            if sampler is not None and len(ids) > _TOGETHER:
                self._run(ids[:-1], None)
                ids = ids[-1:]
            return self._run(ids, sampler)

    def trim(self, length: int) -> int:
        """Keep at most the first `length` ids, fewer where the model must go further back; returns how many. After an
        EngineError it is empty."""
        surplus = self.length - length
        if surplus <= 0:
            return self.length
        with mapped(self._failed):
            if not length or not (
                self._cut(surplus) if can_trim_prompt_cache(self._caches) else self._go_back(length)
            ):
                self.clear()
        self._snapshots = [kept for kept in self._snapshots if kept.length <= self.length]
        return self.length

    def _failed(self, said: str) -> EngineError:
        self.clear()
        return EngineError(f"MLX cannot run this model: {said}")

    def _run(self, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        rows = self._model(mx.array([ids]), cache=self._caches)
        self.length += len(ids)
        self.n_vocab = int(rows.shape[-1])
        if sampler is None:  # nothing but the states is evaluated, and the output layer never runs
            mx.eval([cache.state for cache in self._caches])  # pyright: ignore[reportUnknownMemberType]  # of any tree
            self._remember()
            return None
        row = rows[0, -1]
        best = mx.argmax(row)
        mx.eval(best, row, [self._caches[index].state for index in self._watched])  # pyright: ignore[reportUnknownMemberType]  # likewise
        self._remember()
        if sampler.argmax:
            return int(best.item())  # type: ignore[arg-type] # an index
        return sampler.choose(np.array(row.astype(mx.float32)), self.length)

    def _cut(self, surplus: int) -> bool:
        """Cut every layer; returns whether each really lost `surplus` ids."""
        trimmed: Any = trim_prompt_cache(
            self._caches, surplus
        )  # a count, whatever its annotation says
        if trimmed != surplus:
            return False
        self.length -= surplus
        return all(
            getattr(cache, "offset", 0) in (0, self.length) for cache in self._caches
        )  # 0: an unused layer

    def _go_back(self, length: int) -> bool:
        """Return to the newest snapshot of at most `length` ids; False where there is none or a layer stays."""
        snapshot = next((kept for kept in reversed(self._snapshots) if kept.length <= length), None)
        if snapshot is None:
            return False
        surplus = self.length - snapshot.length
        for index, cache in enumerate(self._caches):
            if index in snapshot.states:
                cache.state = tree_map(copy.copy, snapshot.states[index])
            elif not cache.is_trimmable() or cache.trim(surplus) != surplus:
                return False
        self.length = snapshot.length
        return True

    def _remember(self) -> None:
        """Snapshot the layers that cannot be cut, or soon cannot."""
        if self._snapshots and self.length < self._snapshots[-1].length + STRIDE:
            return
        lost = {
            index: cache for index in self._watched if _loses_its_past(cache := self._caches[index])
        }
        states = {index: tree_map(copy.copy, cache.state) for index, cache in lost.items()}
        if states:
            self._snapshots = [*self._snapshots[-REACH // STRIDE :], _Snapshot(self.length, states)]


def _always_trims(cache: Any) -> bool:
    """Return whether a cache can be cut however long it gets: no state, no window, nothing nested."""
    return cache.is_trimmable() and not hasattr(cache, "max_size") and not hasattr(cache, "caches")


def _loses_its_past(cache: Any) -> bool:
    """Return whether a cache cannot be cut, or is a window so nearly full that drafting may fill it."""
    nested = getattr(cache, "caches", ())
    if nested:
        return any(_loses_its_past(one) for one in nested)
    room = getattr(cache, "max_size", np.inf) - getattr(cache, "offset", 0)
    return not cache.is_trimmable() or room <= REACH
