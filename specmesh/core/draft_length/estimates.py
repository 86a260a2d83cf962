"""What is expected, from what was measured: how likely draft i is accepted, given that all before it were, when drafts
arrive, and what the target's steps cost by their rows and their context.

Full acceptance of k drafts only proves "at least k" (it is censored), so rates are kept per position reached.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_length.gate import SpeculationGate

if TYPE_CHECKING:  # numpy, which `bench steps` has no use for
    from specmesh.core.draft_length.policy import Policy

POSITIONS = MAX_DRAFTS + 1  # with a rate of their own: a policy looks one beyond the last draft
PRIOR, PRIOR_ROUNDS = (
    0.6,
    6.0,
)  # rate expected of whom nothing is known, and rounds that it counts for


class RollingAcceptance:
    """Exponentially forgotten counts per position, pulled towards their pooled rate where a position is rare. memory:
    rounds after which one counts half. parent: hears what is recorded here, as a drafter's does of its sessions, and
    one of all drafters; its rate is expected while nothing is known."""

    def __init__(self, memory: float = 64.0, parent: "RollingAcceptance | None" = None) -> None:
        self._tested = [0.0] * POSITIONS
        self._accepted = [0.0] * POSITIONS
        self._keep = 0.5 ** (1.0 / memory)
        self._parent = parent

    def record(self, tested: int, accepted: int) -> None:
        if tested == 0:
            return
        if self._parent is not None:
            self._parent.record(tested, accepted)
        for i in range(min(tested, POSITIONS)):
            self._tested[i] = self._tested[i] * self._keep + 1
            self._accepted[i] = self._accepted[i] * self._keep + (i < accepted)

    @property
    def known(self) -> bool:
        return any(self._tested)

    def pooled(self) -> float:
        prior = PRIOR if self._parent is None else self._parent.pooled()
        return (sum(self._accepted) + prior * PRIOR_ROUNDS) / (sum(self._tested) + PRIOR_ROUNDS)

    def rates(self, most: int = POSITIONS) -> list[float]:
        """Conditional rate per position, position 0 first, of at most so many."""
        pulled, first = (
            self.pooled() * PRIOR_ROUNDS,
            zip(self._accepted[:most], self._tested, strict=False),
        )
        return [(accepted + pulled) / (tested + PRIOR_ROUNDS) for accepted, tested in first]


LEAST_INTERVAL = 1e-6  # seconds; drafts that arrive together still take some time each
MAX_SAMPLES = 31  # newest measurements of a kind that count
# ids after which a drafter that is off is asked for drafts once, to see whether they would be accepted; doubled each
# time, since its drafting may slow the verifier's host
PROBE_INTERVAL, LONGEST_PROBE_INTERVAL = 32, 256


class Arrivals:
    """When one drafter's drafts arrive, by this side's clock. round_trip: median of answered PINGs in seconds, 0 while
    unknown. restart: seconds from sending a recovered token to the first draft on it, None while unknown. load: how
    many sessions it drafts for at once; each draft of a session is taken to need as many times as long. Intervals are
    learned while the drafter is certainly busy, until then bounded by restarts: an estimate must not be optimistic."""

    def __init__(self) -> None:
        self._round_trips, self._restarts = (
            deque[float](maxlen=MAX_SAMPLES),
            deque[float](maxlen=MAX_SAMPLES),
        )
        self._intervals = deque[float](maxlen=MAX_SAMPLES)  # with one session
        self._interval: float | None = None  # their median, once somebody has asked for it
        self.gate = SpeculationGate()  # of steps that one of its sessions has to itself
        self.policy: Policy | None = None  # the newest of its sessions', with which others begin
        self.looked = float("-inf")  # when it was last seen whether another one is due
        self.probe_interval = PROBE_INTERVAL
        self.load = 1
        self.round_trip = 0.0
        self.restart: float | None = None

    def forget(self) -> None:
        """Measure anew how fast it is, and whether it pays: its machine may have other work by now, or none."""
        self._restarts.clear()
        self._intervals.clear()
        self._interval = self.restart = self.policy = None
        self.looked = float("-inf")
        self.gate = SpeculationGate()

    def record_round_trip(self, seconds: float) -> None:
        self._round_trips.append(seconds)
        self.round_trip = median(self._round_trips)

    def record_restart(self, seconds: float, drafts: int) -> None:
        """Note the seconds from a recovered token to the frame with the first drafts on it."""
        if self.interval is None or seconds / drafts < self.interval:
            self.record_interval(seconds, drafts)  # a bound: they took so long at most
        self._restarts.append(seconds - (drafts - 1) * (self.interval or 0.0))
        self.restart = median(self._restarts)

    def record_interval(self, seconds: float, drafts: int) -> None:
        self._intervals.append(max(seconds / drafts, LEAST_INTERVAL) / self.load)
        self._interval = None

    @property
    def interval(self) -> float | None:
        """Seconds from one draft of a session to the next at the present load, None while unknown."""
        return self.interval_at(self.load)

    def interval_at(self, load: int) -> float | None:
        if self._interval is None and self._intervals:
            self._interval = median(self._intervals)
        return None if self._interval is None else self._interval * load


UNKNOWN_INTERVAL = 0.01  # seconds that a draft may be late whose interval is not known
SILENT_SECONDS, SILENT_RESTARTS = (
    2.0,
    8,
)  # seconds, and restarts besides, that a drafter may say nothing


class ArrivalEstimate:
    """One drafter and one session, from when it took that over. What arrives is learned in the drafter's `arrivals`.
    `frontier`: committed ids; `lead`: drafts in hand beyond it; `asked`: drafts it is asked for."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._flush: tuple[float, int] | None = (
            None  # when and where the drafter last had to start anew
        )
        self._anchor: tuple[float, int] | None = (
            None  # (time, position): that many ids were, or will be, here
        )
        self._arrived: tuple[float, int] | None = (
            None  # the newest drafts since the last truth: when, up to where
        )
        self.drafting = (
            False  # it has shown that it drafts on our truth, and kept its last deadline
        )
        self._silent_since: float | None = (
            None  # the first round in which nothing came although it was asked
        )

    def lead(self, frontier: int, lead: int, now: float) -> float:
        """How far the drafter is ahead as seen here, with the done part of the next draft; an overdue one is due in one
        interval."""
        interval = self._arrivals.interval
        if self._anchor is None or interval is None:
            return float(lead)
        time, position = self._anchor
        real = position - frontier + (now - time) / interval
        return real if real < lead + 1 and (lead == 0 or real >= lead) else float(lead)

    def due(self, position: int, now: float) -> float:
        """When a draft can be here; those up to the anchor come together."""
        time, here = self._anchor if self._anchor is not None else (now, position)
        return time + max(position - here, 0) * (self._arrivals.interval or 0.0)

    @property
    def slack(self) -> float:
        """How late a draft may be before it is given up, in seconds."""
        return (
            (self._arrivals.interval or UNKNOWN_INTERVAL) + 0.25 * self._arrivals.round_trip + 2e-4
        )

    def silent(self, now: float) -> bool:
        """Whether it says nothing for much longer than it takes to begin anew, although steps could have drafts."""
        since, restart = self._silent_since, self._arrivals.restart or 0.0
        return since is not None and now - since > SILENT_SECONDS + SILENT_RESTARTS * restart

    def alive(self) -> None:
        self.drafting, self._silent_since = True, None

    def arrived(self, frontier: int, asked: int, end: int, now: float) -> None:
        """Learn from drafts up to `end`. The first ones after a flush tell what it takes to begin anew, the others what
        one draft takes; but beyond what was asked for a drafter takes its time, which tells nothing."""
        self.drafting, self._silent_since = True, None
        if self._flush is not None and end > self._flush[1]:
            sent_at, position = self._flush
            self._arrivals.record_restart(now - sent_at, end - position)
            self._flush = None
        elif self._arrived is not None and self._arrived[1] < end <= frontier + asked:
            time, position = self._arrived
            self._arrivals.record_interval(now - time, end - position)
        if self._arrived is None or end > self._arrived[1]:
            self._arrived = (now, end)
        if self._anchor is None or end > self._anchor[1]:
            self._anchor = (now, end)

    def moved(self, frontier: int, asked: int, now: float, *, flushed: bool) -> None:
        """Note the new frontier before it is sent, and what to expect then. flushed: no draft is left beyond
        it."""
        self._arrived = None
        if not asked:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        if flushed:
            self._flush = (now, frontier) if asked else None
            restart = self._arrivals.restart
            self._anchor = (
                now + (restart or self._arrivals.round_trip),
                frontier + (restart is not None),
            )


SHORT_CONTEXT = 1024  # ids; steps over fewer are of one kind, then each doubling is another
PAUSE_WEIGHT = 0.03  # of the newest pause in their mean


class StepCosts:
    """Seconds of one verifier step by its rows and its context, learned from every step. The context is the number of
    ids that the step's sequences hold, in buckets: up to 1023, 2047, 4095 and so on, each with a `_Curve`. A width
    unknown to a bucket costs what it does with the next shorter context, plus the median of what known widths cost more
    here."""

    def __init__(self, curves: "dict[int, _Curve] | None" = None) -> None:
        self._gates: dict[int, SpeculationGate] = {}
        self.curves: dict[int, _Curve] = {} if curves is None else curves
        self._dearer: dict[int, float] = {}
        self._expected: dict[
            tuple[int, int], float
        ] = {}  # by bucket and rows, until something is learned
        self._alone: StepCosts | None = None
        self._slower: float | None = (
            None  # times as long as alone that steps beside a drafter take; None: to be found
        )
        self._most_slower = 1.0
        self.pause = 0.0  # mean seconds between two steps

    @property
    def alone(self) -> "StepCosts":
        """Costs of steps while nothing is drafted, which may compute with more CPU threads."""
        return self._alone or self

    @property
    def shared(self) -> bool:
        """Whether steps beside a drafter of this host are measured apart."""
        return self._alone is not None

    def split(self, most_slower: float) -> None:
        """Measure steps beside a drafter of this host apart: a width that was not measured so is taken to be as much
        slower than alone as those that were, at most `most_slower` times: after one hiccup nothing would be drafted
        again, and nothing measured."""
        if self._alone is None:
            self._alone, self.curves = StepCosts(self.curves), {}
        self._slower, self._most_slower = None, most_slower

    def join(self) -> None:
        """No longer measure them apart."""
        if self._alone is not None:
            self.curves, self._alone = self._alone.curves, None
            self._dearer.clear()
            self._expected.clear()

    def gate(self, sessions: int) -> SpeculationGate:
        """That of steps which so many sessions share: 2 or 3, 4 to 7, and so on."""
        if (size := sessions.bit_length()) not in self._gates:
            self._gates[size] = SpeculationGate()
        return self._gates[size]

    def record_pause(self, seconds: float) -> None:
        """Learn the pause between two steps, nothing being waited for."""
        self.pause += (seconds - self.pause) * PAUSE_WEIGHT

    def record(self, rows: int, seconds: float, *, context: int = 0) -> None:
        """Learn from a step that verified `rows` rows and did nothing else."""
        bucket, alone = _bucket(context), self._alone
        if bucket not in self.curves:
            self.curves[bucket] = _Curve()
        curve = self.curves[bucket]
        if (
            alone is not None
            and rows not in curve.medians
            and (expected := self.seconds(rows, context)) > 0
        ):
            curve.record(
                rows, expected
            )  # counts as much as the first measurement, which may have met a hiccup
        before = (
            curve.medians.get(rows) if self._expected else None
        )  # nobody asks: no median is made
        curve.record(rows, seconds)
        self._slower = None
        if self._expected and curve.medians[rows] != before:
            self._dearer.clear()
            self._expected.clear()

    def _beside(self, rows: int, context: int, alone: "StepCosts") -> float:
        """Expected seconds of a step beside a drafter of this host, of a width that was not measured so."""
        if self._slower is None:
            self._slower = min(median(list(self._ratios(alone)) or [1.0]), self._most_slower)
        return alone.seconds(rows, context) * self._slower

    def _ratios(self, alone: "StepCosts") -> Iterator[float]:
        """Times as long as alone that each width measured beside a drafter takes."""
        for bucket, curve in self.curves.items():
            for rows, seconds in curve.medians.items():
                expected = alone.seconds(rows, _least(bucket))
                yield seconds / expected if expected else 1.0

    def seconds(self, rows: int, context: int = 0) -> float:
        """Expected seconds of a step of `rows` rows over so much context; 0 before the first measurement."""
        key = _bucket(context), rows
        if self._alone is not None:
            curve = self.curves.get(key[0])
            measured = None if curve is None else curve.medians.get(rows)
            return self._beside(rows, context, self._alone) if measured is None else measured
        known = self._expected.get(key)
        if known is None:
            known = self._expected[key] = self._in(*key)
        return known

    def _in(self, bucket: int, rows: int) -> float:
        """`seconds`, as far as a bucket can tell: a context just begun knows few widths, and shorter ones know their
        cliffs."""
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
            self._dearer[bucket] = median(
                one - self._in(shorter, width) for width, one in curve.medians.items()
            )
        return max(self._in(shorter, rows) + self._dearer[bucket], 0.0)

    def tables(self) -> dict[int, dict[int, float]]:
        """Return measured medians in seconds, by the least context of each bucket and by rows."""
        return {
            _least(bucket): dict(sorted(curve.medians.items()))
            for bucket, curve in sorted(self.curves.items())
        }


class _Curve:
    """Seconds by rows with about the same context: the median of the last measurements per width, interpolated between
    neighbours. Not assumed monotone: kernels have cliffs."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._new: set[int] = set()  # widths that were measured since somebody asked
        self._widths: list[int] = []

    def record(self, rows: int, seconds: float) -> None:
        if rows not in self._samples:
            self._samples[rows] = deque(maxlen=MAX_SAMPLES)
            self._widths = sorted(self._samples)
        self._samples[rows].append(seconds)
        self._new.add(rows)

    @property
    def medians(self) -> dict[int, float]:
        """By width; made when somebody asks, which nobody does while nothing is drafted."""
        while self._new:
            rows = self._new.pop()
            self._medians[rows] = median(self._samples[rows])
        return self._medians

    def seconds(self, rows: int) -> float:
        """Beyond the widest one measured the line from half as many rows on goes on, which no single cliff bends, but
        never down: a cheaper step would be asked for at once."""
        widths, medians = self._widths, self.medians
        if rows in medians:
            return medians[rows]
        if len(widths) == 1 or rows < widths[0]:
            return medians[widths[0]]
        at = bisect_left(widths, rows)
        if at == len(widths):
            left, right = widths[max(bisect_right(widths, widths[-1] // 2) - 1, 0)], widths[-1]
            return medians[right] + max((medians[right] - medians[left]) / (right - left), 0.0) * (
                rows - right
            )
        left, right = widths[at - 1], widths[at]
        return medians[left] + (medians[right] - medians[left]) / (right - left) * (rows - left)


def _bucket(context: int) -> int:
    return (context // SHORT_CONTEXT).bit_length()


def _least(bucket: int) -> int:
    return (SHORT_CONTEXT << bucket) // 2 if bucket else 0
