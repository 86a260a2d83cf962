"""The seconds that calls of the proposer may take of a server's time: what they save, and 1 %.

The core's gates withhold drafts that do not pay. But to follow the texts of many rows costs time by
itself in each step, and a step of a GPU may take only 10 ms. So each call is paid for: by accepted
drafts, each of which has saved a row its step, and by OVERHEAD_SHARE of the server's own time.

Once that is spent the proposer rests: calls return at once, and no text is followed. When enough
has come together it begins anew. Then it finds texts that have begun to repeat themselves, and
drafters that have become better.
"""

OVERHEAD_SHARE = 0.01
"""Share of the server's own time that calls may take, even if they save nothing."""
MOST_SAVED = 0.25
"""Most seconds that are saved up: what was saved an hour ago pays for nothing."""
RESUMED_WITH = 0.02
"""Seconds with which a rest ends: to open 16 texts of 2,000 ids takes about 2 ms."""


class Allowance:
    """The seconds that calls may take.

    left: how many there are. resting: calls are to return at once.
    """

    def __init__(self) -> None:
        """Begin with enough to see some hundred steps."""
        self.left = RESUMED_WITH
        self.resting = False
        self._ended_at: float | None = None
        self._step_s = 0.0  # the server's own time before the newest call

    def begin_call(self, now: float) -> bool:
        """Note that a call begins; return True if it is to return at once."""
        before = self._ended_at
        if before is not None:
            self._step_s = max(now - before, 0.0)
            self.left = min(self.left + OVERHEAD_SHARE * self._step_s, MOST_SAVED)
        self._ended_at = now
        if self.resting and self.left >= RESUMED_WITH:
            self.resting = False
        return self.resting

    def end_call(self, seconds: float, now: float) -> None:
        """Note that a call that did its work has taken so long, and ends now."""
        self._ended_at = now
        # A busy host may stop a call for long, which shows nothing: the rest after it is bounded.
        self.left = max(self.left - seconds, -RESUMED_WITH)
        self.resting = self.left < 0

    def saved(self, accepted: int, rows: int) -> None:
        """Note the drafts accepted in the step before this call, which so many rows shared."""
        self.left = min(self.left + accepted * self._step_s / rows, MOST_SAVED)
