"""Checkpoints: saved states at which a sequence can begin again, if its ids cannot be taken back.

A recurrent layer has one state for the whole text before a position. So a text that leaves the one
in a sequence can reuse only ids up to a saved state. Which states are saved, and which go when
there are too many, is decided here; the engine has them in the host's memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

NEAR_END = 4
"""Ids between a checkpoint and the end of a prompt.

The next turn may leave the prompt at its last ids: a template that opens a thought for the answer
does not write it again.
"""

SPACING = 256
"""Ids between two checkpoints of a prompt.

A state costs a copy. To read 256 ids in two parts instead of one costs nothing on a CPU.
"""

LEAST_GAP = 16
"""Ids that a checkpoint saves, at least, beside the one before it."""


@dataclass(slots=True, eq=False)
class _Checkpoint:
    """A saved state; sequences that were copied share it.

    length: ids before it. used: when it was saved or reused, in a count of such uses.
    """

    length: int
    used: int


class Checkpoints:
    """The checkpoints of all sequences, at most `most`.

    If there are too many, the one goes that saves the fewest ids beside the one before it; of equal
    ones the one that was used least recently.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses = 0
        self._of: dict[int, list[_Checkpoint]] = {}  # by sequence, the shortest first

    def __bool__(self) -> bool:
        """Return True if there may be any."""
        return self._most > 0

    def reachable(self, seq: int, length: int) -> int:
        """Return the most ids, up to `length`, that a sequence can be cut to; 0 for none."""
        lengths = [saved.length for saved in self._of.get(seq, ()) if saved.length <= length]
        return max(lengths, default=0)

    def stops(self, begin: int, end: int, common: int) -> list[int]:
        """Return the lengths at which a text that is read is to be saved, in ascending order.

        begin: ids that are there already. end: ids of the whole prompt.
        common: ids that it shares with another text, where others may leave it too.
        """
        found = set(self.places(begin, end, common))
        if found:
            found |= set(range(end - NEAR_END, begin + LEAST_GAP - 1, -SPACING))
        return sorted(found)

    def places(self, begin: int, end: int, common: int) -> list[int]:
        """Return the lengths at which other texts will most likely leave this one.

        begin, end, common: as in `stops`.
        """
        if not self:
            return []
        last = end - NEAR_END
        found: list[int] = []
        if begin + LEAST_GAP <= common <= last - LEAST_GAP:
            found.append(common)
        if last >= begin + LEAST_GAP:
            found.append(last)
        return found

    def add(self, seq: int, length: int) -> tuple[list[tuple[int, int]], bool]:
        """Note that a sequence, which has this length, is to be saved.

        Return the (sequence, length) of each checkpoint that goes for it, and whether it is worth
        saving.
        """
        self._uses += 1
        known = self._of.setdefault(seq, [])
        if length - self.reachable(seq, length) < LEAST_GAP:
            return [], False
        added = _Checkpoint(length, self._uses)
        known.append(added)
        known.sort(key=lambda saved: saved.length)
        dropped: list[tuple[int, int]] = []
        while len(gaps := self._gaps()) > self._most:
            least = min(gaps, key=lambda saved: (gaps[saved], saved.used))
            for holder in self._holders(least):
                self._of[holder].remove(least)
                if least is not added:
                    dropped.append((holder, least.length))
        return dropped, added in known

    def use(self, seq: int, length: int) -> None:
        """Note that a sequence was cut to a checkpoint, or copied from it."""
        self._uses += 1
        for saved in self._of.get(seq, ()):
            if saved.length == length:
                saved.used = self._uses

    def cut(self, seq: int, length: int) -> None:
        """Forget the checkpoints of a sequence beyond a length."""
        if seq not in self._of:
            return
        known = self._of.pop(seq)
        kept = [saved for saved in known if saved.length <= length]
        if kept:
            self._of[seq] = kept

    def copy(self, seq: int, source: int, length: int) -> None:
        """Give a sequence the checkpoints of another up to a length."""
        known = self._of.get(source, ())
        self._of[seq] = [saved for saved in known if saved.length <= length]

    def _gaps(self) -> dict[_Checkpoint, int]:
        """Return for each checkpoint the ids that it saves beside the one before it."""
        gaps: dict[_Checkpoint, int] = {}
        for known in self._of.values():
            before = 0
            for saved in known:
                gaps[saved] = max(gaps.get(saved, 0), saved.length - before)
                before = saved.length
        return gaps

    def _holders(self, checkpoint: _Checkpoint) -> Iterator[int]:
        for seq, known in self._of.items():
            if checkpoint in known:
                yield seq
