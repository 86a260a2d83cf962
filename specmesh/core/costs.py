"""What things cost, measured: the verifier's step per number of rows, and when the next draft can be here."""

from bisect import bisect_left
from collections import deque
from statistics import median


class StepCosts:
    """Seconds of one verifier step as a function of its rows: the median of the last measurements per width.

    Widths never run are interpolated between their neighbours; below the narrowest they cost as much as it, beyond the
    widest the last slope goes on. The curve is not assumed monotone: kernels have cliffs.
    """

    def __init__(self, window: int = 31) -> None:
        self._window = window
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._widths: list[int] = []

    def record(self, rows: int, seconds: float) -> None:
        """Learn from a step that ran `rows` rows and nothing else."""
        samples = self._samples.get(rows)
        if samples is None:
            samples = self._samples[rows] = deque(maxlen=self._window)
            self._widths = sorted(self._samples)
        samples.append(seconds)
        self._medians[rows] = median(samples)

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step of `rows` rows; 0 before the first measurement."""
        if rows in self._medians:
            return self._medians[rows]
        if not self._widths:
            return 0.0
        if len(self._widths) == 1 or rows < self._widths[0]:
            return self._medians[self._widths[0]]
        at = min(bisect_left(self._widths, rows), len(self._widths) - 1)
        left, right = self._widths[at - 1], self._widths[at]
        slope = (self._medians[right] - self._medians[left]) / (right - left)
        if rows > right:
            slope = max(slope, 0.0)
        return max(self._medians[left] + slope * (rows - left), 0.0)

    def table(self) -> dict[int, float]:
        """Measured medians in seconds, by rows."""
        return {rows: self._medians[rows] for rows in self._widths}


class Arrivals:
    """When drafts arrive: the round trip to a drafter and its interval between drafts, as this side sees them.

    Only the own clock is used. Intervals are learned while the drafter is certainly busy: from a correction until as
    many drafts as it was asked for are here. Before that, `interval` is None: nothing is worth waiting for yet.
    """

    def __init__(self, window: int = 31) -> None:
        self._round_trips: deque[float] = deque(maxlen=window)
        self._intervals: deque[float] = deque(maxlen=window)

    def record_round_trip(self, seconds: float) -> None:
        """Learn from a PING answered after `seconds`."""
        self._round_trips.append(seconds)

    def record_restart(self, seconds: float, drafts: int) -> None:
        """Learn that the `drafts`-th draft on a new truth was here `seconds` after that truth was sent."""
        self._intervals.append(max((seconds - self.round_trip) / drafts, 1e-6))

    @property
    def round_trip(self) -> float:
        """Median round trip in seconds; 0 while unknown."""
        return median(self._round_trips) if self._round_trips else 0.0

    @property
    def interval(self) -> float | None:
        """Median seconds from one draft to the next; None while unknown."""
        return median(self._intervals) if self._intervals else None
