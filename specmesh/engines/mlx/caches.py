"""mlx-lm's caches of one sequence, and how far back each of them can go.

Full attention can be cut anywhere. A recurrent layer keeps one state, and a sliding window forgets:
neither can go back. MLX arrays are immutable, so keeping an earlier state costs memory and no work.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map  # pyright: ignore[reportUnknownVariableType]
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

SavedStates = Mapping[int, Any]
"""States of caches that cannot be cut, by their places.

Their arrays have handles of their own: a cache that assigns to a slice changes only the handle that
it holds.
"""


SPARE = 512
"""Ids that a cache may have memory for beyond those that it holds."""


def evaluate(*arrays: Any) -> None:
    """Have MLX compute arrays, and trees of them."""
    mx.eval(*arrays)  # pyright: ignore[reportUnknownMemberType]  # of any tree


def size_of(states: SavedStates) -> int:
    """Return the bytes of saved states."""
    size = 0
    for pair in tree_flatten(states):
        leaf = pair[1]
        if isinstance(leaf, mx.array):
            size += leaf.nbytes
    return size


class Caches:
    """The caches of one sequence.

    layers: as the model takes them. parts: the caches of all layers, some of which have several.
    """

    def __init__(self, model: Any) -> None:
        """Make empty ones."""
        self.layers: list[Any] = make_prompt_cache(model)
        self.parts = list(_flat(self.layers))
        self._watched = [place for place, cache in enumerate(self.parts) if not _always_cuts(cache)]

    @property
    def can_cut(self) -> bool:
        """Return True if all can be cut anywhere, however long the sequence is."""
        return not self._watched

    @property
    def windows_only(self) -> bool:
        """Return True if those that cannot always be cut are windows: they can lose newest ids."""
        return all(type(self.parts[place]) is RotatingKVCache for place in self._watched)

    @property
    def can_cut_now(self) -> bool:
        """Return True if all can be cut at their present lengths."""
        return all(cache.is_trimmable() for cache in self.parts)

    @property
    def is_endless(self) -> bool:
        """Return True if the memory of none grows with the sequence."""
        return not any(hasattr(cache, "offset") for cache in self.parts)

    @property
    def cell_bytes(self) -> int:
        """Return the bytes of an id, once some ids are held; windows and states have none."""
        size = 0
        for place, cache in enumerate(self.parts):
            if place not in self._watched and not cache.empty():
                size += cache.nbytes // cache.keys.shape[-2]
        return size

    @property
    def state_bytes(self) -> int:
        """Return the bytes of the states that cannot be cut, once some ids are held."""
        size = 0
        for place in self._watched:
            cache = self.parts[place]
            if cache.empty():
                continue
            held = cache.nbytes
            window = getattr(cache, "max_size", 0)
            size += held // cache.keys.shape[-2] * window if window else held
        return size

    def arrays(self) -> list[Any]:
        """Return all states, to be evaluated."""
        return [cache.state for cache in self.parts]

    def watched_arrays(self) -> list[Any]:
        """Return the states of those that cannot be cut, to be evaluated."""
        return [self.parts[place].state for place in self._watched]

    def saved(self, reach: float = np.inf) -> SavedStates:
        """Return the states of caches that cannot be cut, or that cannot `reach` ids from now."""
        states = dict[int, Any]()
        for place in self._watched:
            cache = self.parts[place]
            if not cache.is_trimmable() or _ids_until_full(cache) <= reach:
                states[place] = tree_map(copy.copy, cache.state)
        return states

    def can_lose(self, surplus: int) -> bool:
        """Return True if all can take back so many of their newest ids now."""
        return all(_can_cut(cache, surplus) for cache in self.parts)

    def cut(self, surplus: int) -> bool:
        """Take back the newest ids, of which there are more; return True if all caches did.

        After False they are in no known state.
        """
        return all(_cut(cache, surplus) for cache in self.parts)

    def restore(self, states: SavedStates, surplus: int) -> bool:
        """Go back to saved states, and cut the rest by `surplus`; return as `cut`."""
        for place, cache in enumerate(self.parts):
            if place in states:
                cache.state = tree_map(copy.copy, states[place])
            elif surplus and not _cut(cache, surplus):
                return False
        return True

    def copy_from(self, other: "Caches", states: SavedStates, surplus: int) -> bool:
        """Hold what another sequence holds, as after its `restore`; it keeps its own."""
        for mine, its in zip(self.parts, other.parts, strict=True):
            if not its.empty():
                mine.state = tree_map(copy.copy, its.state)
        return self.restore(states, surplus)

    def shrink(self) -> None:
        """Free memory behind the ids: mlx-lm's caches keep what they have ever had, as do copies.

        One cache after the other: until its arrays are copied it takes both memories.
        """
        for cache in self.parts:
            if type(cache) is KVCache:
                _shrink(cache)


def _shrink(cache: Any) -> None:
    """Copy the ids of a cache, and nothing behind them, if that frees much."""
    if cache.keys is None:
        return
    room = (cache.offset // cache.step + 1) * cache.step
    if cache.keys.shape[2] - room < SPARE:
        return
    cache.keys = _beginning(cache.keys, cache.offset, room)
    cache.values = _beginning(cache.values, cache.offset, room)
    evaluate(cache.keys, cache.values)


def _beginning(array: Any, length: int, room: int) -> Any:
    """Return the first `length` ids of an array in memory of their own, which has some `room`."""
    heads = array.shape[:2]
    zeros = mx.zeros((*heads, room - length, array.shape[3]), array.dtype)
    return mx.concatenate([array[..., :length, :], zeros], axis=2)


def _flat(caches: Any) -> Iterator[Any]:
    """Yield the caches themselves: some layers have several."""
    for cache in caches:
        nested = getattr(cache, "caches", None)
        if nested is None:
            yield cache
        else:
            yield from _flat(nested)


def _always_cuts(cache: Any) -> bool:
    """Return True if a cache can be cut however long it gets: no state, window or chunk."""
    forgets = hasattr(cache, "max_size") or hasattr(cache, "chunk_size")
    return cache.is_trimmable() and not forgets


def _ids_until_full(cache: Any) -> float:
    """Return how many ids fit into a window until it forgets some; infinity for a state."""
    size: float = getattr(cache, "max_size", np.inf)
    held: int = getattr(cache, "offset", 0)
    return size - held


def _can_cut(cache: Any, surplus: int) -> bool:
    """Return True if a cache can take back its newest ids."""
    if not hasattr(cache, "offset"):
        return False
    if cache.is_trimmable() or cache.offset == 0:
        return True
    return type(cache) is RotatingKVCache and _stays_whole(cache, surplus)


def _cut(cache: Any, surplus: int) -> bool:
    """Take back the newest ids of a cache; return True if it really lost so many."""
    if not _can_cut(cache, surplus):
        return False
    if cache.offset == 0:
        return True  # of a layer that is not used
    if cache.is_trimmable():
        return bool(cache.trim(surplus) == surplus)
    _shorten(cache, surplus)
    return True


def _stays_whole(window: Any, surplus: int) -> bool:
    """Return True if a window that has lost its first ids is whole without its newest ones.

    A pass of several ids leaves them behind a whole window, in their order. A shorter one would be
    made longer by a pass of one id, as if it had lost nothing.
    """
    size: int = window.keys.shape[2]
    left = size - surplus
    if window._idx != size:  # noqa: SLF001 - nothing else shows that they are in their order
        return False
    has_all = size == window.offset and left > 0
    return has_all or left >= window.max_size


def _shorten(window: Any, surplus: int) -> None:
    """Take back the newest ids of a window."""
    left = window.keys.shape[2] - surplus
    window.keys = window.keys[..., :left, :]
    window.values = window.values[..., :left, :]
    window.offset -= surplus
    window._idx = left  # noqa: SLF001
