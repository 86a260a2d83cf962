"""One sequence's memory in MLX: mlx-lm's caches, and snapshots of those that cannot be cut.

Full attention can be cut anywhere. A recurrent layer keeps one state, and a sliding window forgets:
neither can go back. MLX arrays are immutable, so keeping an earlier state costs memory and no work.
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

STRIDE = 4  # ids after which another snapshot is taken
REACH = 48  # ids that the snapshots cover; no draft chain is longer

_TOGETHER = 8
"""Most ids of one pass with logits.

Of more ids, all but the last run without logits: the output layer is wide.
"""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """States of the layers that cannot be cut, by layer, after `length` ids.

    Their arrays have handles of their own: a cache that assigns to a slice changes only the handle
    that it holds.
    """

    length: int
    states: dict[int, Any]


class MlxSequence:
    """The memory of one sequence, used from the model's thread."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        self._caches: list[Any] = make_prompt_cache(self._model)
        self._watched = list[int]()
        for index, cache in enumerate(self._caches):
            if not _always_trims(cache):
                self._watched.append(index)
        self._snapshots: list[_Snapshot] = []
        self.length = 0
        self.n_vocab = 0

    @property
    def can_trim(self) -> bool:
        """Return True if every layer can be cut anywhere, however long the sequence is."""
        return not self._watched

    @property
    def is_endless(self) -> bool:
        """Return True if no layer's memory grows with the sequence."""
        return not any(
            hasattr(cache, "offset") or hasattr(cache, "caches") for cache in self._caches
        )

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
            if not length:
                done = False
            elif can_trim_prompt_cache(self._caches):
                done = self._cut(surplus)
            else:
                done = self._go_back(length)
            if not done:
                self.clear()
        while self._snapshots and self._snapshots[-1].length > self.length:
            self._snapshots.pop()
        return self.length

    def _failed(self, reason: str) -> EngineError:
        self.clear()
        return EngineError(f"MLX cannot run this model: {reason}")

    def _run(self, ids: Sequence[int], sampler: Sampler | None, shift: int) -> int | None:
        rows = self._model(mx.array([ids]), cache=self._caches)
        self.length += len(ids)
        self.n_vocab = int(rows.shape[-1])
        if sampler is None:  # nothing but the states is evaluated, and the output layer never runs
            states = [cache.state for cache in self._caches]
            mx.eval(states)  # pyright: ignore[reportUnknownMemberType]  # of any tree
            self._remember()
            return None
        row = rows[0, -1]
        best = mx.argmax(row)
        states = [self._caches[index].state for index in self._watched]
        mx.eval(best, row, states)  # pyright: ignore[reportUnknownMemberType]  # likewise
        self._remember()
        if sampler.argmax:
            return int(best.item())  # type: ignore[arg-type] # an index
        return sampler.choose(np.array(row.astype(mx.float32)), self.length + shift)

    def _cut(self, surplus: int) -> bool:
        """Cut every layer; return True if each really lost `surplus` ids."""
        trimmed: Any = trim_prompt_cache(self._caches, surplus)  # a count, despite its annotation
        if trimmed != surplus:
            return False
        self.length -= surplus
        offsets = {getattr(cache, "offset", 0) for cache in self._caches}
        return offsets <= {0, self.length}  # 0: an unused layer

    def _go_back(self, length: int) -> bool:
        """Go back to the newest snapshot of at most `length` ids.

        Return False if there is none, or a layer cannot be cut.
        """
        for snapshot in reversed(self._snapshots):
            if snapshot.length <= length:
                break
        else:
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
        states = dict[int, Any]()
        for index in self._watched:
            cache = self._caches[index]
            if _loses_its_past(cache):
                states[index] = tree_map(copy.copy, cache.state)
        if states:
            del self._snapshots[: -REACH // STRIDE]
            self._snapshots.append(_Snapshot(self.length, states))


def _always_trims(cache: Any) -> bool:
    """Return True if a cache can be cut however long it gets: no state, window or nested caches."""
    return cache.is_trimmable() and not hasattr(cache, "max_size") and not hasattr(cache, "caches")


def _loses_its_past(cache: Any) -> bool:
    """Return True if a cache cannot be cut, or is a window that drafting may fill."""
    nested = getattr(cache, "caches", ())
    if nested:
        return any(map(_loses_its_past, nested))
    room = getattr(cache, "max_size", np.inf) - getattr(cache, "offset", 0)
    return not cache.is_trimmable() or room <= REACH
