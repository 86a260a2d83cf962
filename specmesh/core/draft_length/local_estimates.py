"""Everything that was measured of a drafter in the verifier's process: `LocalEstimates`.

Its drafts are made between two steps of the target, on the same thread. So nothing is ever waited
for, and there is no policy as for a drafter daemon. A step with n drafts costs the seconds of the
drafts and those of the target's step. The number with the most tokens per second is drafted.
"""

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from specmesh.core.draft_length import MAX_SAMPLES
from specmesh.core.draft_length.bids import SHORTEST
from specmesh.core.draft_length.drafter_estimates import DRAFTER_MEMORY, RollingAcceptance

PROBE_DRAFTS = 4  # drafts that are to show what they cost, or how many would be accepted
LEAST_ACCEPTED = 0.02  # probability below which a draft is not made
LEAST_PROMISE = 1.03
"""Times the rate without drafts that drafts must promise: texts are to be read for them, too."""
FEWEST_MEASURED = 3
"""Measurements with which a median is right, even if a step that was held up is among them."""
READ_WEIGHT = 1 / 8  # of the newest reading in the mean seconds of an id


class DraftCosts:
    """Seconds of the drafts between two steps, by the number of sessions.

    batches: the drafts of several sessions are made together.
    id_seconds: mean seconds of an id that is read; 0 while unknown.
    """

    def __init__(self, *, batches: bool) -> None:
        """Begin without measurements."""
        self._batches = batches
        self._samples: dict[int, deque[float]] = {}  # seconds of a draft, by sessions
        self._medians: dict[int, float] = {}
        self.id_seconds = 0.0

    def record(self, sessions: int, drafts: int, seconds: float) -> None:
        """Learn the seconds of so many drafts for each of so many sessions."""
        if sessions not in self._samples:
            self._samples[sessions] = deque(maxlen=MAX_SAMPLES)
        samples = self._samples[sessions]
        samples.append(seconds / drafts)
        self._medians[sessions] = median(samples)

    @property
    def known(self) -> bool:
        """Return True if the median has enough measurements for one of them to be wrong."""
        return any(len(samples) >= FEWEST_MEASURED for samples in self._samples.values())

    def record_reading(self, ids: int, seconds: float) -> None:
        """Learn the seconds in which so many ids were read."""
        each = seconds / ids
        if self.id_seconds:
            self.id_seconds += (each - self.id_seconds) * READ_WEIGHT
        else:
            self.id_seconds = each

    def seconds(self, sessions: int, drafts: int) -> float:
        """Return the expected seconds of so many drafts for each of so many sessions.

        0 while nothing was measured. A number of sessions that was not measured costs as much as
        the nearest one: a first try shows more.
        """
        if not drafts or not self._medians:
            return 0.0
        if not self._batches:
            return self._medians[1] * drafts * sessions
        each = self._medians.get(sessions)
        if each is None:
            nearest = min(self._medians, key=lambda known: abs(known - sessions))
            each = self._medians[nearest]
        return each * drafts


class LocalEstimates:
    """The acceptance and the costs of a drafter in the verifier's process.

    name: of the source: "local" for a draft model, "mtp" for the target's own head.
    acceptance: rates over all sessions.
    costs: of its drafts.
    """

    def __init__(self, name: str, *, batches: bool = False) -> None:
        """Begin without measurements."""
        self.name = name
        self.acceptance = RollingAcceptance(DRAFTER_MEMORY)
        self.costs = DraftCosts(batches=batches)

    def best_drafts(
        self, acceptance: Sequence[Sequence[float]], most: int, step: Callable[[int], float]
    ) -> int:
        """Return how many drafts for each session give a step the most tokens per second.

        0 if no number of drafts gives it more than it has without.

        acceptance: for each session, the probabilities that its first 1, 2, ... drafts are all
            accepted. step: returns the seconds of a step of the target of so many rows.
        """
        sessions = len(acceptance)
        tokens = float(sessions)
        best = LEAST_PROMISE * tokens / max(step(sessions), SHORTEST)
        taken = 0
        for drafts in range(1, most + 1):
            more = sum(one[drafts - 1] for one in acceptance)
            if more < LEAST_ACCEPTED * sessions:
                break
            tokens += more
            seconds = step(sessions * (drafts + 1)) + self.costs.seconds(sessions, drafts)
            rate = tokens / max(seconds, SHORTEST)
            if rate > best:
                best = rate
                taken = drafts
        return taken
