"""Which of several drafters a session gets, which one stands by for it, and when they change places.

The **standby** of a session follows it without being asked for drafts (standby.py). So a drafter is measured
before anything depends on it, takes over without reading the text first, and is there when the other one dies. What
counts is the rate of tokens that a drafter promises for this session, by its measured acceptance, speed and distance
(`drafting_rate`). Nothing that a drafter says of itself is used.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from typing import Generic, Literal, TypeVar, get_args

from specmesh.core import events as ev
from specmesh.core.draft_buffer import TELL_EVERY
from specmesh.core.draft_length.estimates import LEAST_INTERVAL, Arrivals, RollingAcceptance
from specmesh.core.draft_length.policy import PolicyInputs
from specmesh.core.prefix import Prefix

D = TypeVar("D", bound=Hashable)
AttachReason = Literal["first", "alone", "gone", "silent", "better"]
"""Why a session got its drafter: it was its first; there was none for a while; the one before has gone, or says
nothing; or this one promises more."""

ATTACH_REASONS: tuple[AttachReason, ...] = get_args(AttachReason)

LOOK_ROUNDS, LOOK_SECONDS = 8, 0.25  # rounds of a session, and seconds, between two looks at its drafters, at least
GAIN = 1.05
"""Times the present drafter's rate that another must promise, at two looks that follow each other. A change costs one
restart, as the standby has read the text."""

ALIKE = 1.05  # drafters whose rates differ by less are as good as each other: the one with fewer sessions is taken
HOPE = 1.02  # times the rate of the target alone that a drafter counts for of which nothing is known
STINT, SHORT_STINT = 32, 12
"""Rounds that a drafter gets before another takes its place because it promises more; or much more, `FAR` times."""

FAR = 1.5  # times as much
PROOF = 64  # rounds after which a drafter has kept its promise. One that is left before has broken it
SHOWN = 8  # guesses that a standby must have shown in this session
PENALTY, LONGEST_PENALTY = 30.0, 3600.0
"""Seconds that one which broke its promise takes nobody's place; twice as many each time, up to so many."""

CERTAIN = 0.999  # no chain of drafts stands more surely than this
RECHECK = 30.0  # seconds after which a drafter that nobody has measured since is a standby's successor
MOST_STANDBYS = 2  # most sessions that one drafter stands by for: each is a text to read
MEMORY = 32.0  # rounds after which what a session saw of one drafter counts half, where drafters are compared
DRAFTER_MEMORY = 128.0  # the same for what all sessions saw of it


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
        return self.arrivals.restart_at(load)

    def barred(self, now: float) -> bool:
        """Whether it takes nobody's place now."""
        return now < self._barred

    def broke(self, now: float) -> None:
        self._barred, self._penalty = now + self._penalty, min(2 * self._penalty, LONGEST_PENALTY)

    def kept(self) -> None:
        self._penalty = PENALTY


@dataclass(frozen=True, slots=True)
class DrafterOffer(Generic[D]):
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
class DrafterChange(Generic[D]):
    """A drafter is to draft for the session from now on, for this reason; or to stand by, where there is none."""

    drafter: D
    why: AttachReason | None = None


def choose_drafter(offers: Sequence[DrafterOffer[D]], alone: float, standby: D | None = None) -> D | None:
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
class SessionDrafters(Generic[D]):
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
        self.standby, self._standby_rounds, self._better = drafter, 0, 0
        if drafter is not None and record is not None:
            self._see(drafter, record)

    def left(self) -> None:
        self.drafter = None

    def forget(self, drafter: D) -> None:
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
    def why(self) -> AttachReason:
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

    def look(
        self, offers: Sequence[DrafterOffer[D]], shown: int, now: float, *, silent: bool
    ) -> DrafterChange[D] | None:
        """What should change, if anything. `offers` are of all that could draft, the present one's too; `shown` is how
        many guesses the standby has shown; silent: the drafter was asked and says nothing."""
        of = {offer.drafter: offer for offer in offers}
        standby = of.get(self.standby) if self.standby is not None else None
        drafter = of.get(self.drafter) if self.drafter is not None else None
        if standby is not None and drafter is not None and self._is_better(standby, drafter, shown, silent=silent):
            return DrafterChange(standby.drafter, "silent" if silent else "better")
        return self._successor(of, standby, shown, now)

    def _is_better(self, standby: DrafterOffer[D], drafter: DrafterOffer[D], shown: int, *, silent: bool) -> bool:
        """Whether the standby is to draft, by this look and the one before."""
        able = shown >= SHOWN and standby.rate is not None and not standby.barred
        offered, present = standby.rate or 0.0, drafter.rate or 0.0
        self._better = self._better + 1 if able and offered > GAIN * present else 0
        stint = SHORT_STINT if offered > FAR * present else STINT
        return (able and silent) or (self._better >= 2 and self._rounds >= stint)

    def _successor(
        self, of: dict[D, DrafterOffer[D]], standby: DrafterOffer[D] | None, shown: int, now: float
    ) -> DrafterChange[D] | None:
        """Another standby, where there is none, or a drafter that was not measured for long or promises more."""
        free = [offer for offer in of.values() if offer.drafter not in (self.drafter, self.standby)]
        free = [offer for offer in free if offer.standbys < MOST_STANDBYS]
        if not free:
            return None
        unknown = [offer for offer in free if offer.rate is None]
        best = unknown[0] if unknown else max(free, key=lambda offer: offer.rate or 0.0)
        if standby is None:
            return DrafterChange(best.drafter)
        if shown < SHOWN or self._standby_rounds < STINT:
            # Without guesses for so long, although others could have its place, it has none.
            return DrafterChange(best.drafter) if not shown and self._standby_rounds >= 2 * PROOF else None
        oldest = min(free, key=lambda offer: offer.measured)
        if unknown or (best.rate or 0.0) > GAIN * (standby.rate or 0.0):
            return DrafterChange(best.drafter)
        return DrafterChange(oldest.drafter) if now - oldest.measured >= RECHECK else None


def drafting_rate(inputs: PolicyInputs) -> float:
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


SYNC_INTERVAL = 0.1  # seconds between two SYNCs, at least


class Standby:
    """One drafter beside the one that drafts, following `prefix`, which is the session's and grows.

    `known` ids it knows already, as it has drafted for this session. `told` is how many it has been told; `shown` how
    many of its guesses have been compared.
    """

    def __init__(self, prefix: Prefix, now: float, known: int = 0) -> None:
        self.told = known
        self.shown = 0
        self._prefix = prefix
        self._sent_at = now  # when it was told last
        self._judged = len(prefix)  # guesses before this count for nothing: judged, or of what it was told at first
        self._synced = float("-inf")

    def begin(self, now: float) -> ev.Told:
        return self._tell(self.told, now, sync=not self.told)

    def follow(self, now: float) -> ev.Told | None:
        """What to tell it now that the text has grown, if there is enough of it."""
        return self._tell(self.told, now) if len(self._prefix) - self.told >= TELL_EVERY else None

    def rest(self, now: float) -> ev.Told | None:
        """What it has not been told yet, as the text has ended; None for nothing."""
        return self._tell(self.told, now) if len(self._prefix) > self.told else None

    def nacked(self, base: int, crc: int, now: float) -> ev.Told | None:
        if now - self._synced < SYNC_INTERVAL:
            return None
        self._synced = now
        return self._tell(base if self._prefix.holds(base, crc) else 0, now, sync=True)

    def shadowed(self, event: ev.Shadowed, round_trip: float, now: float) -> tuple[tuple[bool, ...], float | None]:
        """Compare its guesses with the text; returns of each whether it was right, and the seconds from one to the
        next. Those of ids that were compared before, or that do not fit, are left out.

        The seconds are known where they end with what it was told last: it has read some ids and guessed these since.
        The first guesses tell none, as it has read all of the text before them.
        """
        if not self._prefix.holds(event.base, event.crc):
            return (), None
        new = max(self._judged - event.base, 0)
        end = event.base + len(event.ids)
        truth = self._prefix[event.base + new : end]
        right = tuple(guess == true for guess, true in zip(event.ids[new:], truth, strict=False))
        if not right:
            return (), None
        timed = self.shown > 0 and end == self.told
        self._judged = event.base + new + len(right)
        self.shown += len(right)
        seconds = max(now - self._sent_at - round_trip, 0.0) / (len(right) + 1)
        return right, seconds if timed else None

    def _tell(self, base: int, now: float, *, sync: bool = False) -> ev.Told:
        self.told, self._sent_at = len(self._prefix), now
        return ev.Told(base, self._prefix.crc_at(base), tuple(self._prefix[base : self.told]), 0, sync)
