"""The prediction of a request: its ids, and an index by which a place in it is found.

A client that asks for an edit knows most of the answer: the file as it is. It sends this as its
prediction. Where the answer differs, the place to go on from is found again by the last ids of the
text.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_MATCH = 16
"""Most ids before a place that are compared: more show nothing new."""
INDEXED = 4
"""Ids in a row that name a place anywhere in the prediction."""
NEAR = 8
"""Ids ahead among which fewer ids in a row name a place (6 and 12: the same; 48: -1 %)."""
_MOST_PLACES = 16  # places with the same ids that are compared, on each side
_FACTOR = 0x9E3779B97F4A7C15  # odd, its bits well mixed
_MASK = 2**64 - 1


class Occurrence(NamedTuple):
    """A place in a prediction: the index of its next id.

    agreed: ids in a row before it that are also the last ids of the text.
    """

    at: int
    agreed: int


class PredictedText:
    """A prediction as ids. It is immutable: choices of one request and threads may share it.

    ids: to be read only; 4 bytes each, and 16 bytes of the index.
    """

    __slots__ = ("__weakref__", "_hashes", "_starts", "ids")

    def __init__(self, ids: Sequence[int]) -> None:
        """Index the ids; some 0.1 us for each."""
        self.ids = array("i", ids)
        hashes = _hashes_of(np.asarray(self.ids, np.uint64))
        # Places of one hash stay in their order.
        order = hashes.argsort(kind="stable")
        self._hashes = hashes[order]
        self._starts = order

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, text: Sequence[int], near: int, least: int = 1) -> Occurrence | None:
        """Return the place to go on from after the last ids of a text; None if there is none.

        - It is the one with the most ids in a row, up to LONGEST_MATCH, and the nearest of those.
        - Fewer than INDEXED ids in a row count only up to NEAR ids ahead.

        text: its last ids, LONGEST_MATCH or fewer. near: a place, around which to look.
        least: ids in a row that there must be.
        """
        places = self._indexed(text, near)
        found = self._best(text, near, places, INDEXED)
        if found is None:
            ahead = range(near + 1, min(near + NEAR, len(self.ids)) + 1)
            found = self._best(text, near, ahead, least)
        return found

    def _indexed(self, text: Sequence[int], near: int) -> Sequence[int]:
        """Return places behind the last INDEXED ids of a text, those around `near` if many."""
        if len(text) < INDEXED:
            return ()
        key = np.uint64(_hash_of(text[-INDEXED:]))
        begin = int(self._hashes.searchsorted(key))
        end = int(self._hashes.searchsorted(key, "right"))
        if end - begin > 2 * _MOST_PLACES:
            middle = bisect_left(self._starts, near - INDEXED, begin, end)
            begin = max(begin, middle - _MOST_PLACES)
            end = min(end, middle + _MOST_PLACES)
        return [start + INDEXED for start in self._starts[begin:end].tolist()]

    def _best(
        self, text: Sequence[int], near: int, places: Sequence[int], least: int
    ) -> Occurrence | None:
        """Return the place with the most ids in a row, of equals the nearest.

        A place behind `near` counts as four times as far away as it is: a text goes on more often
        than it repeats itself.
        """
        best: Occurrence | None = None
        best_distance = 0
        for at in places:
            agreed = self._agreed(text, at)
            if agreed < least or (best is not None and agreed < best.agreed):
                continue
            distance = at - near if at >= near else 4 * (near - at)
            if best is None or agreed > best.agreed or distance < best_distance:
                best = Occurrence(at, agreed)
                best_distance = distance
        return best

    def _agreed(self, text: Sequence[int], at: int) -> int:
        """Return how many ids before a place are the last ids of a text."""
        most = min(len(text), at)
        ids = self.ids
        count = 0
        while count < most and text[-1 - count] == ids[at - 1 - count]:
            count += 1
        return count


def _hashes_of(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each INDEXED ids in a row."""
    count = max(len(ids) - INDEXED + 1, 0)
    hashes = np.zeros(count, np.uint64)
    factor = np.uint64(_FACTOR)
    for offset in range(INDEXED):
        # Numbers of arrays wrap around.
        hashes = hashes * factor + ids[offset : offset + count]
    return hashes


def _hash_of(ids: Sequence[int]) -> int:
    """Return the hash of INDEXED ids."""
    value = 0
    for token in ids:
        value = (value * _FACTOR + token) & _MASK
    return value
