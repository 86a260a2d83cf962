"""What things cost, measured: the verifier's step per number of rows, and when the next draft can be here."""

from bisect import bisect_left
from collections import deque
from statistics import fmean, median, median_low

LEAST_INTERVAL = 1e-6
"""Seconds; drafts that arrive together still take some time each."""


class StepCosts:
    """Seconds of one verifier step as a function of its rows: the median of the last measurements per width.

    Widths never run are interpolated between their neighbours; below the narrowest they cost as much as it, beyond the
    widest the last slope goes on. The curve is not assumed monotone: kernels have cliffs. `pause` is what lies between
    two steps: scheduling, sampling, the wire.
    """

    def __init__(self, window: int = 31) -> None:
        self._window = window
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._widths: list[int] = []
        self._between: dict[int, float] = {}
        self._owed = 0.0
        self._pauses = {drafting: deque[float](maxlen=2 * window) for drafting in (False, True)}

    def record_pause(self, seconds: float, *, drafting: bool) -> None:
        """Learn what lies between two steps that nothing was waited for between: it is part of every step's price.

        drafting: a drafter was at work meanwhile, whose frames take time too.
        """
        self._pauses[drafting].append(seconds)

    def knows_pause(self, *, drafting: bool) -> bool:
        """Whether any was measured in this case."""
        return bool(self._pauses[drafting])

    def pause(self, *, drafting: bool) -> float:
        """The mean of it, in seconds, since the rare long ones are paid for too; where it is known for the other case
        only, that."""
        pauses = self._pauses[drafting] or self._pauses[not drafting]
        return fmean(pauses) if pauses else 0.0

    def record(self, rows: int, seconds: float, *, drafts: bool = False, redoes: bool = False) -> None:
        """Learn from a step that verified `rows` rows, with or without drafts among them, and did nothing else.

        redoes: it also decoded ids again, as some models must after drafts were rejected. That is a price of drafting:
        a step with drafts is recorded with it. A step without is not recorded, or the target alone would look slow:
        what it took beyond a plain one is owed by the next step with drafts.
        """
        if redoes and not drafts:
            self._owed += max(seconds - self.seconds(rows), 0.0)
            return
        if drafts:
            seconds, self._owed = seconds + self._owed, 0.0
        samples = self._samples.get(rows)
        if samples is None:
            samples = self._samples[rows] = deque(maxlen=self._window)
            self._widths = sorted(self._samples)
        samples.append(seconds)
        new = median(samples)
        if new != self._medians.get(rows):
            self._medians[rows] = new
            self._between.clear()

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step of `rows` rows; 0 before the first measurement."""
        if rows in self._medians:
            return self._medians[rows]
        if rows not in self._between:
            self._between[rows] = self._interpolated(rows)
        return self._between[rows]

    def _interpolated(self, rows: int) -> float:
        if not self._widths:
            return 0.0
        if len(self._widths) == 1 or rows < self._widths[0]:
            return self._medians[self._widths[0]]
        at = min(bisect_left(self._widths, rows), len(self._widths) - 1)
        left, right = self._widths[at - 1], self._widths[at]
        slope = (self._medians[right] - self._medians[left]) / (right - left)
        if rows > right:
            return self._medians[right] + max(slope, 0.0) * (rows - right)
        return self._medians[left] + slope * (rows - left)

    def table(self) -> dict[int, float]:
        """Measured medians in seconds, by rows."""
        return {rows: self._medians[rows] for rows in self._widths}


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

    def record_interval(self, seconds: float, drafts: int) -> None:
        """Learn that `drafts` >= 1 drafts followed those before them after `seconds`."""
        self._intervals.append(seconds / drafts)
        self.interval = max(median(self._intervals), LEAST_INTERVAL)
