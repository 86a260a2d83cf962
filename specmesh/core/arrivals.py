"""When the next draft can be here, as measured at the verifier."""

from collections import deque
from statistics import median, median_low

LEAST_INTERVAL = 1e-6
"""Seconds; drafts that arrive together still take some time each."""


class Arrivals:
    """When drafts arrive, as this side sees them on its own clock.

    round_trip: median of answered PINGs in seconds, 0 while unknown.
    restart:    (seconds, drafts): how long after a correction was told the first drafts on it are here, and how many;
                None while unknown.
    interval:   seconds from one draft to the next. Learned only while the drafter is certainly busy, from frames that
                follow each other before as many drafts are here as it was asked for; until there were such, bounded
                by the restart, which holds the round trip too: an estimate must not be optimistic. None while unknown.
    """

    def __init__(self, window: int = 31) -> None:
        self._round_trips: deque[float] = deque(maxlen=window)
        self._restarts: deque[tuple[float, int]] = deque(maxlen=window)
        self._intervals: deque[float] = deque(maxlen=window)
        self.round_trip = 0.0
        self.restart: tuple[float, int] | None = None
        self.interval: float | None = None

    def record_round_trip(self, seconds: float) -> None:
        """Learn from a PING answered after `seconds`."""
        self._round_trips.append(seconds)
        self.round_trip = median(self._round_trips)

    def record_restart(self, seconds: float, drafts: int) -> None:
        """Learn that the first `drafts` >= 1 drafts on a new truth were here `seconds` after that truth was sent."""
        self._restarts.append((seconds, drafts))
        self.restart = median(s for s, _ in self._restarts), median_low([n for _, n in self._restarts])
        if not self._intervals:
            self.interval = max(median(s / n for s, n in self._restarts), LEAST_INTERVAL)

    def record_bound(self, seconds: float, guesses: int) -> None:
        """Learn that `guesses` >= 1 guesses took at most `seconds`, the way there and back and reading with them.

        That says something only where drafts are believed to take longer: of times measured before drafting was
        turned off, perhaps at a bad moment.
        """
        if self.interval is not None and seconds / guesses < self.interval:
            self.record_interval(seconds, guesses)

    def record_interval(self, seconds: float, drafts: int) -> None:
        """Learn that `drafts` >= 1 drafts followed those before them after `seconds`."""
        self._intervals.append(seconds / drafts)
        self.interval = max(median(self._intervals), LEAST_INTERVAL)
