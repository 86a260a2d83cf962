"""Which of several drafters drafts for which session: the one that promises the most tokens per second.

A promise follows from what was measured of a drafter: acceptance, seconds per draft, distance; nothing that it says of
itself. A drafter that serves nobody is measured by a trial: it gets a session for some rounds. One that loses a trial,
or breaks its promise, is left alone, for longer each time.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance
from specmesh.core.draft_length.policy import PolicyInputs
from specmesh.core.session import SessionContext
from specmesh.core.statistics import milliseconds

LOOK_ROUNDS, LOOK_SECONDS = 8, 0.25  # between two looks at the drafters of a session, at least
CANDIDATES = 4  # most drafters that a look compares with the present one: each takes some 50 microseconds
GAIN = 1.05  # times the present rate that another must promise, at two looks in a row: a change costs a restart
ALIKE = 1.05  # times: rates this near count as equal, and the drafter with fewer sessions is taken
HOPE = 1.02  # times the target's own rate that an unknown drafter counts for
# rounds before another may take over: one that promises more, or is to be tried; and one that promises `FAR` times more
STINT, SHORT_STINT = 32, 12
FAR = 1.5
# the same on trial, with `TRIAL_ROUNDS` from one look to the next; and seconds until its first draft
TRIAL_STINT, TRIAL_ROUNDS, TRIAL_SECONDS = 12, 4, 1.0
PROOF = 64  # rounds after which a drafter has kept its promise
PAUSE, LONGEST_PAUSE = 30.0, 3600.0  # seconds until a drafter that did not keep it is taken again; doubled each time
CERTAIN = 0.999  # no chain of drafts stands more surely than this
DRAFTER_MEMORY = 128.0  # rounds after which what was seen of a drafter counts half
SESSION_MEMORY = 16.0  # the same for what one session saw of it: texts change


class RemoteDrafter:
    """A drafter attached to the verifier, and what was measured of it. acceptance: starts from what all drafts were
    worth, `shared`. stuck: it drafts for nobody until it gets on again."""

    def __init__(self, identity: vev.DrafterId, n_ctx: int, shared: RollingAcceptance | None = None) -> None:
        self.id, self.n_ctx, self.stuck = identity, n_ctx, False
        self.acceptance = RollingAcceptance(memory=DRAFTER_MEMORY, parent=shared)
        self.arrivals = Arrivals()
        self.rate: float | None = None  # tokens per second that it promised when it was last looked at
        self.measured = self._broke = float("-inf")  # when it last drafted; when it last broke a promise
        self._pause = PAUSE

    def due(self, now: float) -> bool:
        """Whether it may be tried."""
        return now - self.measured >= self._pause

    def avoided(self, now: float) -> bool:
        return now - self._broke < self._pause

    def kept(self) -> None:
        self._pause = PAUSE

    def failed(self, now: float, *, promised: bool) -> None:
        """Note that a session has tried it in vain, or was promised more by it than it got."""
        self._pause, self.measured = min(2 * self._pause, LONGEST_PAUSE), now
        if promised:
            self._broke = now

    def report(self, sessions: int) -> dict[str, object]:
        """Return what was measured of it, and how many sessions it drafts for."""
        return {
            "draft_interval_ms": milliseconds(self.arrivals.interval_at(self.arrivals.load)),
            "acceptance": round(self.acceptance.pooled(), 4) if self.acceptance.known else None,
            "promised_tokens_per_second": None if self.rate is None else round(self.rate, 2),
            "sessions": sessions,
        }


@dataclass(frozen=True, slots=True)
class DrafterOffer:
    """What a drafter promises to a session, None while it is unknown; sessions: others that it drafts for."""

    drafter: RemoteDrafter
    rate: float | None
    sessions: int


class DrafterPool:
    """Assigns `drafters`, the oldest first, to `sessions`; a session of a drafter's own client always has that drafter.

    tell: takes effects; carry_out: those of a session.
    """

    def __init__(
        self,
        sessions: Mapping[int, SessionContext],
        tell: Callable[[vev.Effect], None],
        carry_out: Callable[[SessionContext, list[ev.VerifierEffect]], None],
    ) -> None:
        self.drafters: dict[vev.DrafterId, RemoteDrafter] = {}
        self._sessions, self._tell, self._carry_out = sessions, tell, carry_out
        self._turn = 0

    # --- drafters come and go

    def join(self, drafter: RemoteDrafter, now: float) -> None:
        self.drafters[drafter.id] = drafter
        self.find_all(now)

    def gone(self, identity: vev.DrafterId) -> None:
        self.drafters.pop(identity, None)
        for live in self._sessions.values():
            live.acceptance.pop(identity, None)
            if live.drafter == identity:
                self.detach(live)

    def turned(self, identity: vev.DrafterId, now: float, *, stuck: bool) -> None:
        """Note that a drafter is stuck, and take others' sessions from it; or that it gets on again."""
        drafter = self.drafters.get(identity)
        if drafter is None:
            return
        drafter.stuck = stuck
        for live in self._sessions.values():
            if stuck and live.drafter == identity and live.owner is None:
                self.release(live, identity)
                self.detach(live)
        self.find_all(now)

    def round_trip(self, identity: vev.DrafterId, seconds: float) -> None:
        """Note how long a PING and its answer took."""
        if identity in self.drafters:
            self.drafters[identity].arrivals.record_round_trip(seconds)

    # --- a session gets a drafter, or loses it

    def find_all(self, now: float, why: vev.AttachReason | None = None) -> None:
        if self.drafters:
            for live in list(self._sessions.values()):
                if live.drafter is None and live.owner is None and live.machine.may_draft:
                    self.find(live, now, why)

    def find(self, live: SessionContext, now: float, why: vev.AttachReason | None = None) -> None:
        """Give a session without a drafter the one that promises the most, if there is any."""
        offers = [self._offer(live, drafter) for drafter in self._fitting(live)]
        free = [offer for offer in offers if not offer.drafter.avoided(now)] or offers
        if free:
            self.attach(live, self._best(live, free).id, now, why)

    def _best(self, live: SessionContext, offers: Sequence[DrafterOffer]) -> RemoteDrafter:
        alone = live.machine.pacing.alone
        unknown = HOPE / alone if alone > 0 else 0.0
        rates = [unknown if offer.rate is None else offer.rate for offer in offers]
        alike = [offer for offer, rate in zip(offers, rates, strict=True) if rate * ALIKE >= max(rates)]
        return min(alike, key=lambda offer: offer.sessions).drafter

    def attach(
        self, live: SessionContext, identity: vev.DrafterId, now: float, why: vev.AttachReason | None = None
    ) -> None:
        """Let a drafter draft for a session. The one before must have been told that it does no more."""
        drafter = self.drafters.get(identity)
        if drafter is None:
            return  # it has just gone
        machine, why = live.machine, why or ("first" if live.reason is None else "alone")
        if identity != live.owner:  # that one has just got OPENED
            self._tell(vev.ToDrafter(identity, live.id, vev.Announced(machine.n_prompt, machine.params)))
        live.drafter, live.reason, live.since, live.rounds = identity, why, now, 0
        live.rival, live.looked = None, (0, now)
        if identity not in live.acceptance:
            live.acceptance[identity] = RollingAcceptance(memory=SESSION_MEMORY, parent=drafter.acceptance)
        self._tell(vev.Assigned(live.id, identity, why))
        self._carry_out(live, machine.attach(drafter.arrivals, live.acceptance[identity]))
        self._weigh()
        self.reconsider(live, now)  # by what other sessions have shown, before the first step

    def detach(self, live: SessionContext) -> None:
        live.drafter = None
        live.machine.detach()
        self._weigh()

    def release(self, live: SessionContext, identity: vev.DrafterId) -> None:
        self._tell(vev.ToDrafter(identity, live.id, vev.Over("moved", len(live.machine.prefix), {})))

    def reconsider(self, live: SessionContext, now: float) -> None:
        """Have the policy of a session solved where what it comes of has moved."""
        inputs = live.machine.unsolved(now)
        if inputs is not None:
            self._tell(vev.Solve(live.id, inputs, live.machine.pacing.policy))

    # --- another drafter for a session

    def stepped(self, live: SessionContext, now: float) -> None:
        """Count a round of a session; now and then compare its drafter with others."""
        if live.machine.drafting != live.asked:
            self._weigh()
        drafter = self.drafters.get(live.drafter) if live.drafter is not None else None
        if drafter is None or live.owner is not None or live.machine.finished is not None:
            return
        if live.machine.drafting:
            drafter.measured = now
        live.rounds += 1
        if live.rounds == PROOF:
            drafter.kept()
        rounds, time = live.looked
        if live.reason == "trial" and live.rounds <= TRIAL_STINT:
            due = live.rounds >= rounds + TRIAL_ROUNDS
        else:
            due = live.rounds >= rounds + LOOK_ROUNDS and now >= time + LOOK_SECONDS
        if due and len(self.drafters) > 1:
            live.looked = live.rounds, now
            self._look(live, drafter, now)

    def _look(self, live: SessionContext, present: RemoteDrafter, now: float) -> None:
        """Move a session to another drafter where the present one says nothing, or another promises more for certain;
        or for a trial."""
        offers = [self._offer(live, drafter) for drafter in self._candidates(live) if not drafter.avoided(now)]
        if not offers:
            return
        trial = live.reason == "trial"
        unheard = trial and present.arrivals.interval is None
        if live.machine.pacing.estimate.silent(now) or (unheard and now - live.since > TRIAL_SECONDS):
            self._move(live, present, self._best(live, offers), "silent", now)
            return
        if unheard:
            return
        best = max(offers, key=lambda offer: offer.rate or 0.0)
        before, promised, rate = live.rival, best.rate or 0.0, self._offer(live, present).rate or 0.0
        live.rival = best.drafter.id if promised > GAIN * rate else None
        stint, short = (TRIAL_STINT, TRIAL_ROUNDS) if trial else (STINT, SHORT_STINT)
        if live.rounds >= short and promised > FAR * rate:
            self._move(live, present, best.drafter, "better", now)
        elif live.rounds < stint:
            return
        elif live.rival is not None:
            if trial or live.rival == before:
                self._move(live, present, best.drafter, "better", now)
        elif untried := [offer.drafter for offer in offers if not offer.sessions and offer.drafter.due(now)]:
            self._move(live, present, min(untried, key=lambda drafter: drafter.measured), "trial", now)

    def _move(
        self, live: SessionContext, present: RemoteDrafter, chosen: RemoteDrafter, why: vev.AttachReason, now: float
    ) -> None:
        soon = live.rounds < PROOF and live.reason in ("better", "silent", "trial")
        if why == "silent" or (why == "better" and soon):
            present.failed(now, promised=why == "silent" or live.reason != "trial")
        self.release(live, present.id)
        self.attach(live, chosen.id, now, why)

    def finished(self) -> None:
        if self.drafters:
            self._weigh()

    # --- what drafters promise

    def _fitting(self, live: SessionContext) -> list[RemoteDrafter]:
        length = len(live.machine.prefix)
        return [one for one in self.drafters.values() if one.n_ctx > length and not one.stuck]

    def _candidates(self, live: SessionContext) -> list[RemoteDrafter]:
        """Return other drafters that can hold a session: its rival, and of the others some in turn."""
        others = [one for one in self._fitting(live) if one.id not in (live.drafter, live.rival)]
        if len(others) > CANDIDATES:
            self._turn = (self._turn + CANDIDATES) % len(others)
            others = (others[self._turn :] + others[: self._turn])[:CANDIDATES]
        rival = self.drafters.get(live.rival) if live.rival is not None else None
        return others if rival is None else [rival, *others]

    def _offer(self, live: SessionContext, drafter: RemoteDrafter) -> DrafterOffer:
        others = [one for one in self._sessions.values() if one is not live and one.drafter == drafter.id]
        drafter.rate = self._rate(live, drafter, 1 + sum(other.asked for other in others))
        return DrafterOffer(drafter, drafter.rate, len(others))

    def _rate(self, live: SessionContext, drafter: RemoteDrafter, load: int) -> float | None:
        """Return expected tokens per second with a drafter of `load` sessions; None while unknown."""
        pacing, arrivals = live.machine.pacing, drafter.arrivals
        if pacing.alone <= 0:
            return None
        if live.drafter == drafter.id and (pacing.off or drafter.n_ctx <= len(live.machine.prefix)):
            return 1 / pacing.alone
        rates = live.acceptance.get(drafter.id, drafter.acceptance).rates()
        interval = arrivals.interval_at(load)
        inputs = pacing.inputs_with(rates, interval, arrivals.restart, arrivals.round_trip)
        return None if inputs is None else drafting_rate(inputs)

    def _weigh(self) -> None:
        """Set each drafter's load, which its timing depends on."""
        for live in self._sessions.values():
            live.asked = live.machine.drafting
        loads = Counter(live.drafter for live in self._sessions.values() if live.asked)
        for drafter in self.drafters.values():
            drafter.arrivals.share(loads[drafter.id])

    def reports(self) -> dict[vev.DrafterId, dict[str, object]]:
        sessions = Counter(live.drafter for live in self._sessions.values())
        return {drafter.id: drafter.report(sessions[drafter.id]) for drafter in self.drafters.values()}


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
