"""Everything that was measured of one drafter, over all sessions that it drafted for.

- `RollingAcceptance`: the probability that draft i is accepted if all drafts before it were. A
  round that accepts all of its k drafts only proves "at least k": the observation is censored. So
  rates are kept per position, over the rounds that reached it.
- `Arrivals`: how fast it drafts, measured by the verifier's clock. `ArrivalEstimate` follows the
  drafts of one session.
"""

from collections import deque
from itertools import accumulate
from operator import mul
from statistics import median

from specmesh.core.draft_length import MAX_DRAFTS, MAX_SAMPLES
from specmesh.core.draft_length.speculation import Speculation

POSITIONS = MAX_DRAFTS + 1  # a policy looks one beyond the last draft
PRIOR = 0.6  # rate expected before anything is known
PRIOR_ROUNDS = 6.0  # rounds that the prior counts for
DRAFTER_MEMORY = 128.0  # rounds after which a drafter's round counts half
LEAST_INTERVAL = 1e-6  # seconds; drafts that arrive together still take some time each
UNKNOWN_INTERVAL = 0.01  # seconds that a draft may be late while the interval is unknown
SILENT_SECONDS = 2.0  # a drafter is silent after so many seconds without a frame
SILENT_RESTARTS = 8  # and as many of its restarts on top of these seconds


class RollingAcceptance:
    """Exponentially forgotten counts per position.

    A rare position is pulled towards the pooled rate of all positions.

    memory: rounds after which a round counts half.
    parent: records everything that is recorded here, as a drafter's acceptance does for its
        sessions. Its pooled rate is the prior.
    """

    def __init__(self, memory: float = 64.0, parent: "RollingAcceptance | None" = None) -> None:
        self._tested = [0.0] * POSITIONS
        self._accepted = [0.0] * POSITIONS
        self._keep = 0.5 ** (1.0 / memory)
        self._parent = parent

    def record(self, tested: int, accepted: int) -> None:
        """Count a round that compared `tested` drafts and accepted the first `accepted`."""
        if tested == 0:
            return
        if self._parent is not None:
            self._parent.record(tested, accepted)
        # Only positions that were compared fade: a long chain is rare, and its rates must not be
        # forgotten because of short ones.
        for position in range(min(tested, POSITIONS)):
            self._tested[position] = self._tested[position] * self._keep + 1
            self._accepted[position] *= self._keep
            if position < accepted:
                self._accepted[position] += 1

    @property
    def known(self) -> bool:
        """Return True once a round was recorded."""
        return any(self._tested)

    def chain(self, drafts: int) -> tuple[float, ...]:
        """Return the probabilities that the first 1, 2, ... `drafts` are all accepted."""
        if not drafts:
            return ()
        return tuple(accumulate(self.rates(drafts), mul))

    def pooled(self) -> float:
        """Return the rate over all positions."""
        prior = PRIOR
        if self._parent is not None:
            prior = self._parent.pooled()
        accepted = sum(self._accepted) + prior * PRIOR_ROUNDS
        return accepted / (sum(self._tested) + PRIOR_ROUNDS)

    def rates(self, most: int = POSITIONS) -> list[float]:
        """Return the conditional rates of the first `most` positions."""
        prior = self.pooled() * PRIOR_ROUNDS
        counts = zip(self._accepted[:most], self._tested, strict=False)
        return [(accepted + prior) / (tested + PRIOR_ROUNDS) for accepted, tested in counts]


class Arrivals:
    """How fast one drafter is.

    round_trip: median of the answered PINGs in seconds; 0 while unknown.
    restart: seconds from sending a recovered token to the first draft on it; None while unknown.
    load: sessions that it drafts for at once. A draft of one session takes `load` times as long.

    An estimate must not be optimistic. So intervals are learned while the drafter is certainly
    busy; until then the restarts bound them.
    """

    def __init__(self) -> None:
        self._round_trips = deque[float](maxlen=MAX_SAMPLES)
        self._restarts = deque[float](maxlen=MAX_SAMPLES)
        self._intervals = deque[float](maxlen=MAX_SAMPLES)  # with one session
        self._interval: float | None = None  # their median, computed on demand
        self.load = 1
        self.round_trip = 0.0
        self.restart: float | None = None

    def forget(self) -> None:
        """Measure the speed anew: the machine may have other work by now, or none."""
        self._restarts.clear()
        self._intervals.clear()
        self._interval = None
        self.restart = None

    def record_round_trip(self, seconds: float) -> None:
        """Learn from an answered PING."""
        self._round_trips.append(seconds)
        self.round_trip = median(self._round_trips)

    def record_restart(self, seconds: float, drafts: int) -> None:
        """Learn from the first frame after a recovered token, which has so many drafts."""
        if self.interval is None or seconds / drafts < self.interval:
            self.record_interval(seconds, drafts)  # a bound: they took so long at most
        # The frame may bring several drafts. All but the first took an interval more each.
        self._restarts.append(seconds - (drafts - 1) * (self.interval or 0.0))
        self.restart = median(self._restarts)

    def record_interval(self, seconds: float, drafts: int) -> None:
        """Learn from so many consecutive drafts of one session."""
        self._intervals.append(max(seconds / drafts, LEAST_INTERVAL) / self.load)
        self._interval = None

    @property
    def interval(self) -> float | None:
        """Return the seconds between two drafts of a session at this load; None while unknown."""
        if self._interval is None and self._intervals:
            self._interval = median(self._intervals)
        return None if self._interval is None else self._interval * self.load

    def interval_at(self, load: int) -> float | None:
        """Return the seconds between two drafts of a session at another load."""
        if self.interval is None or self._interval is None:
            return None
        return self._interval * load


class ArrivalEstimate:
    """The drafts of one drafter for one session, from the moment that it took the session.

    Measurements go into the drafter's `Arrivals`. In all methods `frontier` is the number of
    committed ids, `lead` the number of drafts in hand beyond it, and `draft_n` the number of
    drafts that the drafter is asked for.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.drafting = False
        """It drafts on our truth, and kept its last deadline."""
        self._flush: tuple[float, int] | None = None  # when and where it last started anew
        self._anchor: tuple[float, int] | None = None  # (time, position): ids due by that time
        self._arrived: tuple[float, int] | None = None  # newest drafts since the last truth
        self._silent_since: float | None = None  # first round without the drafts asked for

    def lead(self, frontier: int, lead: int, now: float) -> float:
        """Return how far ahead the drafter is, the done part of its next draft included.

        An overdue draft is expected in one interval.
        """
        interval = self._arrivals.interval
        if self._anchor is None or interval is None:
            return float(lead)
        time, position = self._anchor
        ahead = position - frontier + (now - time) / interval
        # By the clock, the drafts in hand must be done and the next one not: it would be here. Any
        # other result shows that the drafter has paused, or that the interval is out of date.
        is_plausible = ahead < lead + 1 and (lead == 0 or ahead >= lead)
        if not is_plausible:
            return float(lead)
        return ahead

    def due(self, position: int, now: float) -> float:
        """Return when the draft before a position can be here.

        Those up to the anchor come together.
        """
        if self._anchor is None:
            return now
        time, anchored = self._anchor
        return time + max(position - anchored, 0) * (self._arrivals.interval or 0.0)

    @property
    def slack(self) -> float:
        """Return the seconds that a draft may be late before it is given up."""
        interval = self._arrivals.interval or UNKNOWN_INTERVAL
        return interval + 0.25 * self._arrivals.round_trip + 2e-4

    def silent(self, now: float) -> bool:
        """Return True if nothing came for much longer than a restart takes.

        Steps could have had drafts in that time.
        """
        if self._silent_since is None:
            return False
        restart = self._arrivals.restart or 0.0
        return now - self._silent_since > SILENT_SECONDS + SILENT_RESTARTS * restart

    def alive(self) -> None:
        """Note that the drafter is alive."""
        self.drafting = True
        self._silent_since = None

    def arrived(self, frontier: int, draft_n: int, end: int, now: float) -> None:
        """Learn from drafts up to the position `end`.

        The first ones after a flush show how long a restart takes, the others how long one draft
        takes. Beyond the drafts that it was asked for a drafter takes its time: those show
        nothing.
        """
        self.alive()
        if self._flush is not None and end > self._flush[1]:
            sent_at, position = self._flush
            self._arrivals.record_restart(now - sent_at, end - position)
            self._flush = None
        elif self._arrived is not None and self._arrived[1] < end <= frontier + draft_n:
            time, position = self._arrived
            self._arrivals.record_interval(now - time, end - position)
        if self._arrived is None or end > self._arrived[1]:
            self._arrived = (now, end)
        if self._anchor is None or end > self._anchor[1]:
            self._anchor = (now, end)

    def moved(self, frontier: int, draft_n: int, now: float, *, flushed: bool) -> None:
        """Note the new frontier before it is sent. flushed: no draft is left beyond it."""
        self._arrived = None
        if not draft_n:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        if not flushed:
            return
        self._flush = None
        if draft_n:
            self._flush = (now, frontier)
        restart = self._arrivals.restart
        if restart is None:
            # Nothing can come before the truth has been there and an answer was on its way.
            self._anchor = (now + self._arrivals.round_trip, frontier)
        else:
            self._anchor = (now + (restart or self._arrivals.round_trip), frontier + 1)


class DrafterEstimates:
    """The acceptance, the speed and the profit of one drafter.

    acceptance: rates over all its sessions.
    arrivals: when its drafts arrive.
    speculation: gate and policy of steps that one of its sessions has to itself.
    """

    def __init__(self, others: RollingAcceptance | None = None) -> None:
        """Begin with the acceptance of all other drafters, if given."""
        self.acceptance = RollingAcceptance(DRAFTER_MEMORY, others)
        self.arrivals = Arrivals()
        self.speculation = Speculation()

    def forget(self) -> None:
        """Measure speed and profit anew: the drafter's machine may have other work by now."""
        self.arrivals.forget()
        self.speculation.forget()
