"""Which of several drafters a session gets, which one stands by for it, and when they change places.

The **standby** of a session follows it without being asked for drafts (standby.py). So a drafter is measured
before anything depends on it, takes over without reading the text first, and is there when the other one dies. What
counts is the rate of tokens that a drafter promises for this session, by its measured acceptance, speed and distance
(`usefulness`). Nothing that a drafter says of itself is used.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import Generic, Literal, TypeVar, get_args

from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import LEAST_INTERVAL, Arrivals
from specmesh.core.draft_length.policy import PolicyInputs

D = TypeVar("D", bound=Hashable)
Why = Literal["first", "alone", "gone", "silent", "better"]
"""Why a session got its drafter: it was its first; there was none for a while; the one before has gone, or says
nothing; or this one promises more."""

WHYS: tuple[Why, ...] = get_args(Why)

LOOK_ROUNDS, LOOK_SECONDS = 8, 0.25
"""Rounds of a session, and seconds, between two looks at its drafters, at least."""

GAIN = 1.05
"""Times the present drafter's rate that another must promise, at two looks that follow each other. A change costs one
restart, as the standby has read the text."""

ALIKE = 1.05
"""Drafters whose rates differ by less are as good as each other: the one with fewer sessions is taken."""

HOPE = 1.02
"""Times the rate of the target alone that a drafter counts for of which nothing is known."""

STINT, SHORT_STINT = 32, 12
"""Rounds that a drafter gets before another takes its place because it promises more; or much more, `FAR` times."""

FAR = 1.5
"""Times as much."""

PROOF = 64
"""Rounds after which a drafter has kept its promise. One that is left before has broken it."""

SHOWN = 8
"""Guesses that a standby must have shown in this session."""

PENALTY, LONGEST_PENALTY = 30.0, 3600.0
"""Seconds that one which broke its promise takes nobody's place; twice as many each time, up to so many."""

CERTAIN = 0.999
"""No chain of drafts stands more surely than this."""

RECHECK = 30.0
"""Seconds after which a drafter that nobody has measured since is a standby's successor."""

MOST_STANDBYS = 2
"""Most sessions that one drafter stands by for: each is a text to read."""

MEMORY = 32.0
"""Rounds after which what a session saw of one drafter counts half, where drafters are compared."""

DRAFTER_MEMORY = 128.0
"""The same for what all sessions saw of it."""


class DrafterRecord:
    """What was measured of one drafter since it came. `shared` is what all drafters' drafts were worth, where nothing
    is known of this one."""

    def __init__(self, shared: RollingAcceptance | None = None, now: float = 0.0) -> None:
        self.acceptance = RollingAcceptance(memory=DRAFTER_MEMORY, parent=shared)
        self.arrivals = Arrivals()
        self.measured = now
        self.rate: float | None = None  # what it promised when it was last looked at
        self._shadows: deque[float] = deque(maxlen=8)
        self._barred, self._penalty = float("-inf"), PENALTY

    def shadowed(self, interval: float | None, now: float) -> None:
        """It has shown guesses, perhaps with the seconds from one to the next."""
        self.measured = now
        if interval is not None:
            self._shadows.append(interval)
            self.arrivals.record_bound(interval, 1)

    def interval_at(self, load: int) -> float | None:
        """Seconds from one draft to the next with so many sessions; by its guesses where it has not drafted yet."""
        known = self.arrivals.interval_at(load)
        if known is None and self._shadows:
            return max(median(self._shadows), LEAST_INTERVAL) * load  # sooner than the way takes: by chance, or a lie
        return known

    def restart_at(self, load: int) -> tuple[float, int] | None:
        """(seconds, drafts) after a correction; None where it has not drafted yet."""
        return self.arrivals.restart_at(load)

    def barred(self, now: float) -> bool:
        """Whether it takes nobody's place now."""
        return now < self._barred

    def broke(self, now: float) -> None:
        """It was left before it had kept its promise."""
        self._barred, self._penalty = now + self._penalty, min(2 * self._penalty, LONGEST_PENALTY)

    def kept(self) -> None:
        """It has kept its promise."""
        self._penalty = PENALTY


@dataclass(frozen=True, slots=True)
class Offer(Generic[D]):
    """A drafter that could draft for a session.

    rate: tokens per second that it promises, None while that is unknown. sessions, standbys: how many it drafts and
    stands by for. measured: when it last was. barred: it may not take another's place.
    """

    drafter: D
    rate: float | None
    sessions: int = 0
    standbys: int = 0
    measured: float = 0.0
    barred: bool = False


@dataclass(frozen=True, slots=True)
class Change(Generic[D]):
    """A drafter is to draft for the session from now on, for this reason; or to stand by, where there is none."""

    drafter: D
    why: Why | None = None


def choose(offers: Sequence[Offer[D]], alone: float, standby: D | None = None) -> D | None:
    """The drafter for a session that has none, of those attached in the order they came; None without any. The one that
    stands by has read the text, and is taken unless another promises much more. `alone` is the target's own rate."""
    free = [offer for offer in offers if not offer.barred] or list(offers)
    worth = {offer.drafter: alone * HOPE if offer.rate is None else offer.rate for offer in free}
    best = max(worth.values(), default=0.0)
    if standby in worth and worth[standby] * FAR >= best:
        return standby
    alike = [offer for offer in free if worth[offer.drafter] * ALIKE >= best]
    chosen = min(alike, key=lambda offer: offer.sessions, default=None)
    return chosen.drafter if chosen is not None else None


@dataclass(slots=True)
class _Seen:
    """A drafter in one session: its guesses, and beyond them its drafts since it took over."""

    record: DrafterRecord
    guesses: RollingAcceptance
    drafts: RollingAcceptance


@dataclass(slots=True)
class Casting(Generic[D]):
    """The drafters of one session: who drafts, who stands by, and what was seen of each."""

    drafter: D | None = None
    standby: D | None = None
    _seen: dict[D, _Seen] = field(default_factory=dict)
    _rounds: int = 0  # since the drafter took over
    _standby_rounds: int = 0
    _looked: tuple[int, float] = (0, float("-inf"))
    _better: int = 0  # looks that found the standby better, without one between them that did not
    _begun: bool = False
    _promised: bool = False

    # --- what happened

    def took_over(self, drafter: D, record: DrafterRecord, *, promised: bool = False) -> RollingAcceptance:
        """It drafts from now on, perhaps because it promised more than another; where its rounds are recorded."""
        self._promised = promised
        seen = self._see(drafter, record)
        seen.drafts = RollingAcceptance(memory=MEMORY, parent=seen.guesses)
        if self.standby == drafter:
            self.standby = None
        self.drafter, self._rounds, self._better, self._begun = drafter, 0, 0, True
        self._looked = (0, self._looked[1])
        return seen.drafts

    def stands_by(self, drafter: D | None, record: DrafterRecord | None = None) -> None:
        """It stands by from now on; nobody for None."""
        self.standby, self._standby_rounds, self._better = drafter, 0, 0
        if drafter is not None and record is not None:
            self._see(drafter, record)

    def left(self) -> None:
        """Nobody drafts any more."""
        self.drafter = None

    def forget(self, drafter: D) -> None:
        """It has gone."""
        self._seen.pop(drafter, None)

    def guessed(self, right: Sequence[bool]) -> None:
        """Whether guesses of the standby were right."""
        assert self.standby is not None, "a standby guesses"
        guesses = self._seen[self.standby].guesses
        for one in right:
            guesses.record(1, int(one))

    def broke(self, now: float) -> None:
        """The drafter is left because it is not as good as it seemed."""
        if self.drafter is not None and self._promised and self._rounds < PROOF:
            self._seen[self.drafter].record.broke(now)

    @property
    def why(self) -> Why:
        """Why a session without a drafter gets one."""
        return "alone" if self._begun else "first"

    def _see(self, drafter: D, record: DrafterRecord) -> _Seen:
        if drafter not in self._seen:
            guesses = RollingAcceptance(memory=MEMORY, parent=record.acceptance)
            self._seen[drafter] = _Seen(record, guesses, RollingAcceptance(memory=MEMORY, parent=guesses))
        return self._seen[drafter]

    # --- what it comes to

    def rates(self, drafter: D, record: DrafterRecord) -> list[float]:
        """Conditional acceptance to expect of a drafter in this session: by what was seen of it here. For one that was
        never here, what others saw, as much better or worse as this text suits the present drafter more than others
        did (the same in log-odds, as of persons and tasks in Rasch's model)."""
        seen = self._seen.get(drafter)
        if seen is not None:
            return (seen.drafts if drafter == self.drafter else seen.guesses).rates()
        present = self._seen.get(self.drafter) if self.drafter is not None else None
        if present is None:
            return record.acceptance.rates()
        suits = _log_odds(present.drafts.pooled()) - _log_odds(present.record.acceptance.pooled())
        return [1 / (1 + exp(-_log_odds(rate) - suits)) for rate in record.acceptance.rates()]

    def due(self, now: float) -> bool:
        """Count a round; whether it is time for `look`."""
        self._rounds += 1
        self._standby_rounds += 1
        if self._rounds == PROOF and self.drafter is not None:
            self._seen[self.drafter].record.kept()
        rounds, seconds = self._looked
        if self._rounds < rounds + LOOK_ROUNDS or now < seconds + LOOK_SECONDS:
            return False
        self._looked = (self._rounds, now)
        return True

    def look(self, offers: Sequence[Offer[D]], shown: int, now: float, *, silent: bool) -> Change[D] | None:
        """What should change, if anything. `offers` are of all that could draft, the present one's too; `shown` is how
        many guesses the standby has shown; silent: the drafter was asked and says nothing."""
        of = {offer.drafter: offer for offer in offers}
        standby = of.get(self.standby) if self.standby is not None else None
        drafter = of.get(self.drafter) if self.drafter is not None else None
        if standby is not None and drafter is not None and self._is_better(standby, drafter, shown, silent=silent):
            return Change(standby.drafter, "silent" if silent else "better")
        return self._successor(of, standby, shown, now)

    def _is_better(self, standby: Offer[D], drafter: Offer[D], shown: int, *, silent: bool) -> bool:
        """Whether the standby is to draft, by this look and the one before."""
        able = shown >= SHOWN and standby.rate is not None and not standby.barred
        offered, present = standby.rate or 0.0, drafter.rate or 0.0
        self._better = self._better + 1 if able and offered > GAIN * present else 0
        stint = SHORT_STINT if offered > FAR * present else STINT
        return (able and silent) or (self._better >= 2 and self._rounds >= stint)

    def _successor(self, of: dict[D, Offer[D]], standby: Offer[D] | None, shown: int, now: float) -> Change[D] | None:
        """Another standby, where there is none, or a drafter that was not measured for long or promises more."""
        free = [offer for offer in of.values() if offer.drafter not in (self.drafter, self.standby)]
        free = [offer for offer in free if offer.standbys < MOST_STANDBYS]
        if not free:
            return None
        unknown = [offer for offer in free if offer.rate is None]
        best = unknown[0] if unknown else max(free, key=lambda offer: offer.rate or 0.0)
        if standby is None:
            return Change(best.drafter)
        if shown < SHOWN or self._standby_rounds < STINT:
            # Without guesses for so long, although others could have its place, it has none.
            return Change(best.drafter) if not shown and self._standby_rounds >= 2 * PROOF else None
        oldest = min(free, key=lambda offer: offer.measured)
        if unknown or (best.rate or 0.0) > GAIN * (standby.rate or 0.0):
            return Change(best.drafter)
        return Change(oldest.drafter) if now - oldest.measured >= RECHECK else None


def usefulness(inputs: PolicyInputs) -> float:
    """Expected tokens per second with such a drafter, at least those of the target alone.

    A closed form: solving the step policy (policy.py) takes milliseconds, this takes microseconds. It looks
    at two ways of drafting only, with each number of drafts: after a rejection, wait for them or say tokens alone
    meanwhile; then step whenever so many are here.
    """
    best = 1.0 / inputs.alone
    tokens, alive = 1.0, 1.0
    for drafts in range(1, len(inputs.steps)):
        alive *= inputs.rates[drafts - 1]
        tokens += alive
        stands = min(alive * inputs.rates[drafts], CERTAIN)
        best = max(best, *_rates(inputs, drafts, tokens, stands))
    return best


def _rates(inputs: PolicyInputs, drafts: int, tokens: float, stands: float) -> tuple[float, float]:
    """Rates with so many drafts a step, which commits so many tokens and is followed by the next with probability
    `stands`, else by a restart: where the first of them is waited for, and where it is not."""
    interval, alone, step = inputs.interval, inputs.steps[0], inputs.steps[drafts]
    more = stands / (1.0 - stands)
    gained = tokens * (1.0 + more)
    spent = step + more * max(step, (drafts + 1) * interval)
    waited = gained / (inputs.restart + (drafts - 1) * interval + spent)
    if interval >= alone:
        return waited, 0.0  # it never overtakes the target
    rounds = (inputs.restart + (drafts - 1) * interval) / (alone - interval)
    first = min(inputs.rates[0], CERTAIN)
    caught = first**rounds  # the drafts of a chain that the target's own tokens contradict are made anew
    alone_rounds = (1.0 - caught) / (1.0 - first)
    return waited, (alone_rounds + caught * gained) / (alone_rounds * alone + caught * spent)


def _log_odds(rate: float) -> float:
    bounded = min(max(rate, 0.01), 0.99)
    return log(bounded / (1 - bounded))
