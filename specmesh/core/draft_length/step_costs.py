"""Costs of the target's steps: seconds by rows and by context, learned from every step.

What a draft costs decides whether it is worth a row. That is no constant: on a GPU 8 rows may take
as long as one, and the ninth much longer, as another kernel is chosen. So there is no formula, but
a table of measured widths, whose gaps are filled from their neighbours.

Each width has the median of its newest steps. A mean would follow every hiccup of the host, and a
step that the system interrupts takes many times as long.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from specmesh.core.draft_length import MAX_SAMPLES

DISTURBED = 1.5
"""Times a width's own steps: if it took more in advance, that was measured on a busy host."""
_FIRST_LOOK = 3  # steps of a width that show it: one of them may have been held up
_LOOK_EVERY = 8  # steps from one look to the next
SHORT_CONTEXT = 1024  # ids; steps over fewer are of one kind, then each doubling is another
PAUSE_WEIGHT = 0.03  # of the newest pause in their mean


class StepCosts:
    """Seconds of a verifier's step by its rows and its context.

    The context is the number of ids in the step's sequences. Contexts are in buckets: up to 1023,
    2047, 4095 and so on, each with a curve. A width that a bucket has not measured costs as much
    as with the next shorter context and an extra cost. That is read off the line between the extra
    costs of its known widths, since each row reads the context.

    pause: mean seconds between two steps.
    lost_advance: measurements in advance were thrown away, and none were made since.
    """

    def __init__(self, curves: "dict[int, _Curve] | None" = None) -> None:
        self.curves: dict[int, _Curve] = {} if curves is None else curves
        self.pause = 0.0
        self.lost_advance = False
        self._extra: dict[int, dict[int, float]] = {}
        """By bucket: what each known width costs more than with the shorter context."""
        self._expected: dict[tuple[int, int], float] = {}  # by bucket and rows, until news
        self._undrafted: StepCosts | None = None
        self._slower: float | None = None  # ratio of steps beside a drafter to others, on demand
        self._most_slower = 1.0

    @property
    def undrafted(self) -> "StepCosts":
        """Return the costs of steps while nothing is drafted on this host."""
        return self._undrafted or self

    @property
    def beside_drafter(self) -> bool:
        """Return True if steps beside a drafter of this host are measured apart."""
        return self._undrafted is not None

    def split(self, most_slower: float) -> None:
        """Measure steps beside a drafter of this host apart.

        A width that was not measured beside a drafter is taken to be as much slower as those that
        were, at most `most_slower` times. Without that bound one hiccup would end drafting, and
        with it the measurements.
        """
        if self._undrafted is None:
            self._undrafted = StepCosts(self.curves)
            self._undrafted.lost_advance = self.lost_advance
            self.curves = {}
        self._slower = None
        self._most_slower = most_slower

    def join(self) -> None:
        """Measure all steps together again."""
        if self._undrafted is not None:
            # The measurements beside a drafter go: they are of a load that is over.
            self.curves = self._undrafted.curves
            self.lost_advance = self._undrafted.lost_advance
            self._undrafted = None
            self._extra.clear()
            self._expected.clear()

    def record_pause(self, seconds: float) -> None:
        """Learn the pause between two steps while nothing is waited for."""
        self.pause += (seconds - self.pause) * PAUSE_WEIGHT

    def record(self, rows: int, seconds: float, *, context_length: int = 0) -> None:
        """Learn from a step that verified `rows` rows and did nothing more."""
        bucket = _bucket(context_length)
        if bucket not in self.curves:
            self.curves[bucket] = _Curve()
        curve = self.curves[bucket]
        if self._undrafted is not None and rows not in curve.medians:
            # The expectation counts as much as the first measurement, which may be a hiccup.
            expected = self.seconds(rows, context_length)
            if expected > 0:
                curve.record(rows, expected)
        self._slower = None
        before: float | None = None
        if self._expected:
            before = curve.medians.get(rows)
        curve.record(rows, seconds)
        if self._disproves_advance(curve, rows):
            self._forget_advance()
        # Expectations of other widths and of longer contexts may rest on this median. Without any
        # the medians are computed on demand.
        elif not self._expected or curve.medians[rows] == before:
            return
        self._extra.clear()
        self._expected.clear()

    def record_in_advance(self, rows: int, seconds: float) -> None:
        """Learn from a step that was run to be measured, on an empty sequence.

        All these measurements go once steps of texts show that they were made on a busy host, as
        while it boots. A width that was far too dear then would never be tried again.
        """
        bucket = _bucket(0)
        if bucket not in self.curves:
            self.curves[bucket] = _Curve()
        self.curves[bucket].record_in_advance(rows, seconds)
        self.lost_advance = False
        self._slower = None
        self._extra.clear()
        self._expected.clear()

    def _disproves_advance(self, curve: "_Curve", rows: int) -> bool:
        """Return True if steps of texts took far less than the same width in advance.

        Those in advance were on an empty sequence, so steps of any context should take longer.
        """
        shortest = self.curves.get(_bucket(0))
        if shortest is None or not curve.is_due(rows):
            return False
        in_advance = shortest.in_advance(rows)
        return in_advance is not None and DISTURBED * curve.of_texts(rows) < in_advance

    def _forget_advance(self) -> None:
        """Keep the steps of texts only; a context without any has no curve."""
        self.lost_advance = True
        shortest = self.curves[_bucket(0)]
        shortest.forget_advance()
        if not shortest.medians:
            del self.curves[_bucket(0)]

    def seconds(self, rows: int, context_length: int = 0) -> float:
        """Return the expected seconds of a step; 0 before the first measurement."""
        bucket = _bucket(context_length)
        if self._undrafted is not None:
            curve = self.curves.get(bucket)
            if curve is None or rows not in curve.medians:
                # Beside a drafter few widths are measured. Their ratio to the same widths without
                # it is the best guess for the others: the cliffs of the kernels stay where they
                # are.
                return self._beside(rows, context_length, self._undrafted)
            return curve.medians[rows]
        key = (bucket, rows)
        known = self._expected.get(key)
        if known is None:
            known = self._expected[key] = self._in_bucket(bucket, rows)
        return known

    def tables(self) -> dict[int, dict[int, float]]:
        """Return the measured medians in seconds, by each bucket's least context and by rows."""
        tables: dict[int, dict[int, float]] = {}
        for bucket, curve in sorted(self.curves.items()):
            tables[_least_context(bucket)] = dict(sorted(curve.medians.items()))
        return tables

    def _beside(self, rows: int, context_length: int, undrafted: "StepCosts") -> float:
        """Return the expected seconds beside a drafter of a width that was not measured there."""
        if self._slower is None:
            ratios: list[float] = []  # of each width measured there, to its seconds without
            for bucket, curve in self.curves.items():
                for width, seconds in curve.medians.items():
                    expected = undrafted.seconds(width, _least_context(bucket))
                    ratios.append(seconds / expected if expected else 1.0)
            self._slower = min(median(ratios or [1.0]), self._most_slower)
        return undrafted.seconds(rows, context_length) * self._slower

    def _in_bucket(self, bucket: int, rows: int) -> float:
        """Return the expected seconds in a bucket.

        A context just begun has measured few widths; the shorter ones know the cliffs.
        """
        curve = self.curves.get(bucket)
        if curve is not None and rows in curve.medians:
            return curve.medians[rows]
        shorter = max((other for other in self.curves if other < bucket), default=None)
        if shorter is None:
            # No shorter context was measured. The shortest of the longer ones errs on the dear
            # side.
            if curve is None and self.curves:
                curve = self.curves[min(self.curves)]
            return 0.0 if curve is None else curve.seconds(rows)
        if curve is None:
            return self._in_bucket(shorter, rows)
        if bucket not in self._extra:
            self._extra[bucket] = self._extra_over(shorter, curve)
        extra = _on_line(curve.widths, self._extra[bucket], rows)
        return self._in_bucket(shorter, rows) + extra

    def _extra_over(self, shorter: int, curve: "_Curve") -> dict[int, float]:
        """Return what each width of a curve costs more than with a shorter context."""
        extra: dict[int, float] = {}
        for rows, seconds in curve.medians.items():
            # No step over more ids takes less. Where it seems so, the shorter context was measured
            # on a busy host, and a row alone would seem to take nothing.
            extra[rows] = max(seconds - self._in_bucket(shorter, rows), 0.0)
        return extra


class _Curve:
    """Seconds by rows at about the same context.

    A width has the median of its last measurements; between two widths the curve is a line. It
    need not rise: kernels have cliffs.

    widths: those with a measurement, rising.
    """

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._in_advance: dict[int, list[float]] = {}
        self._medians: dict[int, float] = {}
        self._new: set[int] = set()  # widths measured since the medians were computed
        self.widths: list[int] = []

    def record(self, rows: int, seconds: float) -> None:
        """Add a measurement."""
        if rows not in self._samples:
            self._samples[rows] = deque(maxlen=MAX_SAMPLES)
            self.widths = sorted({rows, *self.widths})
        self._samples[rows].append(seconds)
        self._new.add(rows)

    def record_in_advance(self, rows: int, seconds: float) -> None:
        """Add a measurement of a step without a text."""
        self._in_advance.setdefault(rows, []).append(seconds)
        self.widths = sorted({rows, *self.widths})
        self._new.add(rows)

    def is_due(self, rows: int) -> bool:
        """Return True if a width's steps are to be compared with its measurement in advance now.

        That is so after a few of them and at intervals, but not once MAX_SAMPLES are kept.
        """
        return len(self._samples[rows]) % _LOOK_EVERY == _FIRST_LOOK

    def of_texts(self, rows: int) -> float:
        """Return the median of a width's steps with texts."""
        return median(self._samples[rows])

    def in_advance(self, rows: int) -> float | None:
        """Return a width's seconds in advance, from the line between those measured.

        None for a width beyond them.
        """
        widths = sorted(self._in_advance)
        if not widths or not widths[0] <= rows <= widths[-1]:
            return None
        medians = {width: median(each) for width, each in self._in_advance.items()}
        return _on_line(widths, medians, rows)

    def forget_advance(self) -> None:
        """Keep the measurements of steps with texts only."""
        self._in_advance.clear()
        self.widths = sorted(self._samples)
        self._medians.clear()
        self._new = set(self.widths)

    @property
    def medians(self) -> dict[int, float]:
        """Return the medians by width, computed on demand."""
        while self._new:
            rows = self._new.pop()
            measured = [*self._in_advance.get(rows, ()), *self._samples.get(rows, ())]
            self._medians[rows] = median(measured)
        return self._medians

    def seconds(self, rows: int) -> float:
        """Return the expected seconds of a width.

        Beyond the widest one the line from half as many rows goes on, which no single cliff
        bends. It never goes down: a cheaper step would be asked for at once.
        """
        widths = self.widths
        medians = self.medians
        right = widths[-1]
        if len(widths) == 1 or rows <= right:
            return _on_line(widths, medians, rows)
        left = widths[max(bisect_right(widths, right // 2) - 1, 0)]
        slope = (medians[right] - medians[left]) / (right - left)
        return medians[right] + max(slope, 0.0) * (rows - right)


def _on_line(widths: Sequence[int], values: Mapping[int, float], rows: int) -> float:
    """Return a width's value: on the line between known widths, beyond them that of the last.

    widths: those of `values`, rising.
    """
    known = values.get(rows)
    if known is not None:
        return known
    at = bisect_left(widths, rows)
    if at in {0, len(widths)}:
        return values[widths[0 if at == 0 else -1]]
    left, right = widths[at - 1], widths[at]
    slope = (values[right] - values[left]) / (right - left)
    return values[left] + slope * (rows - left)


def _bucket(context_length: int) -> int:
    return (context_length // SHORT_CONTEXT).bit_length()


def _least_context(bucket: int) -> int:
    return (SHORT_CONTEXT << bucket) // 2 if bucket else 0
