"""What the verifier's steps cost, measured: by their rows, and by how much context they attend to."""

from bisect import bisect_left
from collections import deque
from statistics import median

from specmesh.core.draft_length.gate import SpeculationGate

SHORT_CONTEXT = 1024  # ids; steps over fewer are of one kind, then each doubling is another
PAUSE_WEIGHT = 0.03  # of the newest pause in their mean


class StepCosts:
    """Seconds of one verifier step by its rows and its context, learned from every step.

    The context is the number of ids that the step's sequences hold, in buckets: up to 1023, 2047, 4095 and so on, each
    with a `_Curve`. A width unknown to a bucket costs what it does with the next shorter context, plus the median of
    what known widths cost more here."""

    def __init__(self, window: int = 31, curves: "dict[int, _Curve] | None" = None) -> None:
        self._gates: dict[int, SpeculationGate] = {}
        self._window = window
        self.curves: dict[int, _Curve] = {} if curves is None else curves
        self._dearer: dict[int, float] = {}
        self._expected: dict[tuple[int, int], float] = {}  # by bucket and rows, until something is learned
        self._owed = 0.0
        self._alone: StepCosts | None = None
        self.pause = 0.0  # mean seconds between two steps

    @property
    def alone(self) -> "StepCosts":
        """Costs of steps while nothing is drafted, which may compute with more CPU threads."""
        return self._alone or self

    def split(self) -> None:
        """Measure steps beside a drafter of this host apart: they may take another time from now on."""
        if self._alone is None:
            self._alone = StepCosts(self._window, self.curves)
        self.curves = {bucket: curve.doubted() for bucket, curve in self.curves.items()}

    def join(self) -> None:
        """No longer measure them apart."""
        if self._alone is not None:
            self.curves, self._alone = self._alone.curves, None
            self._dearer.clear()
            self._expected.clear()

    def gate(self, sessions: int) -> SpeculationGate:
        """That of steps which so many sessions share: 2 or 3, 4 to 7, and so on."""
        return self._gates.setdefault(sessions.bit_length(), SpeculationGate())

    def record_pause(self, seconds: float) -> None:
        """Learn the pause between two steps, nothing being waited for."""
        self.pause += (seconds - self.pause) * PAUSE_WEIGHT

    def record(
        self, rows: int, seconds: float, *, context: int = 0, drafts: bool = False, redoes: bool = False
    ) -> None:
        """Learn from a step that verified `rows` rows, with or without drafts among them, and did nothing else.

        redoes: it also decoded ids again, as some models must after a rejection. That is a price of drafting, owed by
        the next step with drafts where this one has none."""
        if redoes and not drafts:
            self._owed += max(seconds - self.seconds(rows, context), 0.0)
            return
        if drafts:
            seconds, self._owed = seconds + self._owed, 0.0
        bucket = _bucket(context)
        if bucket not in self.curves:
            self.curves[bucket] = _Curve(self._window)
        if self.curves[bucket].record(rows, seconds):
            self._dearer.clear()
            self._expected.clear()

    def seconds(self, rows: int, context: int = 0) -> float:
        """Expected seconds of a step of `rows` rows over so much context; 0 before the first measurement."""
        key = _bucket(context), rows
        known = self._expected.get(key)
        if known is None:
            known = self._expected[key] = self._in(*key)
        return known

    def _in(self, bucket: int, rows: int) -> float:
        curve = self.curves.get(bucket)
        if curve is not None and rows in curve.medians:
            return curve.medians[rows]
        shorter = max((other for other in self.curves if other < bucket), default=None)
        if shorter is None:
            known = curve or (self.curves[min(self.curves)] if self.curves else None)
            return known.seconds(rows) if known is not None else 0.0
        if curve is None:
            return self._in(shorter, rows)
        if bucket not in self._dearer:
            self._dearer[bucket] = median(one - self._in(shorter, width) for width, one in curve.medians.items())
        return max(self._in(shorter, rows) + self._dearer[bucket], 0.0)

    def table(self) -> dict[int, float]:
        """Measured medians in seconds, by rows, with the shortest context that was measured."""
        return next(iter(self.tables().values()), {})

    def tables(self) -> dict[int, dict[int, float]]:
        """The same by the least context of each bucket."""
        return {
            (SHORT_CONTEXT << bucket) // 2 if bucket else 0: dict(sorted(curve.medians.items()))
            for bucket, curve in sorted(self.curves.items())
        }


class _Curve:
    """Seconds by rows with about the same context: the median of the last measurements per width, interpolated between
    neighbours. Not assumed monotone: kernels have cliffs."""

    def __init__(self, window: int) -> None:
        self.medians: dict[int, float] = {}
        self._window = window
        self._samples: dict[int, deque[float]] = {}
        self._widths: list[int] = []

    def record(self, rows: int, seconds: float) -> bool:
        """Learn; return whether a median changed."""
        samples = self._samples.get(rows)
        if samples is None:
            samples = self._samples[rows] = deque(maxlen=self._window)
            self._widths = sorted(self._samples)
        samples.append(seconds)
        new = median(samples)
        if new == self.medians.get(rows):
            return False
        self.medians[rows] = new
        return True

    def doubted(self) -> "_Curve":
        """Return a curve on which each width counts as measured once."""
        curve = _Curve(self._window)
        for rows, seconds in self.medians.items():
            curve.record(rows, seconds)
        return curve

    def seconds(self, rows: int) -> float:
        if rows in self.medians:
            return self.medians[rows]
        if len(self._widths) == 1 or rows < self._widths[0]:
            return self.medians[self._widths[0]]
        at = min(bisect_left(self._widths, rows), len(self._widths) - 1)
        left, right = self._widths[at - 1], self._widths[at]
        slope = (self.medians[right] - self.medians[left]) / (right - left)
        if rows > right:
            return self.medians[right] + max(slope, 0.0) * (rows - right)
        return self.medians[left] + slope * (rows - left)


def _bucket(context: int) -> int:
    return (context // SHORT_CONTEXT).bit_length()
