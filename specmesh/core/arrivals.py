"""When the next draft can be here, as measured at the verifier."""

from collections import deque
from statistics import median, median_low

LEAST_INTERVAL = 1e-6
"""Seconds; drafts that arrive together still take some time each."""

WINDOW = 31
"""Newest measurements of a kind that count."""


class Arrivals:
    """When one drafter's drafts arrive, as this side sees them on its own clock.

    A drafter that drafts for several sessions takes longer for each, so what is measured belongs to its `load`, how
    many it drafts for at once; `share` says when that changes.

    round_trip: median of answered PINGs in seconds, 0 while unknown.
    restart:    (seconds, drafts): how long after a correction was told the first drafts on it are here, and how many;
                None while unknown.
    interval:   seconds from one draft to the next. Learned only while the drafter is certainly busy, from frames that
                follow each other before as many drafts are here as it was asked for; until there were such, bounded
                by the restart, which holds the round trip too: an estimate must not be optimistic. None while unknown.

    Both are those of the present load.
    """

    def __init__(self) -> None:
        self._round_trips: deque[float] = deque(maxlen=WINDOW)
        self._at: dict[int, _AtLoad] = {}
        self.load = 1
        self.round_trip = 0.0
        self._looked = True  # what is known now was looked up since it changed
        self._restart: tuple[float, int] | None = None
        self._interval: float | None = None

    def share(self, load: int) -> None:
        """It drafts for `load` sessions from now on; for none counts as for one."""
        if max(load, 1) != self.load:
            self.load = max(load, 1)
            self._looked = False

    @property
    def restart(self) -> tuple[float, int] | None:
        """(seconds, drafts) of the present load."""
        self._look()
        return self._restart

    @property
    def interval(self) -> float | None:
        """Seconds from one draft to the next with the present load."""
        self._look()
        return self._interval

    def record_round_trip(self, seconds: float) -> None:
        """Learn from a PING answered after `seconds`."""
        self._round_trips.append(seconds)
        self.round_trip = median(self._round_trips)

    def record_restart(self, seconds: float, drafts: int) -> None:
        """Learn that the first `drafts` >= 1 drafts on a new truth were here `seconds` after that truth was sent."""
        self._here().restarts.append((seconds, drafts))
        self._looked = False

    def record_bound(self, seconds: float, guesses: int) -> None:
        """Learn that `guesses` >= 1 guesses took at most `seconds`, the way there and back and reading with them.

        That says something only where drafts are believed to take longer: of times measured before drafting was
        turned off, perhaps at a bad moment.
        """
        if self.interval is not None and seconds / guesses < self.interval:
            self.record_interval(seconds, guesses)

    def record_interval(self, seconds: float, drafts: int) -> None:
        """Learn that `drafts` >= 1 drafts followed those before them after `seconds`."""
        self._here().intervals.append(seconds / drafts)
        self._looked = False

    def interval_at(self, load: int) -> float | None:
        """`interval` as it would be with so many sessions; None while nothing is known.

        Of a load that was not seen: as much longer than with fewer sessions as there are more of them, but not longer
        than with more; where only more were seen, what it was with these. So never too little.
        """
        if load in self._at:
            return self._at[load].interval()
        fewer = max((known for known in self._at if known < load), default=None)
        more = min((known for known in self._at if known > load), default=None)
        found = [self._at[fewer].interval() * load / fewer] if fewer is not None else []
        found += [self._at[more].interval()] if more is not None else []
        return min(found, default=None)

    def restart_at(self, load: int) -> tuple[float, int] | None:
        """`restart` as it would be: that of the nearest load where it is known, longer by what drafts are longer."""
        known = [other for other, at in self._at.items() if at.restarts]
        if not known:
            return None
        nearest = min(known, key=lambda other: (abs(other - load), other))
        seconds, drafts = self._at[nearest].restart()
        longer = (self.interval_at(load) or 0.0) - self._at[nearest].interval()
        return seconds + max(longer, 0.0) * drafts, drafts

    def _here(self) -> "_AtLoad":
        return self._at.setdefault(self.load, _AtLoad())

    def _look(self) -> None:
        if not self._looked:
            self._interval, self._restart = self.interval_at(self.load), self.restart_at(self.load)
            self._looked = True


class _AtLoad:
    """What was measured with one load; there is something."""

    def __init__(self) -> None:
        self.restarts: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.intervals: deque[float] = deque(maxlen=WINDOW)

    def interval(self) -> float:
        found = self.intervals or [seconds / drafts for seconds, drafts in self.restarts]
        return max(median(found), LEAST_INTERVAL)

    def restart(self) -> tuple[float, int]:
        return median(seconds for seconds, _ in self.restarts), median_low([drafts for _, drafts in self.restarts])
