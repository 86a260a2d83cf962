"""What is expected of drafters: how likely draft i stands, given that all before it stood, and when drafts arrive.

Full acceptance of k drafts only proves "at least k" (it is censored), so rates are kept per position reached.
"""

from collections import deque
from functools import cached_property
from statistics import median, median_low

from specmesh.core.draft_length.gate import SpeculationGate
from specmesh.core.statistics import SessionTimes

POSITIONS = 16  # positions with a rate of their own
PRIOR_ROUNDS = 6.0  # rounds that the prior counts for


class RollingAcceptance:
    """Exponentially forgotten counts per position, pulled towards their pooled rate where a position is rare.

    prior: the rate while nothing is known, or a `parent`, which hears what is recorded here, as sessions have in their
    verifier. memory: rounds after which one counts half."""

    def __init__(self, prior: float = 0.6, memory: float = 64.0, parent: "RollingAcceptance | None" = None) -> None:
        self._tested = [0.0] * POSITIONS
        self._stood = [0.0] * POSITIONS
        self._prior = prior
        self._keep = 0.5 ** (1.0 / memory)
        self._parent = parent
        self._rates: list[float] | None = None

    def record(self, tested: int, accepted: int) -> None:
        if tested == 0:
            return
        if self._parent is not None:
            self._parent.record(tested, accepted)
        self._tested = [n * self._keep + (i < tested) for i, n in enumerate(self._tested)]
        self._stood = [n * self._keep + (i < accepted) for i, n in enumerate(self._stood)]
        self._rates = None

    @property
    def known(self) -> bool:
        return any(self._tested)

    def pooled(self) -> float:
        prior = self._prior if self._parent is None else self._parent.pooled()
        return (sum(self._stood) + prior * PRIOR_ROUNDS) / (sum(self._tested) + PRIOR_ROUNDS)

    def rates(self) -> list[float]:
        """Conditional rate per position, position 0 first."""
        if self._rates is None:
            pulled = self.pooled() * PRIOR_ROUNDS
            self._rates = [(s + pulled) / (n + PRIOR_ROUNDS) for s, n in zip(self._stood, self._tested, strict=True)]
        return self._rates


LEAST_INTERVAL = 1e-6  # seconds; drafts that arrive together still take some time each
WINDOW = 31  # newest measurements of a kind that count


class Arrivals:
    """When one drafter's drafts arrive, by this side's clock. What is measured belongs to its `load`: how many sessions
    it drafts for at once; estimates are those of the present load, None while unknown.

    round_trip: median of answered PINGs in seconds, 0 while unknown. restart: (seconds, drafts) from telling a
    correction to the first drafts on it. interval: seconds from one draft to the next, learned only while the drafter
    is certainly busy, until then bounded by the restart: an estimate must not be optimistic."""

    def __init__(self) -> None:
        self._round_trips: deque[float] = deque(maxlen=WINDOW)
        self._at: dict[int, _AtLoad] = {}
        self.gate = SpeculationGate()  # of steps that one of its sessions has to itself
        self.load = 1
        self.round_trip = 0.0

    def share(self, load: int) -> None:
        if max(load, 1) != self.load:
            self.load = max(load, 1)
            self._changed()

    @cached_property
    def restart(self) -> tuple[float, int] | None:
        return self.restart_at(self.load)

    @cached_property
    def interval(self) -> float | None:
        return self.interval_at(self.load)

    def _changed(self) -> None:
        self.__dict__.pop("restart", None)
        self.__dict__.pop("interval", None)

    def record_round_trip(self, seconds: float) -> None:
        self._round_trips.append(seconds)
        self.round_trip = median(self._round_trips)

    def record_restart(self, seconds: float, drafts: int) -> None:
        self._here().restarts.append((seconds, drafts))
        self._changed()

    def record_bound(self, seconds: float, guesses: int) -> None:
        """Learn that guesses took at most `seconds`, the way there and back included: news only where drafts are
        believed to take longer, as measured before drafting was turned off."""
        if self.interval is not None and seconds / guesses < self.interval:
            self.record_interval(seconds, guesses)

    def record_interval(self, seconds: float, drafts: int) -> None:
        self._here().intervals.append(seconds / drafts)
        self._changed()

    def interval_at(self, load: int) -> float | None:
        """`interval` with so many sessions; None while nothing is known. For an unseen load never too little: the next
        smaller load's, scaled, but no more than the next larger one's."""
        if load in self._at:
            return self._at[load].interval()
        fewer = max((known for known in self._at if known < load), default=None)
        more = min((known for known in self._at if known > load), default=None)
        found = [self._at[fewer].interval() * load / fewer] if fewer is not None else []
        found += [self._at[more].interval()] if more is not None else []
        return min(found, default=None)

    def restart_at(self, load: int) -> tuple[float, int] | None:
        """`restart` of the nearest known load, longer by what drafts take longer."""
        known = [other for other, at in self._at.items() if at.restarts]
        if not known:
            return None
        nearest = min(known, key=lambda other: (abs(other - load), other))
        seconds, drafts = self._at[nearest].restart()
        longer = (self.interval_at(load) or 0.0) - self._at[nearest].interval()
        return seconds + max(longer, 0.0) * drafts, drafts

    def _here(self) -> "_AtLoad":
        return self._at.setdefault(self.load, _AtLoad())


class _AtLoad:
    def __init__(self) -> None:
        self.restarts: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self.intervals: deque[float] = deque(maxlen=WINDOW)

    def interval(self) -> float:
        found = self.intervals or [seconds / drafts for seconds, drafts in self.restarts]
        return max(median(found), LEAST_INTERVAL)

    def restart(self) -> tuple[float, int]:
        return median(seconds for seconds, _ in self.restarts), median_low([drafts for _, drafts in self.restarts])


UNKNOWN_INTERVAL = 0.01  # seconds that a draft may be late whose interval is not known


class ArrivalEstimate:
    """One drafter and one session, from when it took that over. What arrives is learned in the drafter's `arrivals` and
    the session's `times`. `frontier`: committed ids; `lead`: drafts in hand beyond it; `asked`: drafts it is asked
    for."""

    def __init__(self, arrivals: Arrivals, times: SessionTimes) -> None:
        self._arrivals, self._times = arrivals, times
        self._flush: tuple[float, int] | None = None  # when and where the drafter last had to start anew
        self._anchor: tuple[float, int] | None = None  # (time, position): that many ids were, or will be, here
        self._arrived: tuple[float, int] | None = None  # the newest drafts since the last truth: when, up to where
        self._told: tuple[float, int] | None = None  # the newest truth: when, up to where

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
        return (self._arrivals.interval or UNKNOWN_INTERVAL) + 0.25 * self._arrivals.round_trip + 2e-4

    def told(self, frontier: int, now: float) -> None:
        self._told = now, frontier

    def shadowed(self, end: int, guesses: int, now: float) -> None:
        """Note guesses of known ids, the last for the one before `end`."""
        if self._told is not None and self._told[1] == end:
            self._arrivals.record_bound(now - self._told[0], guesses)
            self._told = None

    def arrived(self, frontier: int, asked: int, end: int, now: float) -> None:
        if self._flush is not None and end > self._flush[1]:
            sent_at, position = self._flush
            self._arrivals.record_restart(now - sent_at, end - position)
            self._times.restart += now - sent_at
            self._times.restarts += 1
            self._flush = None
        elif self._arrived is not None and self._arrived[1] < end <= frontier + asked:
            time, position = self._arrived
            self._arrivals.record_interval(now - time, end - position)
        if self._arrived is None or end > self._arrived[1]:
            self._arrived = (now, end)
        if self._anchor is None or end > self._anchor[1]:
            self._anchor = (now, end)

    def moved(self, frontier: int, asked: int, now: float, *, flushed: bool) -> None:
        """Note the new frontier before the drafter is told, and what to expect then. flushed: no draft is left beyond
        it."""
        self._arrived = None
        if flushed:
            self._flush = (now, frontier) if asked else None
            seconds, drafts = self._arrivals.restart or (self._arrivals.round_trip, 0)
            self._anchor = (now + seconds, frontier + drafts)
        elif self._anchor is not None and now - self._anchor[0] > 2 * (self._arrivals.interval or 0.0):
            # It had stopped at the end of its credit and goes on when it hears this truth.
            self._anchor = (now + self._arrivals.round_trip, self._anchor[1])


SILENT_ROUNDS = 3  # without drafts although they were asked for
SILENCE, SILENT_RESTARTS = 0.25, 8  # seconds, and restarts besides
FIRST_SILENCE = 5.0  # seconds before the first drafts, when it reads the text


class SilenceTimer:
    """Whether a drafter that is asked for drafts says nothing."""

    def __init__(self) -> None:
        self._drafted = False
        self._since: float | None = None  # the first round in which nothing came
        self._rounds = 0

    def broken(self) -> None:
        self._drafted, self._since, self._rounds = True, None, 0

    def round(self, *, asked: bool, now: float) -> None:
        """Note that a round ended without drafts, and whether any are asked for the next."""
        if not asked:
            self._since, self._rounds = None, 0
        elif self._since is None:
            self._since = now
        else:
            self._rounds += 1

    def lasts(self, restart: float, now: float) -> bool:
        """Whether it is silent for much longer than the `restart` seconds that it takes to begin anew."""
        patience = SILENCE + SILENT_RESTARTS * restart if self._drafted else FIRST_SILENCE
        return self._since is not None and self._rounds >= SILENT_ROUNDS and now - self._since > patience
