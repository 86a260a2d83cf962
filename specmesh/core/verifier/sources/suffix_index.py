"""An index of a text's n-grams: where did the end of a text occur before?

A table for each size n of NGRAM_SIZES maps the hash of n ids to the newest place behind such ids. A
look-up takes the longest n-gram at the end that is found, and counts how many ids before the two
places agree. What followed there are good drafts.

The hash of the ids x1 .. xn is the sum of xi * FACTOR ** (n - i + 1), modulo 2**64. Its highest
bits name a slot. A table has 2 to 8 slots for each id, and a slot has one place: an n-gram whose
slot a newer one has taken is lost. In return a table is a plain array. It takes 4 bytes for each
slot, and numpy fills it with thousands of n-grams at once. A place is only a candidate, whose ids
are compared. So equal hashes do no harm.

Ids are taken in when `update` is called, and at most PORTION of them by one call. New ids come
first. A text that was there before is taken in from its end to its beginning, as the newest part
helps most.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NGRAM_SIZES = (3, 6, 12)
"""Sizes of the n-grams, in ids."""

LONGEST = 64
"""Most ids before two places that are compared."""

PORTION = 4096
"""Most ids that one update takes in. They take about 0.3 ms."""

BYTES_PER_SLOT = 4
MOST_BYTES_PER_ID = 8 * BYTES_PER_SLOT * len(NGRAM_SIZES)
"""Bytes that the tables take for each id, at most, once there are some dozens."""

BREAK = -1
"""Stands between two texts of one index. It is no id, so no end of a text matches across it."""

_SPARSE = 2  # slots for each id, at least
_FEWEST = 256  # slots of a table
_FEW = 64  # ids that are taken in one by one: numpy takes as long for so many
_FACTOR = 0x9E3779B97F4A7C15
_MODULUS = 2**64
_LARGEST = max(NGRAM_SIZES)
_POWERS = [pow(_FACTOR, exponent, _MODULUS) for exponent in range(_LARGEST + 1)]


class Match(NamedTuple):
    """A place where the end of a text occurred before.

    place: index of the id that followed there.
    length: ids before it that agree, at most LONGEST.
    """

    place: int
    length: int


class SuffixIndex:
    """The n-grams of ids that may grow, but not change.

    taken: ids that it has taken in since its beginning, repeated ones included.
    """

    def __init__(self, ids: "array[int]") -> None:
        """Begin with nothing taken in and no tables; `update` reads on in `ids`."""
        self.taken = 0
        self._ids = ids
        self._room = -1  # ids for which the tables are large enough; without tables none
        self._shift = 0
        self._tables: list[NDArray[np.int32]] = []
        self._cells: list[memoryview[int]] = []  # the same: single places take a third of the time
        # Places from `begin` to before `end` are in the tables, where 0 stands for none. Nothing
        # comes before place 0.
        self._begin = 1
        self._end = 1
        self._hashes: list[int] = []  # of the n-grams before `end`

    @property
    def complete(self) -> bool:
        """Return True if all ids are taken in."""
        return self._begin == 1 and self._end >= len(self._ids)

    @staticmethod
    def bytes_for(count: int) -> int:
        """Return the most bytes that the tables for so many ids take; 0 for none."""
        if not count:
            return 0
        return BYTES_PER_SLOT * len(NGRAM_SIZES) * _slots_for(count)

    def _resize(self) -> None:
        """Make tables for all ids, and begin anew."""
        count = len(self._ids)
        slots = _slots_for(count)
        self._room = slots // _SPARSE
        self._shift = 64 - (slots.bit_length() - 1)
        # The old tables go first, so that there are never two of a size.
        self._tables.clear()
        self._cells.clear()
        # One piece of memory for all: numpy has large ones in huge pages, which are made sooner.
        for table in np.zeros((len(NGRAM_SIZES), slots), np.int32):
            self._tables.append(table)
            self._cells.append(table.data)
        self._begin = max(count, 1)
        self._end = self._begin
        self._hashes = self._hashes_at_end()

    # --- ids are taken in

    def update(self) -> None:
        """Take in ids, at most PORTION."""
        count = len(self._ids)
        if count > self._room:
            self._resize()
        new = min(count - self._end, PORTION)
        if new > _FEW:
            self._take(self._end, self._end + new, replace=True)
            self._end += new
            self._hashes = self._hashes_at_end()
        elif new > 0:
            self._take_few(count)
        old = min(self._begin - 1, PORTION - max(new, 0))
        if old > 0:
            self._take(self._begin - old, self._begin, replace=False)
            self._begin -= old

    def _take_few(self, end: int) -> None:
        """Take in the places up to `end` one by one."""
        ids = self._ids
        for place in range(self._end, end):
            new = ids[place]
            for number, size in enumerate(NGRAM_SIZES):
                before = self._hashes[number]
                self._cells[number][before >> self._shift] = place
                if place >= size:
                    before -= ids[place - size] * _POWERS[size]
                self._hashes[number] = (before + new) * _FACTOR % _MODULUS
        self.taken += end - self._end
        self._end = end

    def _take(self, begin: int, end: int, *, replace: bool) -> None:
        """Take in the places from `begin` to before `end` at once.

        replace: they are newer than the places that are there; else they are older.
        """
        self.taken += end - begin
        places = np.arange(begin, end, dtype=np.int32)
        for table, hashes in zip(self._tables, self._hashes_between(begin, end), strict=True):
            slots = hashes >> np.uint64(self._shift)
            if replace:
                table[slots] = places  # of places with one slot the last one stays
            else:
                free = table[slots] == 0
                table[slots[free]] = places[free]

    def _hashes_between(self, begin: int, end: int) -> Iterator[NDArray[np.uint64]]:
        """Yield for each size the hashes of the n-grams before these places, uint64 (end - begin,).

        Zeros stand before the first id. They change no hash, and no match reaches so far back.
        """
        count = end - begin
        known = self._ids[max(begin - _LARGEST, 0) : end - 1]
        ids = np.zeros(_LARGEST + count - 1, np.uint64)
        ids[len(ids) - len(known) :] = np.frombuffer(known, np.int32)
        total = np.zeros(count, np.uint64)
        for distance in range(1, _LARGEST + 1):
            first = _LARGEST - distance
            total += ids[first : first + count] * np.uint64(_POWERS[distance])
            if distance in NGRAM_SIZES:
                yield total

    def _hashes_at_end(self) -> list[int]:
        """Return the hashes of the ids before the end of what was taken in."""
        return _hashes_of(self._ids[max(self._end - _LARGEST, 0) : self._end])

    # --- a look-up

    def find(self, tail: Sequence[int]) -> Match | None:
        """Return a place whose ids before it agree with the end of `tail`; None without one."""
        if not self._cells:
            return None
        hashes = _hashes_of(tail)
        for number in reversed(range(len(NGRAM_SIZES))):
            place = self._cells[number][hashes[number] >> self._shift]
            if place:
                length = self._agreement(place, tail)
                if length >= NGRAM_SIZES[number]:
                    return Match(place, length)
        return None

    def _agreement(self, place: int, tail: Sequence[int]) -> int:
        """Return how many ids before a place agree with the end of `tail`."""
        ids = self._ids
        most = min(place, len(tail), LONGEST)
        for distance in range(1, most + 1):
            if ids[place - distance] != tail[-distance]:
                return distance - 1
        return most


def _slots_for(count: int) -> int:
    """Return the slots of a table for so many ids, a power of 2 with room for twice as many."""
    least = max(2 * _SPARSE * count, _FEWEST)
    return 1 << (least - 1).bit_length()


def _hashes_of(tail: Sequence[int]) -> list[int]:
    """Return the hashes of the n-grams at the end, one for each size."""
    hashes: list[int] = []
    total = 0
    most = min(_LARGEST, len(tail))
    for distance in range(1, _LARGEST + 1):
        if distance <= most:
            total += tail[-distance] * _POWERS[distance]
        if distance in NGRAM_SIZES:
            hashes.append(total % _MODULUS)
    return hashes
