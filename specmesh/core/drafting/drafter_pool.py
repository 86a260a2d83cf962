"""Which of several drafters a session gets, which one stands by for it, and when they change places.

The **standby** of a session follows it without being asked for drafts. So a drafter is measured before anything depends
on it, takes over without reading the text first, and is there when the other one dies. What counts is the rate of
tokens that a drafter promises by its measured acceptance, speed and distance; nothing that it says of itself.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Generic, Literal, TypeVar, get_args

from specmesh.core import events as ev
from specmesh.core.draft_buffer import NACK_INTERVAL, TELL_EVERY
from specmesh.core.draft_length.estimates import LEAST_INTERVAL, Arrivals, RollingAcceptance
from specmesh.core.draft_length.policy import PolicyInputs
from specmesh.core.prefix import Prefix

D = TypeVar("D", bound=Hashable)
# why a session got its drafter: its first; there was none for a while; the one before has gone, or says nothing; or
# this one promises more
AttachReason = Literal["first", "alone", "gone", "silent", "better"]
ATTACH_REASONS: tuple[AttachReason, ...] = get_args(AttachReason)

LOOK_ROUNDS, LOOK_SECONDS = 8, 0.25  # between two looks at a session's drafters, at least
GAIN = 1.05  # times the present rate that another must promise, at two looks in a row: a change costs a restart
ALIKE = 1.05  # times: rates this near count as equal, and the drafter with fewer sessions is taken
HOPE = 1.02  # times the target's own rate that an unknown drafter counts for
STINT, SHORT_STINT = 32, 12  # rounds before one that promises more takes over; or `FAR` times as much
FAR = 1.5
PROOF = 64  # rounds after which a drafter has kept its promise; left before, it broke it
SHOWN = 8  # guesses that a standby must have shown in this session
# seconds that one which broke its promise takes nobody's place; doubled each time
PENALTY, LONGEST_PENALTY = 30.0, 3600.0
CERTAIN = 0.999  # no chain of drafts stands more surely than this
RECHECK = 30.0  # seconds after which an unmeasured drafter becomes a standby
MOST_STANDBYS = 2  # most sessions that one drafter stands by for: each is a text to read
MEMORY = 32.0  # rounds after which what a session saw of one drafter counts half
DRAFTER_MEMORY = 128.0  # the same for what all sessions saw of it


class DrafterRecord:
    """What was measured of one drafter; `shared` is what all drafters' drafts were worth."""

    def __init__(self, shared: RollingAcceptance | None = None, now: float = 0.0) -> None:
        self.acceptance = RollingAcceptance(memory=DRAFTER_MEMORY, parent=shared)
        self.arrivals = Arrivals()
        self.measured = now
        self.rate: float | None = None  # what it promised when it was last looked at
        self._shadows: deque[float] = deque(maxlen=8)
        self._barred, self._penalty = float("-inf"), PENALTY

    def shadowed(self, interval: float | None, now: float) -> None:
        """Note guesses, and perhaps the seconds from one to the next."""
        self.measured = now
        if interval is not None:
            self._shadows.append(interval)
            self.arrivals.record_bound(interval, 1)

    def interval_at(self, load: int) -> float | None:
        """Seconds from one draft to the next with so many sessions; by its guesses before it has drafted."""
        known = self.arrivals.interval_at(load)
        if known is None and self._shadows:
            return max(median(self._shadows), LEAST_INTERVAL) * load  # sooner than the way takes: by chance, or a lie
        return known

    def barred(self, now: float) -> bool:
        return now < self._barred

    def broke(self, now: float) -> None:
        self._barred, self._penalty = now + self._penalty, min(2 * self._penalty, LONGEST_PENALTY)

    def kept(self) -> None:
        self._penalty = PENALTY


@dataclass(frozen=True, slots=True)
class DrafterOffer(Generic[D]):
    """A drafter that could draft for a session. rate: tokens per second that it promises, None while unknown. sessions,
    standbys: how many it drafts and stands by for. measured: when it last was. barred: it may take nobody's place."""

    drafter: D
    rate: float | None
    sessions: int = 0
    standbys: int = 0
    measured: float = 0.0
    barred: bool = False


@dataclass(frozen=True, slots=True)
class DrafterChange(Generic[D]):
    """The drafter that takes over for this reason; or that stands by, without one."""

    drafter: D
    why: AttachReason | None = None


def choose_drafter(offers: Sequence[DrafterOffer[D]], alone: float, standby: D | None = None) -> D | None:
    """Return the drafter for a session that has none: the standby, which has read the text, unless another promises
    much more. `alone` is the target's own rate."""
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
        """Note the new drafter, and whether it promised more than another; return where its rounds are recorded."""
        seen = self._see(drafter, record)
        seen.drafts = RollingAcceptance(memory=MEMORY, parent=seen.guesses)
        if self.standby == drafter:
            self.standby = None
        self.drafter, self._promised, self._begun = drafter, promised, True
        self._rounds, self._better, self._looked = 0, 0, (0, self._looked[1])
        return seen.drafts

    def stands_by(self, drafter: D | None, record: DrafterRecord | None = None) -> None:
        self.standby, self._standby_rounds, self._better = drafter, 0, 0
        if drafter is not None and record is not None:
            self._see(drafter, record)

    def forget(self, drafter: D) -> None:
        self._seen.pop(drafter, None)

    def guessed(self, right: Sequence[bool]) -> None:
        assert self.standby is not None, "a standby guesses"
        for one in right:
            self._seen[self.standby].guesses.record(1, int(one))

    def broke(self, now: float) -> None:
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
        """Conditional acceptance to expect of a drafter in this session: what was seen here, else elsewhere."""
        seen = self._seen.get(drafter)
        if seen is None:
            return record.acceptance.rates()
        return (seen.drafts if drafter == self.drafter else seen.guesses).rates()

    def due(self, now: float) -> bool:
        """Count a round; return whether it is time for `look`."""
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
        """What should change, if anything. `offers` are of all that could draft, the present one too; `shown`: guesses
        that the standby has shown; silent: the drafter was asked and says nothing."""
        of = {offer.drafter: offer for offer in offers}
        standby = of.get(self.standby) if self.standby is not None else None
        drafter = of.get(self.drafter) if self.drafter is not None else None
        if standby is not None and drafter is not None and self._is_better(standby, drafter, shown, silent=silent):
            return DrafterChange(standby.drafter, "silent" if silent else "better")
        return self._successor(of, standby, shown, now)

    def _is_better(self, standby: DrafterOffer[D], drafter: DrafterOffer[D], shown: int, *, silent: bool) -> bool:
        able = shown >= SHOWN and standby.rate is not None and not standby.barred
        offered, present = standby.rate or 0.0, drafter.rate or 0.0
        self._better = self._better + 1 if able and offered > GAIN * present else 0
        stint = SHORT_STINT if offered > FAR * present else STINT
        return (able and silent) or (self._better >= 2 and self._rounds >= stint)

    def _successor(
        self, of: dict[D, DrafterOffer[D]], standby: DrafterOffer[D] | None, shown: int, now: float
    ) -> DrafterChange[D] | None:
        """Another standby, where there is none, or a drafter not measured for long or promising more."""
        taken = (self.drafter, self.standby)
        free = [offer for offer in of.values() if offer.drafter not in taken and offer.standbys < MOST_STANDBYS]
        if not free:
            return None
        best = max(free, key=_promise)
        if standby is None:
            return DrafterChange(best.drafter)
        if shown < SHOWN or self._standby_rounds < STINT:
            # Without guesses for so long, although others could have its place, it has none.
            return DrafterChange(best.drafter) if not shown and self._standby_rounds >= 2 * PROOF else None
        if _promise(best) > GAIN * (standby.rate or 0.0):
            return DrafterChange(best.drafter)
        oldest = min(free, key=lambda offer: offer.measured)
        return DrafterChange(oldest.drafter) if now - oldest.measured >= RECHECK else None


def _promise(offer: DrafterOffer[D]) -> float:
    """Its rate; that of an unknown one is to be found out first."""
    return inf if offer.rate is None else offer.rate


def drafting_rate(inputs: PolicyInputs) -> float:
    """Expected tokens per second with such a drafter, at least the target's alone: a closed form, microseconds where
    solving the policy takes milliseconds. After a rejection, wait for drafts or step alone meanwhile; then step with so
    many each."""
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


class Standby:
    """A drafter that follows `prefix`, the session's, of which it knows the first `known` ids: measured by its shadows,
    ready to take over. Nothing of it is verified or waited for."""

    def __init__(self, prefix: Prefix, now: float, known: int = 0) -> None:
        self.told = known
        self.shown = 0  # guesses that were compared
        self._prefix = prefix
        self._sent_at = now  # when it was told last
        self._judged = len(prefix)  # guesses before this count for nothing: judged, or of what it was told at first
        self._synced = float("-inf")

    def begin(self, now: float) -> ev.Told:
        return self._tell(self.told, now, sync=not self.told)

    def follow(self, now: float) -> ev.Told | None:
        """What to tell it once enough ids are new."""
        return self._tell(self.told, now) if len(self._prefix) - self.told >= TELL_EVERY else None

    def rest(self, now: float) -> ev.Told | None:
        """What it has not been told when the text has ended."""
        return self._tell(self.told, now) if len(self._prefix) > self.told else None

    def nacked(self, base: int, crc: int, now: float) -> ev.Told | None:
        if now - self._synced < NACK_INTERVAL:
            return None
        self._synced = now
        return self._tell(base if self._prefix.holds(base, crc) else 0, now, sync=True)

    def shadowed(self, event: ev.Shadowed, round_trip: float, now: float) -> tuple[tuple[bool, ...], float | None]:
        """Compare its guesses with the text: whether each new one was right, and the seconds from one to the next,
        where they end with what it was told last and it had not to read the text before."""
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
