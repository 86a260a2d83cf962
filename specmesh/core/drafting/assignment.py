"""Which drafter serves which session, and which stands by, as the drafter pool decides."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.estimates import Arrivals
from specmesh.core.drafting.drafter_pool import (
    AttachReason,
    DrafterChange,
    DrafterOffer,
    DrafterRecord,
    Standby,
    choose_drafter,
    drafting_rate,
)
from specmesh.core.session_context import SessionContext
from specmesh.core.statistics import milliseconds

CANDIDATES = 4  # most drafters that a look at a session compares with its own two: each takes some 50 microseconds


@dataclass(slots=True)
class RemoteDrafter:
    """A drafter attached to the verifier. stuck: it drafts for nobody until it gets on again."""

    id: vev.DrafterId
    n_ctx: int
    record: DrafterRecord = field(default_factory=DrafterRecord)
    stuck: bool = False

    @property
    def arrivals(self) -> Arrivals:
        return self.record.arrivals

    def report(self, sessions: int, standbys: int) -> dict[str, object]:
        """Return what was measured of it, and how many sessions it drafts and stands by for."""
        record = self.record
        return {
            "draft_interval_ms": milliseconds(record.interval_at(self.arrivals.load)),
            "acceptance": round(record.acceptance.pooled(), 4) if record.acceptance.known else None,
            "promised_tokens_per_second": None if record.rate is None else round(record.rate, 2),
            "sessions": sessions,
            "standbys": standbys,
        }


class DrafterAssignment:
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

    def find_all(self, now: float, why: AttachReason | None = None) -> None:
        if self.drafters:
            for live in list(self._sessions.values()):
                if live.drafter is None and live.owner is None and live.machine.may_draft:
                    self.find(live, now, why)

    def find(self, live: SessionContext, now: float, why: AttachReason | None = None) -> None:
        """Assign the standby or the fastest drafter, if there is any."""
        alone = live.machine.pacing.alone
        chosen = choose_drafter(self._offers(live, now), 1 / alone if alone > 0 else 0.0, live.casting.standby)
        if chosen is not None:
            self.attach(live, chosen, why or live.casting.why, now)

    def attach(self, live: SessionContext, identity: vev.DrafterId, why: AttachReason, now: float) -> None:
        """Let a drafter draft for a session; the one before knows that it does not, or will stand by."""
        drafter = self.drafters.get(identity)
        if drafter is None:
            return  # it has just gone
        casting, known = live.casting, 0
        if casting.standby == identity and live.standby is not None:
            known, live.standby = live.standby.told, None
        if identity == live.owner:
            known = 0  # it has just got OPENED
        elif not known:
            self._announce(live, identity)
        live.drafter = identity
        acceptance = casting.took_over(identity, drafter.record, promised=why in ("better", "silent"))
        self._tell(vev.Assigned(live.id, identity, why))
        self._carry_out(live, live.machine.attach(drafter.arrivals, acceptance, known=known))
        self._weigh()
        self.reconsider(live, now)  # by what other sessions have shown, before the first step

    def reconsider(self, live: SessionContext, now: float) -> None:
        """Have the policy of a session solved where what it comes of has moved."""
        inputs = live.machine.unsolved(now)
        if inputs is not None:
            self._tell(vev.Solve(live.id, inputs, live.machine.pacing.policy))

    def detach(self, live: SessionContext, now: float) -> None:
        live.drafter = None
        live.casting.drafter = None
        live.machine.handle(ev.Detached(), now)
        self._weigh()

    def join(self, drafter: RemoteDrafter, now: float) -> None:
        self.drafters[drafter.id] = drafter
        self.find_all(now)

    def round_trip(self, identity: vev.DrafterId, seconds: float) -> None:
        """Note how long a PING and its answer took."""
        if identity in self.drafters:
            self.drafters[identity].arrivals.record_round_trip(seconds)

    def turned(self, identity: vev.DrafterId, now: float, *, stuck: bool) -> None:
        """Note that a drafter is stuck, or gets on again."""
        if identity in self.drafters:
            self.drafters[identity].stuck = stuck
            if stuck:
                self._go_round(identity, now)
            self.find_all(now)

    def _go_round(self, identity: vev.DrafterId, now: float) -> None:
        """Take the sessions from a stuck drafter, but for its own clients'."""
        for live in self._sessions.values():
            if live.owner is not None:
                continue
            if live.drafter == identity:
                self.release(live, identity)
                self.detach(live, now)
            if live.casting.standby == identity:
                self.dismiss(live)

    def gone(self, identity: vev.DrafterId, now: float) -> None:
        self.drafters.pop(identity, None)
        for live in self._sessions.values():
            if live.drafter == identity:
                self.detach(live, now)
            if live.casting.standby == identity:
                self._nobody_stands_by(live)
            live.casting.forget(identity)

    def release(self, live: SessionContext, identity: vev.DrafterId) -> None:
        self._tell(vev.ToDrafter(identity, live.id, vev.Over("moved", len(live.machine.prefix), {})))

    def dismiss(self, live: SessionContext, heir: vev.DrafterId | None = None) -> None:
        identity = live.casting.standby
        if identity is not None and identity != heir:
            self.release(live, identity)
        self._nobody_stands_by(live)

    def _nobody_stands_by(self, live: SessionContext) -> None:
        live.standby = None
        live.casting.stands_by(None)

    def finished(self, live: SessionContext, reason: str, now: float) -> None:
        identity = live.casting.standby
        if identity is not None and live.standby is not None:
            self._say(live, identity, live.standby.rest(now))
            self._tell(vev.ToDrafter(identity, live.id, vev.Over(reason, len(live.machine.prefix), {})))
            self._nobody_stands_by(live)
        if self.drafters:
            self._weigh()

    def stepped(self, live: SessionContext, now: float) -> None:
        """Let the standby of a session follow it; now and then compare its drafters."""
        if live.machine.drafting != live.asked:
            self._weigh()
        if live.drafter is None or live.owner is not None or live.machine.finished is not None:
            return
        identity = live.casting.standby
        if identity is not None and live.standby is not None:
            self._say(live, identity, live.standby.follow(now))
        drafter = self.drafters.get(live.drafter)
        if drafter is None:
            return
        if live.machine.drafting:
            drafter.record.measured = now
        if live.casting.due(now) and len(self.drafters) > 1:
            silent = live.machine.pacing.estimate.silent(now)
            shown = live.standby.shown if live.standby is not None else 0
            change = live.casting.look(self._offers(live, now, CANDIDATES), shown, now, silent=silent)
            if change is not None:
                self._change(live, change, now)

    def heard(self, live: SessionContext, identity: vev.DrafterId, event: ev.VerifierEvent, now: float) -> None:
        """Take in what the standby of a session says."""
        standby, drafter = live.standby, self.drafters.get(identity)
        if standby is None or drafter is None:
            return
        match event:
            case ev.Shadowed():
                if not drafter.record.barred(now):
                    right, interval = standby.shadowed(event, drafter.arrivals.round_trip, now)
                    live.casting.guessed(right)
                    drafter.record.shadowed(interval, now)
            case ev.Nacked(base, crc):
                self._say(live, identity, standby.nacked(base, crc, now))
            case _:
                pass  # drafts that were under way when it was relieved

    def _change(self, live: SessionContext, change: DrafterChange[vev.DrafterId], now: float) -> None:
        if change.why is None:
            self.dismiss(live)
            self._announce(live, change.drafter)
            self._stand_by(live, change.drafter, 0, now)
            return
        relieved, sent = live.drafter, live.machine.truth.told
        live.casting.broke(now)
        self.attach(live, change.drafter, change.why, now)
        if relieved is not None:
            self._stand_by(live, relieved, sent, now)

    def _stand_by(self, live: SessionContext, identity: vev.DrafterId, known: int, now: float) -> None:
        drafter = self.drafters.get(identity)
        if drafter is None:
            return
        live.standby = Standby(live.machine.prefix, now, known)
        live.casting.stands_by(identity, drafter.record)
        self._say(live, identity, live.standby.begin(now))

    def _announce(self, live: SessionContext, identity: vev.DrafterId) -> None:
        machine = live.machine
        self._tell(vev.ToDrafter(identity, live.id, vev.Announced(machine.n_prompt, machine.params)))

    def _say(self, live: SessionContext, identity: vev.DrafterId, effect: ev.Told | None) -> None:
        if effect is not None:
            self._tell(vev.ToDrafter(identity, live.id, effect))

    def _offers(self, live: SessionContext, now: float, most: int | None = None) -> list[DrafterOffer[vev.DrafterId]]:
        """Return the offers of drafters that can hold this session, its own always, of the others `most` in turn."""
        own = {live.drafter, live.casting.standby}
        length = len(live.machine.prefix)
        fitting = [name for name, one in self.drafters.items() if one.n_ctx > length and not one.stuck]
        if most is not None and len(fitting) > most + 2:
            self._turn = (self._turn + most) % len(fitting)
            turned = [one for one in fitting[self._turn :] + fitting[: self._turn] if one not in own]
            fitting = [one for one in fitting if one in own] + turned[:most]
        if live.drafter in self.drafters and live.drafter not in fitting:
            fitting.append(live.drafter)
        return [self._offer(live, self.drafters[identity], now) for identity in fitting]

    def _offer(self, live: SessionContext, drafter: RemoteDrafter, now: float) -> DrafterOffer[vev.DrafterId]:
        record, others = drafter.record, [other for other in self._sessions.values() if other is not live]
        drafting = [other for other in others if other.drafter == drafter.id]
        record.rate = rate = self._rate(live, drafter, 1 + sum(other.asked for other in drafting), now)
        standing = sum(other.casting.standby == drafter.id for other in others)
        return DrafterOffer(drafter.id, rate, len(drafting), standing, record.measured, record.barred(now))

    def _rate(self, live: SessionContext, drafter: RemoteDrafter, load: int, now: float) -> float | None:
        """Return expected tokens per second with a drafter of `load` sessions; None while unknown."""
        pacing, record = live.machine.pacing, drafter.record
        if pacing.alone <= 0:
            return None
        if live.drafter == drafter.id and (pacing.off or pacing.estimate.silent(now)):
            return 1 / pacing.alone
        if drafter.n_ctx <= len(live.machine.prefix):
            return 1 / pacing.alone
        rates = live.casting.rates(drafter.id, record)
        interval, arrivals = record.interval_at(load), record.arrivals
        inputs = pacing.inputs_with(rates, interval, arrivals.restart, arrivals.round_trip)
        return None if inputs is None else drafting_rate(inputs)

    def _weigh(self) -> None:
        """Set each drafter's load, which its timing depends on."""
        for live in self._sessions.values():
            live.asked = live.machine.drafting
        loads = Counter(live.drafter for live in self._sessions.values() if live.asked)
        for drafter in self.drafters.values():
            drafter.arrivals.share(loads[drafter.id])

    def counts(self) -> Iterator[tuple[RemoteDrafter, int, int]]:
        """Each drafter, and how many sessions it drafts and stands by for."""
        for drafter in self.drafters.values():
            drafting = sum(live.drafter == drafter.id for live in self._sessions.values())
            standing = sum(live.casting.standby == drafter.id for live in self._sessions.values())
            yield drafter, drafting, standing
