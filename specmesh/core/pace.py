"""When to show what came in blocks, so that it reads as if it had come piece by piece.

A block's pieces are spread over the time until the next block is expected: the median of the latest gaps. Nothing is
shown later than LATE after the block that follows its own, so that the text on the screen never falls behind the text.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

LATE = 0.05
"""Most seconds for which a piece is shown after the next block has come."""

LONGEST = 1.0
"""Most seconds over which a block is spread: after a pause nobody knows when the next one comes."""

GAPS = 8
"""Latest gaps between blocks that say when the next one is expected."""

T = TypeVar("T")


@dataclass(slots=True)
class _Piece(Generic[T]):
    what: T
    due: float
    latest: float


class Pace(Generic[T]):
    """Pieces with their times, in order. Times are seconds of one clock, and never go back."""

    def __init__(self) -> None:
        self._pieces: deque[_Piece[T]] = deque()
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._last: float | None = None

    def add(self, block: Sequence[T], now: float) -> None:
        """A block has come. Before anything is known of gaps, it is due at once."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        for piece in self._pieces:
            piece.latest = min(piece.latest, now + LATE)
        spread = min(median(self._gaps), LONGEST) if self._gaps else 0.0
        self._pieces.extend(_Piece(what, now, now + spread) for what in block)
        step = spread / max(len(self._pieces), 1)
        for number, piece in enumerate(self._pieces):
            piece.due = min(now + number * step, piece.latest)

    def next_due(self) -> float | None:
        """When the first piece is to be shown; None without one."""
        return self._pieces[0].due if self._pieces else None

    def take(self, now: float) -> list[T]:
        """Take out what is to be shown by now."""
        taken = []
        while self._pieces and self._pieces[0].due <= now:
            taken.append(self._pieces.popleft().what)
        return taken

    def rest(self) -> list[T]:
        """Take out everything: no block follows."""
        taken = [piece.what for piece in self._pieces]
        self._pieces.clear()
        return taken


def pieces(text: str, count: int) -> list[str]:
    """A text cut into `count` parts of the same length, as far as that goes; without those that would be empty."""
    cuts = [len(text) * number // max(count, 1) for number in range(max(count, 1) + 1)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts) if end > begin]
