"""Which drafter serves which session, and which stands by, as the drafter pool decides; and the solving of policies."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from specmesh.core import events as ev
from specmesh.core.draft_length.policy import Policy, solve
from specmesh.core.drafting.drafter_pool import (
    AttachReason,
    DrafterChange,
    DrafterOffer,
    Standby,
    choose_drafter,
    drafting_rate,
)
from specmesh.daemons.link.peers import DrafterPeer
from specmesh.daemons.link.router import Router
from specmesh.daemons.verifier.drafters import Drafters
from specmesh.daemons.verifier.remote_client import opened
from specmesh.daemons.verifier.session_context import SessionContext
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")

Effects = list[ev.VerifierEffect]

CANDIDATES = 4  # most drafters that a look at a session compares with its own two: each takes some 50 microseconds


@dataclass(frozen=True, slots=True)
class Solved:
    session: int
    policy: Policy


class PolicySolver:
    """Solves policies on a thread of its own: it takes milliseconds. Each goes to `deliver`, on that thread."""

    def __init__(self, deliver: Callable[[Solved], None]) -> None:
        self._deliver = deliver
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="policy")

    def reconsider(self, live: SessionContext, now: float) -> None:
        inputs = live.machine.unsolved(now)
        if inputs is not None:
            future = self._pool.submit(solve, inputs, live.machine.pacing.policy)
            future.add_done_callback(lambda solved: self._solved(live.id, solved))

    def _solved(self, session: int, solved: "Future[Policy]") -> None:
        if not solved.cancelled():
            self._deliver(Solved(session, solved.result()))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class DrafterAssignment:
    """Assigns drafters to `sessions`; a session of a drafter's own client always has that drafter."""

    def __init__(
        self,
        sessions: Mapping[int, SessionContext],
        router: Router,
        drafters: Drafters,
        policies: PolicySolver,
        changes: dict[AttachReason, int],
        carry_out: Callable[[SessionContext, Effects], None],
    ) -> None:
        self._sessions, self._router, self._drafters = sessions, router, drafters
        self._policies, self._carry_out = policies, carry_out
        self._changes = changes
        self._turn = 0

    def find_all(self, now: float, why: AttachReason | None = None) -> None:
        for live in list(self._sessions.values()):
            if live.drafter is None and live.owner is None and live.machine.may_draft:
                self.find(live, now, why)

    def find(self, live: SessionContext, now: float, why: AttachReason | None = None) -> None:
        """Assign the standby or the fastest drafter, if there is any."""
        alone = live.machine.pacing.alone
        chosen = choose_drafter(self._offers(live, now), 1 / alone if alone > 0 else 0.0, live.casting.standby)
        if chosen is not None:
            self.attach(live, chosen, why or live.casting.why, now)

    def attach(self, live: SessionContext, identity: bytes, why: AttachReason, now: float) -> None:
        """Let a drafter draft for a session; the one before knows that it does not, or will stand by."""
        peer = self._drafters.get(identity)
        if peer is None:
            return  # it has just gone
        casting, known = live.casting, 0
        if casting.standby == identity and live.standby is not None:
            known, live.standby = live.standby.told, None
        if identity == live.owner:
            known = 0  # it has just got OPENED
        elif not known:
            self._announce(live, identity)
        live.drafter = identity
        proven = why in ("better", "silent")
        acceptance = casting.took_over(identity, peer.record, promised=proven)
        self._carry_out(live, live.machine.attach(peer.arrivals, acceptance, known=known, proven=proven))
        self._weigh()
        self._policies.reconsider(live, now)  # by what other sessions have shown, before the first step
        self._changes[why] += 1

    def detach(self, live: SessionContext, now: float) -> None:
        live.drafter = None
        live.casting.drafter = None
        live.machine.handle(ev.Detached(), now)
        self._weigh()

    def go_round(self, identity: bytes, now: float) -> None:
        """Take the sessions from a stuck drafter, but for its own clients'."""
        for live in self._sessions.values():
            if live.owner is not None:
                continue
            if live.drafter == identity:
                self.release(live, identity)
                self.detach(live, now)
            if live.casting.standby == identity:
                self.dismiss(live)

    def gone(self, identity: bytes, now: float) -> None:
        for live in list(self._sessions.values()):
            if live.drafter == identity:
                self.detach(live, now)
            if live.casting.standby == identity:
                self._nobody_stands_by(live)
            live.casting.forget(identity)

    def release(self, live: SessionContext, identity: bytes) -> None:
        live.bytes_sent += self._router.send(identity, m.Done(live.id, "moved", len(live.machine.prefix)))

    def dismiss(self, live: SessionContext, heir: bytes | None = None) -> None:
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
            self._send(live, identity, live.standby.rest(now))
            live.bytes_sent += self._router.send(identity, m.Done(live.id, reason, len(live.machine.prefix)))
            self._nobody_stands_by(live)
        self._weigh()

    def stepped(self, live: SessionContext, now: float) -> None:
        """Let the standby of a session follow it; now and then compare its drafters."""
        if live.machine.drafting != live.asked:
            self._weigh()
        if live.machine.finished is not None or live.owner is not None:
            return
        identity = live.casting.standby
        if identity is not None and live.standby is not None:
            self._send(live, identity, live.standby.follow(now))
        peer = self._drafters.get(live.drafter)
        if peer is None:
            return
        if live.machine.drafting:
            peer.record.measured = now
        if live.casting.due(now) and len(self._drafters) > 1:
            silent = live.machine.pacing.silent(now)
            shown = live.standby.shown if live.standby is not None else 0
            change = live.casting.look(self._offers(live, now, CANDIDATES), shown, now, silent=silent)
            if change is not None:
                self._change(live, change, now)

    def on_frame(self, live: SessionContext, peer: DrafterPeer, event: ev.VerifierEvent, size: int, now: float) -> None:
        standby = live.standby
        if standby is None:
            return
        live.bytes_received += size
        match event:
            case ev.Shadowed():
                if not peer.record.barred(now):
                    right, interval = standby.shadowed(event, peer.arrivals.round_trip, now)
                    live.casting.guessed(right)
                    peer.record.shadowed(interval, now)
            case ev.Nacked(base, crc):
                self._send(live, peer.identity, standby.nacked(base, crc, now))
            case _:
                pass  # drafts that were under way when it was relieved

    def _change(self, live: SessionContext, change: DrafterChange[bytes], now: float) -> None:
        if change.why is None:
            self.dismiss(live)
            self._announce(live, change.drafter)
            self._stand_by(live, change.drafter, 0, now)
            return
        relieved, sent = live.drafter, live.machine.truth.told
        live.casting.broke(now)
        self.attach(live, change.drafter, change.why, now)
        log.info("drafter_changed", session=live.id, drafter=self._drafters.name(live.drafter), why=change.why)
        if relieved is not None:
            self._stand_by(live, relieved, sent, now)

    def _stand_by(self, live: SessionContext, identity: bytes, known: int, now: float) -> None:
        peer = self._drafters.get(identity)
        if peer is None:
            return
        live.standby = Standby(live.machine.prefix, now, known)
        live.casting.stands_by(identity, peer.record)
        self._send(live, identity, live.standby.begin(now))

    def _announce(self, live: SessionContext, identity: bytes) -> None:
        machine = live.machine
        live.bytes_sent += self._router.send(identity, opened(live.id, 0, machine.n_prompt, machine.params))

    def _send(self, live: SessionContext, identity: bytes, effect: ev.Told | None) -> None:
        for frame in live.frames(effect) if effect is not None else ():
            live.bytes_sent += self._router.send(identity, frame)

    def _offers(self, live: SessionContext, now: float, most: int | None = None) -> list[DrafterOffer[bytes]]:
        """Return the offers of drafters that can hold this session, its own always, of the others `most` in turn."""
        own = {live.drafter, live.casting.standby}
        fitting = self._drafters.holding(len(live.machine.prefix))
        if most is not None and len(fitting) > most + 2:
            self._turn = (self._turn + most) % len(fitting)
            turned = [one for one in fitting[self._turn :] + fitting[: self._turn] if one not in own]
            fitting = [one for one in fitting if one in own] + turned[:most]
        if live.drafter is not None and live.drafter not in fitting:
            fitting.append(live.drafter)
        others = [other for other in self._sessions.values() if other is not live]
        drafting = Counter(other.drafter for other in others)
        asked = Counter(other.drafter for other in others if other.asked)
        standing = Counter(other.casting.standby for other in others)
        offers = []
        for identity in fitting:
            peer = self._drafters.get(identity)
            if peer is None:
                continue
            rate = self._rate(live, peer, asked[identity] + 1, now)
            peer.record.rate = rate
            barred = peer.record.barred(now)
            loads = drafting[identity], standing[identity]
            offers.append(DrafterOffer(identity, rate, *loads, peer.record.measured, barred))
        return offers

    def _rate(self, live: SessionContext, peer: DrafterPeer, load: int, now: float) -> float | None:
        """Return expected tokens per second with a drafter of `load` sessions; None while unknown."""
        pacing, record = live.machine.pacing, peer.record
        if pacing.alone <= 0:
            return None
        if live.drafter == peer.identity and (pacing.off or pacing.silent(now)):
            return 1 / pacing.alone
        if peer.hello.n_ctx <= len(live.machine.prefix):
            return 1 / pacing.alone
        rates = live.casting.rates(peer.identity, record)
        interval, restart = record.interval_at(load), record.arrivals.restart_at(load)
        inputs = pacing.inputs_with(rates, interval, restart, record.arrivals.round_trip)
        return None if inputs is None else drafting_rate(inputs)

    def _weigh(self) -> None:
        """Set each drafter's load, which its timing depends on."""
        for live in self._sessions.values():
            live.asked = live.machine.drafting
        loads = Counter(live.drafter for live in self._sessions.values() if live.asked)
        for peer in self._drafters:
            peer.arrivals.share(loads[peer.identity])
