"""The cells that all sequences of an engine share, and the cells that each of them fills.

A sequence that began as a copy shares the cells of the copied ids with its source. Shared cells
count once.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class KVBeginning(NamedTuple):
    """A sequence that would begin with `length` ids of `source`, and then fill `cells` cells."""

    source: int
    length: int
    cells: int


class _Stretch:
    """Cells at consecutive positions from `begin` on, which one sequence wrote first.

    Each sequence that has them holds the first ones.
    """

    __slots__ = ("begin",)

    def __init__(self, begin: int) -> None:
        self.begin = begin


class KVPool:
    """The cells of one engine, and the sequences that have left them.

    It counts by the orders that were given. It knows no lengths: callers give those of the
    sequences, by number.

    cells: that sequences may fill together.
    host_ids: ids that sequences in the host's memory may hold together.
    away: cells of each sequence that was ordered there.
    """

    def __init__(self, cells: int, host_ids: int = 0) -> None:
        """Begin with empty sequences."""
        self.cells = cells
        self.host_ids = host_ids
        self.away: dict[int, int] = {}
        # Of each sequence, the stretches that it holds, in the order of their positions.
        self._stretches: dict[int, list[_Stretch]] = {}

    def used(self, lengths: Mapping[int, int], beginnings: Iterable[KVBeginning] = ()) -> int:
        """Return the cells that sequences fill with so many ids, and those of beginnings."""
        ends: dict[_Stretch, int] = {}
        for seq, length in lengths.items():
            self._note_ends(self._of(seq), length, ends)
        for beginning in beginnings:
            stretches = self._beginning_of(beginning.source, beginning.length)
            self._note_ends(stretches, beginning.cells, ends)
        return sum(end - stretch.begin for stretch, end in ends.items())

    def _note_ends(self, stretches: list[_Stretch], length: int, ends: dict[_Stretch, int]) -> None:
        """Note how far a sequence of so many ids reaches into each of its stretches."""
        end = length
        for stretch in reversed(stretches):
            if stretch.begin < end:
                ends[stretch] = max(ends.get(stretch, 0), end)
                end = stretch.begin

    def _of(self, seq: int) -> list[_Stretch]:
        """Return the stretches of a sequence; an empty one gets a stretch of its own."""
        if seq not in self._stretches:
            self._stretches[seq] = [_Stretch(0)]
        return self._stretches[seq]

    def _beginning_of(self, source: int, length: int) -> list[_Stretch]:
        """Return the stretches of a sequence that begins with `length` ids of another."""
        shared = [stretch for stretch in self._of(source) if stretch.begin < length]
        return [*shared, _Stretch(length)]

    # --- orders

    def copied(self, seq: int, source: int, length: int) -> None:
        """Note that an empty sequence begins with the cells of another."""
        self._stretches[seq] = self._beginning_of(source, length)

    def cut(self, seq: int, length: int) -> None:
        """Note that a sequence keeps its first `length` ids."""
        if length == 0:
            self.emptied(seq)
            return
        kept = [stretch for stretch in self._of(seq) if stretch.begin < length]
        # Another sequence may hold more of the last stretch: ids that follow get other cells.
        if any(kept[-1] in of for other, of in self._stretches.items() if other != seq):
            kept.append(_Stretch(length))
        self._stretches[seq] = kept

    def emptied(self, seq: int) -> None:
        """Note that a sequence holds nothing, here or in the host's memory."""
        self.away.pop(seq, None)
        self._stretches.pop(seq, None)

    def left(self, seq: int, cells: int) -> None:
        """Note that a sequence of so many cells goes to the host's memory."""
        self._stretches.pop(seq, None)
        self.away[seq] = cells

    def back(self, seq: int) -> None:
        """Note that a sequence is in cells again, of its own."""
        self.away.pop(seq, None)
