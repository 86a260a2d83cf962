"""Text onto a terminal at an even pace: what came in blocks reads as if it had come piece by piece.

A block's pieces are spread over the time until the next block is expected: the median of the latest gaps. Nothing is
shown later than LATE after the block that follows its own, so that the screen never falls behind.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, Self, TypeVar

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
        """Add a block. Before any gap is known, it is due at once."""
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

    def take(self, now: float = float("inf")) -> list[T]:
        """Take out what is to be shown by now; everything where no block follows."""
        taken = []
        while self._pieces and self._pieces[0].due <= now:
            taken.append(self._pieces.popleft().what)
        return taken


def pieces(text: str, count: int) -> list[str]:
    """A text cut into `count` parts of the same length, as far as that goes; without those that would be empty."""
    cuts = [len(text) * number // max(count, 1) for number in range(max(count, 1) + 1)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts) if end > begin]


class PacedOutput:
    """Writes on a thread of its own, as a context: what is left at its end is written at once. What `write` raises is
    raised again by whoever adds the next text, or at the end."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._pace = Pace[str]()
        self._changed = threading.Condition()
        self._over = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paced output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()
        self._raise()

    def add(self, text: str, tokens: int) -> None:
        """Add the text of a block of so many tokens."""
        self._raise()
        if text:
            with self._changed:
                self._pace.add(pieces(text, tokens), self._clock())
                self._changed.notify()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            while (text := self._next()) is not None:
                self._write(text)
        except Exception as error:  # noqa: BLE001  (raised again on the thread that adds text)
            self._error = error

    def _next(self) -> str | None:
        """The text to write now, once there is some; None at the end."""
        with self._changed:
            while not self._over:
                now, due = self._clock(), self._pace.next_due()
                if due is not None and due <= now:
                    return "".join(self._pace.take(now))
                self._changed.wait(None if due is None else due - now)
            return "".join(self._pace.take()) or None
