"""The cells that all sequences of an engine share, and the cells that each of them fills.

A sequence that began as a copy shares the cells of the copied ids with its source. Shared cells
count once.

A sequence that no session has can leave the cells for the host's memory, while that has room, and
comes back when a session gets it. Who leaves when cells are wanted is decided here.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class KVBeginning(NamedTuple):
    """A sequence that would begin with `length` ids of `source`, and then fill `cells` cells."""

    source: int
    length: int
    cells: int


class Eviction(NamedTuple):
    """A sequence that leaves: its cells for the host's memory, or either of both for good."""

    seq: int
    to_host: bool


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
    sequences, by number. `idle` has the cells of those without a session, also of those in the
    host's memory, the least recently used first.

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
        # By sequence that a session got in the host's memory, its length and the cells saved there.
        self._asleep: dict[int, tuple[int, int]] = {}
        # The step at which each idle sequence was first found to cost others time.
        self._costly: dict[int, int] = {}

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

    def saved_cells(self, seq: int, length: int) -> int:
        """Return the cells of a sequence that is in the host's memory; 0 if it is not.

        One that a session has got comes back with the first step of that session.

        length: of the sequence, if a session has it.
        """
        if seq in self.away:
            return self.away[seq]
        begun, saved = self._asleep.get(seq, (0, 0))
        if length > begun:
            self._asleep.pop(seq, None)
            return 0
        return saved

    # --- who leaves

    def present(self, idle: Mapping[int, int]) -> dict[int, int]:
        """Return those of the idle sequences that are in cells."""
        return {seq: cells for seq, cells in idle.items() if seq not in self.away}

    def make_room(
        self, claims: Mapping[int, int], idle: Mapping[int, int], more: int, *, kept: int | None
    ) -> tuple[list[Eviction], int]:
        """Return the idle sequences that leave until the others have room, and the cells left then.

        These are less than 0 if there are too few without them too.

        claims: the cells that the sequence of each session is to fill.
        more: cells that are wanted besides. kept: a sequence that stays.
        """
        present = self.present(idle)
        filled = {**claims, **present}
        evictions: list[Eviction] = []
        left = self.cells - more - self.used(filled)
        for seq in present:
            if left >= 0:
                break
            if seq == kept:
                continue
            evictions += self._leave(seq, idle, kept)
            del filled[seq]
            left = self.cells - more - self.used(filled)
        return evictions, left

    def empty(self, idle: Mapping[int, int]) -> list[Eviction]:
        """Have all idle sequences leave their cells."""
        evictions: list[Eviction] = []
        for seq in self.present(idle):
            evictions += self._leave(seq, idle)
        return evictions

    def costs_since(self, seq: int, step: int) -> int:
        """Note that an idle sequence costs the steps of others time; return since which step."""
        return self._costly.setdefault(seq, step)

    def _leave(self, seq: int, idle: Mapping[int, int], kept: int | None = None) -> list[Eviction]:
        """Have an idle sequence leave its cells, for the host's memory if there is room."""
        evictions = self.to_host(seq, idle, kept)
        if evictions:
            return evictions
        self.emptied(seq)
        return [Eviction(seq, to_host=False)]

    def to_host(self, seq: int, idle: Mapping[int, int], kept: int | None = None) -> list[Eviction]:
        """Have an idle sequence leave for the host's memory; none leaves if there is no room.

        Sequences that are there already make room if they were used before it, but for `kept`.
        """
        there = sum(self.away.values()) + idle[seq]
        evictions: list[Eviction] = []
        for other in idle:
            if other == seq or there <= self.host_ids:
                break
            if other in self.away and other != kept:
                there -= self.away[other]
                evictions.append(Eviction(other, to_host=False))
        if there > self.host_ids:
            return []
        for other, _ in evictions:
            self.emptied(other)
        self.left(seq, idle[seq])
        return [*evictions, Eviction(seq, to_host=True)]

    # --- orders

    def copied(
        self, seq: int, source: int, length: int, saved: int = 0, *, shares: bool = True
    ) -> None:
        """Note that a session gets an empty sequence, which begins with ids of another.

        saved: cells of the source in the host's memory. Then none are shared.
        shares: it has the cells of these ids, else others.
        """
        self.emptied(seq)
        if saved:
            self._asleep[seq] = (length, saved)
        elif shares:
            self._stretches[seq] = self._beginning_of(source, length)

    def taken(self, seq: int, length: int, saved: int) -> None:
        """Note that a session gets a sequence, and keeps its first `length` ids.

        saved: its cells in the host's memory, from where it comes back to cells of its own.
        """
        self.away.pop(seq, None)
        self._costly.pop(seq, None)
        self.cut(seq, length)
        if saved:
            self._asleep[seq] = (length, saved)

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
        self._asleep.pop(seq, None)
        self._costly.pop(seq, None)

    def left(self, seq: int, cells: int) -> None:
        """Note that a sequence of so many cells goes to the host's memory."""
        self.emptied(seq)
        self.away[seq] = cells
