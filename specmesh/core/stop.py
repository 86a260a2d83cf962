"""Stop strings: noticed in ids as they come, and never shown, not even in part."""

from collections.abc import Iterable, Sequence

from specmesh.core.vocabulary import TextStream, Vocabulary
from specmesh.errors import RequestError

MAX_STOPS, MAX_LENGTH = 16, 1024
"""Most stop strings of a session, and their most characters."""

_UNDECODED = "\ufffd"


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings that mean something; raises RequestError for too many, or what no text has.

    U+FFFD stands for bytes that are no text, so that what is shown and what was generated could differ about it.
    """
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_LENGTH for stop in stops):
        raise RequestError(f"stop must be at most {MAX_STOPS} texts of at most {MAX_LENGTH} characters", "stop")
    if any(_UNDECODED in stop for stop in stops):
        raise RequestError("stop must not contain U+FFFD", "stop")
    try:
        "".join(stops).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"stop is not valid Unicode: {error.reason}", "stop") from None
    return tuple(stop for stop in stops if stop)


class StopScan:
    """Says which id completes a stop string. `pieces` are the bytes of each id."""

    def __init__(self, stops: Sequence[str], pieces: Sequence[bytes]) -> None:
        self._stops = tuple(stop.encode() for stop in stops)
        self._pieces = pieces
        self._tail = b""
        self._reach = max(map(len, self._stops), default=1) - 1

    def completes(self, token: int) -> bool:
        """Take the next id of the text; whether a stop string ends in its bytes."""
        if not self._stops:
            return False
        seen = self._tail + self._pieces[token]
        self._tail = seen[len(seen) - min(self._reach, len(seen)) :]
        return any(stop in seen for stop in self._stops)


class StoppedText:
    """Text of ids as they come, up to the first stop string; what may be the start of one is kept back."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._stream = TextStream(vocabulary)
        self._stops = tuple(stops)
        self._kept = ""
        self._over = False

    def feed(self, ids: Iterable[int]) -> str:
        """Text that can be shown since these ids."""
        return self._show(self._stream.feed(ids))

    def finish(self) -> str:
        """What is left when the text ends."""
        shown = self._show(self._stream.finish()) + self._kept
        self._kept = ""
        return shown

    def _show(self, text: str) -> str:
        if self._over:
            return ""
        text = self._kept + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        self._over = bool(found)
        end = min(found) if found else len(text) - self._started(text)
        self._kept = "" if found else text[end:]
        return text[:end]

    def _started(self, text: str) -> int:
        """The length of the longest end of `text` with which a stop string begins."""
        longest = max(map(len, self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
