"""When a drafter says HELLO: at once, then less and less often until it is answered."""

from collections.abc import Callable

FIRST = 0.25
"""Seconds until the second HELLO, and between two tries while nobody is connected."""

LONGEST = 2.0
"""Most seconds between two HELLOs."""

STEADY = 5.0
"""Seconds that a verifier must have been there for its loss to be answered by a HELLO at once."""

UNANSWERED = 3.0
"""Seconds without an answer after which somebody should be told."""


RENEW = 30.0
"""Seconds without an answer after which the connection itself is in doubt."""


class Greeting:
    """The pauses between HELLOs, doubled each time and shortened by `luck`, a number from 0 to below 1: the drafters of
    one verifier must not speak in chorus."""

    def __init__(self, luck: Callable[[], float], now: float) -> None:
        self.due = now
        self._luck = luck
        self._pause = FIRST
        self._since = self._answered = self._renewed = now
        self._told = False

    def said(self, now: float, *, sent: bool) -> None:
        """A HELLO was due; `sent` says whether anybody was connected to take it."""
        self.due = now + self._shortened(self._pause if sent else FIRST)
        if sent:
            self._pause = min(2 * self._pause, LONGEST)

    def answered(self, now: float) -> None:
        """The verifier is there."""
        self._answered = now

    def lost(self, now: float) -> None:
        """It is gone. One that comes and goes is asked less and less often, too."""
        if now - self._answered >= STEADY:
            self._pause = FIRST
            self.due = now
        else:
            self.said(now, sent=True)
        self._since, self._renewed, self._told = now, now, False

    def unanswered(self, now: float) -> bool:
        """Whether there has been no answer for so long that somebody should be told; true once."""
        if self._told or now - self._since < UNANSWERED:
            return False
        self._told = True
        return True

    def doubtful(self, now: float) -> bool:
        """Whether to try by a fresh connection; true once in RENEW seconds."""
        if now - self._renewed < RENEW:
            return False
        self._renewed = now
        return True

    def _shortened(self, pause: float) -> float:
        return pause * (1 - self._luck() / 2)
