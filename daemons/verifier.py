"""The verifier's loop: frames, orders and finished steps in; frames, client events and new steps out.

It decodes frames, hands them to the sessions (specmesh.core) and carries their effects out. What to
accept, how long to wait and with whom to step is decided there.
"""

import itertools
import time
from collections.abc import Sequence
from typing import assert_never

import structlog
import zmq

from specmesh.core import events as ev
from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.admission import check_prompt
from specmesh.core.costs import StepCosts
from specmesh.core.pool import pick_drafter
from specmesh.core.probes import PROBES
from specmesh.core.report import session_report
from specmesh.core.verifier_session import MAX_DRAFTS, TargetLimits, VerifierSession
from specmesh.daemons.auth import Guard
from specmesh.daemons.decision_log import DecisionLog
from specmesh.daemons.decision_notes import DecisionNotes
from specmesh.daemons.drafters import Drafters
from specmesh.daemons.engine_thread import Decoded, DecodeFailed
from specmesh.daemons.live import Closing, Live
from specmesh.daemons.mailbox import Mailbox
from specmesh.daemons.peers import DrafterPeer
from specmesh.daemons.policy_solver import PolicySolver, Solved
from specmesh.daemons.prompts import Encoded, Opening, PromptLine
from specmesh.daemons.remote_client import RemoteClient, opened, requested
from specmesh.daemons.router import Router
from specmesh.daemons.stepper import Stepper
from specmesh.daemons.verifier_stats import VerifierStats
from specmesh.daemons.vocabulary_chunks import vocabulary_chunk
from specmesh.engines.base import VerifyEngine
from specmesh.errors import Busy, DaemonUnreachable, SpecmeshError
from specmesh.requests import Cancel, ClientOrder, Failed, Finished, Probe, Started, Submit, Tokens
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")

SNAPSHOT_INTERVAL = 0.1
"""Seconds between two snapshots of the statistics."""

FLUSH_INTERVAL = 0.005
"""Seconds between two tries to send what a drafter could not take."""

DRAIN = 10.0
"""Seconds that sessions get to finish after SIGTERM."""

ENCODE_PATIENCE = 1.0
"""Seconds that a prompt being encoded, which nobody waits for any more, may hold up the end."""

Order = ClientOrder | Encoded | Decoded | DecodeFailed | Solved


class VerifierLoop:
    """One verifier: its sockets, sessions and drafters. Everything runs on the thread that calls `run`."""

    def __init__(
        self,
        name: str,
        socket: "zmq.Socket[bytes]",
        engine: VerifyEngine,
        mailbox: Mailbox[Order],
        costs: StepCosts,
        decisions: DecisionLog | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._name, self._router, self._mailbox = name, Router(socket, guard), mailbox
        self._address = self._router.address
        self._vocabulary, self._info = engine.vocabulary, engine.info
        self._prompts = PromptLine(engine, mailbox.put, engine.info.n_seq)
        self._fingerprint = engine.vocabulary.fingerprint()
        self._probes: dict[str, object] = {text: engine.encode(text) for text in PROBES}
        self._notes = DecisionNotes(decisions)
        self._stepper = Stepper(engine, mailbox.put, costs, self._notes)
        most = MAX_DRAFTS if engine.info.can_trim else 0
        vocabulary = engine.vocabulary
        self._limits = TargetLimits(engine.info.n_ctx, len(vocabulary), vocabulary.end_ids, most, vocabulary.pieces)
        self._costs, self._acceptance = costs, RollingAcceptance()
        self._sessions: dict[int, Live] = {}
        self._closing = Closing()
        self._ids = itertools.count(time.monotonic_ns() & 0xFFFFFF)
        self._free = list(reversed(range(engine.info.n_seq)))
        self._policies = PolicySolver(mailbox.put)
        self._turns = 0
        self._next_snapshot = 0.0
        self._unpublished = True
        self._stopping: float | None = None
        self.stats = VerifierStats(time.monotonic())
        self._drafters = Drafters(self._router, self.stats.round_trips)

    # --- the loop

    def run(self) -> bool:
        """Serve until stopped and drained; whether the engine is idle then, and may be freed."""
        while not self._drained():
            self._router.inlet.wait(self._mailbox, self._timeout(time.monotonic()))
            self._turns += 1
            for order in self._mailbox.drain():
                self._order(order, time.monotonic())
            self._receive()
            self._tick(time.monotonic())
        for order in self._mailbox.drain():
            if isinstance(order, Submit):
                order.client.hear(Failed(_stopping()))
        self._drafters.bye()
        self._policies.close()
        encoded = self._prompts.close(ENCODE_PATIENCE)
        return self._stepper.close(DRAIN) and encoded

    @property
    def progress(self) -> int:
        """Changes while the loop turns and the engine gets on; for a watchdog, from any thread."""
        return -1 if self._stepper.overdue(time.monotonic()) or not self._router.guarded else self._turns

    def stop(self) -> None:
        """Take no new sessions and end when the live ones have; a signal handler may call this."""
        if self._stopping is None:
            self._stopping = time.monotonic()

    def _drained(self) -> bool:
        if self._stopping is None:
            return False
        for opening in self._prompts.withdraw(lambda _: True):
            opening.client.hear(Failed(_stopping()))
        if not self._sessions and not self._closing:
            return True
        if time.monotonic() - self._stopping < DRAIN:
            return False
        for live in list(self._sessions.values()):
            live.client.hear(Failed(DaemonUnreachable("the verifier is stopping: the text ends here")))
            self._carry_out(live, live.machine.handle(ev.Cancelled("shutdown"), time.monotonic()))
        return True

    def _timeout(self, now: float) -> float:
        """Seconds the loop may sleep, once the engine has what it can do."""
        due = self._drafters.next_ping()
        until = now + 1.0 if due is None else due
        until = min(until, self._closing.next_deadline() or until, self._next_snapshot if self._unpublished else until)
        if self._router.behind:
            until = min(until, now + FLUSH_INTERVAL)
        wake = self._stepper.feed(self._sessions, now)
        return max((until if wake is None else min(until, wake)) - now, 0.0)

    def _order(self, order: Order, now: float) -> None:
        match order:
            case Submit(request, client):
                self._open(Opening(request, client, None), now)
            case Encoded(opening, ids):
                if self._prompts.take(opening):
                    self._begin(opening, ids, now)
            case Cancel(client):
                self._prompts.withdraw(lambda opening: opening.client is client)
                for live in [live for live in self._sessions.values() if live.client is client]:
                    self._carry_out(live, live.machine.handle(ev.Cancelled("cancelled"), now))
            case Probe():
                self._drafters.probe(order, now, self._turns, self.stats.busy.share(now))
            case Decoded():
                self._decoded(order, now)
            case DecodeFailed(error):
                self._decode_failed(error, now)
            case Solved(session, policy):
                if session in self._sessions:
                    self._notes.solved(self._sessions[session], policy, now)
                    self._sessions[session].machine.adopt(policy)
            case _:
                assert_never(order)

    def _tick(self, now: float) -> None:
        self._router.flush()
        for identity in self._router.unreachable():
            self._peer_gone(identity, "unreachable")
        for identity in self._router.expelled():
            self._peer_gone(identity, "revoked")
        for identity in self._drafters.silent(now):
            self._peer_gone(identity, "silent")
        self._drafters.ping(now, self._turns, self.stats.busy.share(now))
        self._closing.expire(now)
        if not self._sessions:
            self.stats.throughput.idle()
            self._stepper.rest()
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_INTERVAL
            self._unpublished = bool(self._sessions)
            self.stats.publish(self.snapshot(now))

    # --- steps

    def _decoded(self, result: Decoded, now: float) -> None:
        outcomes = self._stepper.finish(result, self._sessions, now)
        if all(live.machine.lead or not live.machine.drafting for live, _ in outcomes):
            self._stepper.feed(self._sessions, now)  # before anyone is told: nobody's answer is needed for it
        before = self.stats.totals.generated
        for live, effects in outcomes:
            self._carry_out(live, effects)
            self._policies.reconsider(live, now)
        self.stats.step(result.started, result.ended, self.stats.totals.generated - before)

    def _decode_failed(self, error: SpecmeshError, now: float) -> None:
        """The engine's sequences are in doubt: every session of the step ends, the others go on."""
        log.error("step_failed", error=str(error))
        for session in self._stepper.abandon():
            live = self._sessions.get(session)
            if live is not None:
                live.client.hear(Failed(error))
                self._carry_out(live, live.machine.handle(ev.Cancelled("error"), now))

    # --- sessions

    def _open(self, opening: Opening, now: float) -> None:
        """Begin a session, at once where the prompt is ids, else as soon as it is."""
        ids = opening.request.prompt_ids
        try:
            if self._stopping is not None:
                raise _stopping()
            if ids is None:
                self._prompts.add(opening)
        except SpecmeshError as error:
            opening.client.hear(Failed(error))
            return
        if ids is not None:
            self._begin(opening, ids, now)

    def _begin(self, opening: Opening, ids: Sequence[int] | SpecmeshError, now: float) -> None:
        request, client, owner = opening.request, opening.client, opening.owner
        try:
            live = self._new_session(opening, ids, now)
        except SpecmeshError as error:
            client.hear(Failed(error))
            return
        self._sessions[live.id] = live
        self._unpublished = True
        self.stats.begun(live.machine)
        client.hear(Started(live.id, live.machine.n_prompt))
        log.info(
            "session_opened",
            session=live.id,
            prompt_tokens=live.machine.n_prompt,
            **({"request": request.id} if owner is None else {"remote": True}),
        )
        if owner is not None:
            self._attach(live, owner)
        elif live.machine.may_draft:
            self._find_drafter(live)

    def _new_session(self, opening: Opening, ids: Sequence[int] | SpecmeshError, now: float) -> Live:
        if isinstance(ids, SpecmeshError):
            raise ids
        check_prompt(ids, self._limits)
        if not self._free:
            raise Busy(f"all {self._info.n_seq} sessions are taken: try again, or start with more --max-sessions")
        params, owner = opening.request.params, opening.owner
        machine = VerifierSession(ids, params, self._limits, self._costs, self._acceptance, now)
        machine.followed = owner is not None
        return Live(next(self._ids), self._free.pop(), machine, opening.client, owner)

    def _find_drafter(self, live: Live) -> None:
        length = len(live.machine.prefix)
        fitting = self._drafters.holding(length)
        chosen = pick_drafter(fitting, (other.drafter for other in self._sessions.values()))
        if chosen is not None:
            params = live.machine.params.sampling
            live.bytes_sent += self._router.send(chosen, opened(live.id, 0, live.machine.n_prompt, params))
            self._attach(live, chosen)

    def _attach(self, live: Live, identity: bytes) -> None:
        peer = self._drafters.get(identity)
        if peer is None:
            return  # it went away while it was being told
        live.drafter = identity
        self._carry_out(live, live.machine.attach(peer.arrivals))
        self._policies.reconsider(live, time.monotonic())  # by what other sessions have shown, before the first step

    def _carry_out(self, live: Live, effects: list[ev.VerifierEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.SendTruth(base, crc, ids, draft_n):
                    self._tell(live, m.Truth(live.id, base, crc, ids, draft_n))
                case ev.SendSync():
                    for frame in live.sync_frames(effect):
                        self._tell(live, frame)
                case ev.SendNack(base, crc):
                    self._tell(live, m.Nack(live.id, base, crc))
                case ev.Trim():
                    pass  # the engine has it already
                case ev.Emit(ids, accepted, drafts):
                    self.stats.emitted(live, effect)
                    live.client.hear(Tokens(ids, min(accepted, len(ids)), drafts))
                case ev.Finish(reason):
                    self._finish(live, reason, time.monotonic())
                case _:
                    assert_never(effect)

    def _finish(self, live: Live, reason: str, now: float) -> None:
        """Free the session's place; its report waits a moment for the drafter's own numbers."""
        self._unpublished = True
        if self._sessions.pop(live.id, None) is None:
            return
        self._free.append(live.seq)
        self._stepper.free(live.seq)
        machine = live.machine
        self.stats.ended(machine, reason, now)
        report = session_report(machine, self._costs, now)
        peer = self._drafters.get(live.drafter)
        report["drafter"] = peer.hello.drafter if peer is not None else None
        finished = Finished(reason, tuple(machine.prefix[: machine.n_prompt]), report)
        log.info("session_finished", session=live.id, reason=reason, **live.summary())
        self._closing.add(live, finished, now)
        if peer is not None:
            done = m.Done(live.id, reason, len(machine.prefix), report if live.owner == live.drafter else {})
            live.bytes_sent += self._router.send(peer.identity, done)
        if peer is None or live.owner is not None or reason == "cancelled":
            self._closing.deliver(live.id, 0, 0.0)

    def snapshot(self, now: float) -> dict[str, object]:
        """What `stats` shows: an immutable picture, built on the loop's thread."""
        return self.stats.picture(
            self._info,
            list(self._sessions.values()),
            list(self._drafters),
            self._costs,
            self._router.traffic,
            now,
        ) | {"address": self._address, "encrypted": self._router.encrypted}

    # --- the wire

    def _tell(self, live: Live, message: m.TokenMessage) -> None:
        if live.drafter is not None:
            live.bytes_sent += self._router.send(live.drafter, message)

    def _receive(self) -> None:
        for identity, message, size in self._router.receive():
            now = time.monotonic()
            peer = self._drafters.get(identity)
            if peer is not None:
                peer.link.last_heard = now
            match message:
                case None:
                    pass
                case m.Hello():
                    self._hello(identity, message, now)
                case m.Bye():
                    self._peer_gone(identity, "stopped")
                case _ if peer is None:
                    self.stats.strangers += 1
                    self._router.send(identity, m.Error("hello", "introduce yourself with HELLO first"))
                case _:
                    self._message(peer, message, size, now)

    def _message(self, peer: DrafterPeer, message: m.Message, size: int, now: float) -> None:
        match message:
            case m.Draft(session, base, crc, ids, branch):
                self._session_event(peer, session, ev.Drafted(base, crc, ids, branch), size, now)
            case m.Shadow(session, base, crc, ids):
                self._session_event(peer, session, ev.Shadowed(base, crc, ids), size, now)
            case m.Nack(session, base, crc):
                self._session_event(peer, session, ev.Nacked(base, crc), size, now)
            case m.Open():
                self._open_for(peer, message, now)
            case m.Close():
                self._closed_by(peer, message, now)
            case m.Vocab(start):
                self._router.send(peer.identity, vocabulary_chunk(self._vocabulary, start))
            case m.Ping():
                self._drafters.pinged(peer, message, self._turns, self.stats.busy.share(now))
            case m.Pong():
                self._drafters.ponged(peer, message, now)
            case _:
                self._router.traffic.rejected["direction"] += 1

    def _session_event(self, peer: DrafterPeer, session: int, event: ev.VerifierEvent, size: int, now: float) -> None:
        live = self._sessions.get(session)
        if live is None or live.drafter != peer.identity:
            self.stats.stray_frames += 1
            return
        live.bytes_received += size
        self._carry_out(live, live.machine.handle(event, now))

    def _hello(self, identity: bytes, hello: m.Hello, now: float) -> None:
        known = self._drafters.get(identity)
        if known is not None and known.hello == hello:
            known.link.last_heard = now
            self._router.send(identity, self._welcome())  # it asked more than once while nobody listened
            return
        self._peer_gone(identity, "hello again")
        self._drafters.add(identity, hello, now)
        self.stats.reconnects.came()
        self._unpublished = True
        self._router.send(identity, self._welcome())
        self._drafters.ping(now, self._turns, self.stats.busy.share(now))
        log.info("drafter_attached", drafter=hello.drafter, engine=hello.engine, model=hello.model)
        self._find_drafters()

    def _welcome(self) -> m.Welcome:
        limits, sha256 = self._limits, self.stats.model_hash or ""
        return m.Welcome(self._name, self._info.model, sha256, self._fingerprint, limits.n_vocab, limits.n_ctx,
                         sorted(limits.end_ids), self._probes)  # fmt: skip

    def _peer_gone(self, identity: bytes, reason: str) -> None:
        """Forget a drafter: its own sessions end, the others go on alone or with another drafter."""
        peer = self._drafters.remove(identity)
        if peer is None:
            return
        self.stats.reconnects.lost()
        self._unpublished = True
        log.info("drafter_gone", drafter=peer.hello.drafter, reason=reason)
        self._prompts.withdraw(lambda opening: opening.owner == identity)
        for live in list(self._sessions.values()):
            if live.drafter == identity:
                live.drafter = None
                live.machine.handle(ev.Detached(), time.monotonic())
            if live.owner == identity:
                self._carry_out(live, live.machine.handle(ev.Cancelled("cancelled"), time.monotonic()))
        self._find_drafters()

    def _find_drafters(self) -> None:
        for live in list(self._sessions.values()):
            if live.drafter is None and live.owner is None and live.machine.params.draft_n != 0:
                self._find_drafter(live)

    def _open_for(self, peer: DrafterPeer, order: m.Open, now: float) -> None:
        identity = peer.identity
        client = RemoteClient(lambda message: self._router.send(identity, message), order)
        try:
            request = requested(order)
        except SpecmeshError as error:
            client.hear(Failed(error))
            return
        self._open(Opening(request, client, identity), now)

    def _closed_by(self, peer: DrafterPeer, close: m.Close, now: float) -> None:
        self._closing.told(close.session, peer.identity, close.drafted, close.draft_s, now)
        live = self._sessions.get(close.session)
        if live is not None and live.owner == peer.identity:
            self._carry_out(live, live.machine.handle(ev.Cancelled("cancelled"), now))


def _stopping() -> Busy:
    return Busy("the verifier is stopping: try again when it is back")
