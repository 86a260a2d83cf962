"""A throttle: an action is done once in some seconds for each subject."""

from collections.abc import Hashable
from math import inf


class Throttle:
    """Decides whether an action is due for a subject."""

    def __init__(self, seconds: float, most: int = 2**20) -> None:
        """Allow the action once in `seconds` for each subject, and for `most` subjects."""
        self._seconds = seconds
        self._most = most
        self._done_at: dict[Hashable, float] = {}

    def due(self, subject: Hashable, now: float) -> bool:
        """Return True if the action is to be done now; then it counts as done."""
        if now - self._done_at.get(subject, -inf) < self._seconds:
            return False
        # Subjects are names that peers choose, so those of before are forgotten.
        for other, done_at in list(self._done_at.items()):
            if now - done_at >= self._seconds:
                del self._done_at[other]
        # Too many at once: better no action than memory without end.
        if len(self._done_at) >= self._most:
            return False
        self._done_at[subject] = now
        return True
