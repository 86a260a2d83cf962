"""The room that sliding windows have, and how far back a sequence can be cut in it.

Layers with a sliding window attend to the last ids only, so their cache may be small. While there
is room it holds more of each sequence than its window, and a text can leave the one in a sequence
there. Which ids are held is decided here; the engine keeps to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

STEP = 256  # ids that a sequence loses at once, at least, if it has so many


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """The sizes of a model's windows.

    ids: that a layer with a window attends to; 0 if no layer has one.
    cells: for the windows of all sequences together; 0 if there is one for each id.
    """

    ids: int = 0
    cells: int = 0

    @property
    def limited(self) -> bool:
        """Return True if the windows have fewer cells than the rest."""
        return self.cells > 0


class Narrowed(NamedTuple):
    """A sequence that loses ids.

    before, begin: the first id that it had, and that it keeps.
    """

    seq: int
    before: int
    begin: int


class WindowRoom:
    """The ids from which on each sequence is held in layers with a window.

    limited: the windows have fewer cells than the rest.
    """

    def __init__(self, sizes: WindowSizes) -> None:
        self.limited = sizes.limited
        self._sizes = sizes
        self._begins: dict[int, int] = {}

    def reaches(self, seq: int, length: int) -> bool:
        """Return True if a sequence that is longer can be cut to this length."""
        begin = self._begins.get(seq, 0)
        return begin == 0 or length >= begin + self._sizes.ids

    def loses(self, narrowed: Narrowed, length: int) -> bool:
        """Return True if a sequence could be cut to this length only before it lost ids."""
        ids = self._sizes.ids
        could = narrowed.before == 0 or length >= narrowed.before + ids
        return could and length < narrowed.begin + ids

    def empty(self, seq: int) -> None:
        """Note that a sequence has no ids."""
        self._begins.pop(seq, None)

    def copy(self, seq: int, length: int) -> None:
        """Note that an empty sequence begins with `length` ids of another one.

        If the windows are limited it gets cells of its own, for the last window only.
        """
        if self.limited:
            self._begins[seq] = max(length - self._sizes.ids, 0)

    def restore(self, seq: int, length: int) -> None:
        """Note that a sequence is cut to a checkpoint: it has the window before that alone."""
        if not self.reaches(seq, length):
            self._begins[seq] = max(length - self._sizes.ids, 0)

    def make_room(self, held: Mapping[int, int], rows: int) -> list["Narrowed"]:
        """Return the sequences that are to lose ids before a step.

        held: the ids of each sequence, the first to lose some first. rows: of the step.
        """
        missing = rows - self._sizes.cells
        for seq, length in held.items():
            missing += length - self._begins.get(seq, 0)
        narrowed: list[Narrowed] = []
        for seq, length in held.items():
            if missing <= 0:
                break
            begin = self._begins.get(seq, 0)
            spare = length - self._sizes.ids - begin
            if spare <= 0:
                continue
            lost = min(spare, max(missing, STEP))
            self._begins[seq] = begin + lost
            missing -= lost
            narrowed.append(Narrowed(seq, begin, begin + lost))
        return narrowed
