"""Stop strings: noticed in ids as they come, and never shown, not even in part.

The same text is looked at twice, for two reasons:

- The session's `StopScan` must end the text with the very id that completes a stop string: an id
  more would be another text. It looks at bytes, and keeps only the last few.
- The client's `StopTextFilter` must not show a part of a stop string. With the stop string "END" a
  text that ends in "E" so far may go on to it. The "E" is kept back until the next letters show
  that it is none, or the text is over.

Ids and letters have different borders: a letter may take several ids, and one id may have the end
of one letter and the beginning of the next. So a text is handed on with exactly those ids that
have begun in it.
"""

import codecs
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specmesh.core.text.reasoning import first_mark
from specmesh.core.vocabulary.vocabulary import Vocabulary

MAX_STOPS = 64  # most stop strings of a session
MAX_LENGTH = 1024  # most characters of one
MAX_TOGETHER = 16 * 1024  # most characters of all: they are looked for at every token


class StopScan:
    """Finds the id that completes a stop string. pieces: the bytes of each id."""

    def __init__(self, stops: Sequence[str], pieces: Sequence[bytes]) -> None:
        # bytes as characters: `in` takes a tenth of the time that it does with bytes
        self._stops = tuple(stop.encode().decode("latin-1") for stop in stops)
        self._pieces = pieces
        self._tail = ""
        self._reach = max(map(len, self._stops), default=1) - 1

    def completes(self, token: int) -> bool:
        """Take the next id of the text; return True if a stop string ends in its bytes."""
        if not self._stops:
            return False
        seen = self._tail + self._pieces[token].decode("latin-1")
        self._tail = seen[len(seen) - min(self._reach, len(seen)) :]
        return any(map(seen.__contains__, self._stops))


class ShownText(NamedTuple):
    """Text that can be shown, with its ids. begins: the place in the whole of each id's text."""

    text: str
    begins: list[int]


class StopTextFilter:
    """Text of ids as they come, up to the first stop string.

    - Text that may be the start of a stop string is kept back.
    - The ids that go with a text are as few as have all of it.
    - Half a UTF-8 character is never shown.

    found: the stop string that ended the text, or "".
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._pieces = vocabulary.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._by_first: dict[str, list[str]] = {}  # stop strings by their first character
        for stop in self._stops:
            self._by_first.setdefault(stop[0], []).append(stop)
        self._kept: str = ""
        self._over = False
        self.found: str = ""
        self._come = 0  # characters that came
        self._shown = 0  # characters that were shown
        self._begins: list[int] = []  # of the ids that are not shown yet

    def feed(self, ids: Iterable[int]) -> ShownText:
        """Take the next ids; return the text that can be shown now, with its ids."""
        decode = self._decoder.decode
        pieces = self._pieces
        come = ""
        for token in ids:
            self._begins.append(self._come)
            text = decode(pieces[token])
            self._come += len(text)
            come += text
        if self._stops:
            return self._passage(self._show(come), rest=False)
        begins = self._begins
        self._begins = []
        return ShownText(come, begins)

    def finish(self) -> ShownText:
        """Return what was kept back, as the text is over; half a character is shown as U+FFFD."""
        text = self._show(self._decoder.decode(b"", final=True)) + self._kept
        self._kept = ""
        return self._passage(text, rest=not self._over)

    def _passage(self, text: str, *, rest: bool) -> ShownText:
        """Return a text with the ids that begin in it; rest: with all that are left."""
        self._shown += len(text)
        count = len(self._begins)
        if not rest:
            count = bisect_left(self._begins, self._shown)
        begins = self._begins[:count]
        del self._begins[:count]
        return ShownText(text, begins)

    def _show(self, text: str) -> str:
        """Take the next letters; return those that are certainly in no stop string."""
        if self._over:
            return ""
        text = self._kept + text
        self._over = any(map(text.__contains__, self._stops))
        if self._over:
            end, self.found = first_mark(text, self._stops)
            self._kept = ""
        else:
            end = self._place_of_half(text)
            self._kept = text[end:]
        return text[:end]

    def _place_of_half(self, text: str) -> int:
        """Return the place of the longest end of a text with which a stop string begins."""
        for begin in range(max(len(text) - self._longest + 1, 0), len(text)):
            candidates = self._by_first.get(text[begin])
            if candidates is None:
                continue
            tail = text[begin:]
            if any(stop.startswith(tail) for stop in candidates):
                return begin
        return len(text)
