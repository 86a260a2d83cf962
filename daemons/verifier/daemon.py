"""The verifier's loop: frames, orders and finished steps in; frames, client events and new steps out."""

import time
from typing import assert_never

import structlog
import zmq

from specmesh.api.requests import Cancel, ClientOrder, Failed, ModelInfo, PingPeers, Submit, refuse
from specmesh.core.draft_length.estimates import RollingAcceptance
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafting.verifier_choice import reported_load
from specmesh.core.scheduling.batch import PREFILL_ROWS
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.session_params import MAX_DRAFTS, TargetLimits
from specmesh.core.snapshot import VerifierSnapshot
from specmesh.core.verifier import VerifierCore
from specmesh.core.vocabulary.match import PROBES
from specmesh.daemons.link.auth import ZapGuard
from specmesh.daemons.link.frames import from_drafter
from specmesh.daemons.link.peers import U32, DrafterPeer
from specmesh.daemons.link.router import Router
from specmesh.daemons.link.vocabulary_handshake import vocabulary_chunk
from specmesh.daemons.runtime.engine_thread import Decoded
from specmesh.daemons.runtime.mailbox import Mailbox
from specmesh.daemons.runtime.prompts import EncodedPrompt, Opening, PromptEncoder
from specmesh.daemons.runtime.request_queue import MAX_QUEUE, RequestQueue
from specmesh.daemons.runtime.shared_cores import SharedCores
from specmesh.daemons.verifier.detached_sessions import GRACE
from specmesh.daemons.verifier.drafters import Drafters, Heartbeat
from specmesh.daemons.verifier.drafting import PolicySolver, Solved
from specmesh.daemons.verifier.remote_client import RemoteClient, requested
from specmesh.daemons.verifier.sessions import Sessions
from specmesh.daemons.verifier.statistics import VerifierStats
from specmesh.daemons.verifier.stepper import Stepper
from specmesh.engines.base import EngineInfo, VerifyEngine
from specmesh.errors import Busy, SpecmeshError, WentAway
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")

SNAPSHOT_INTERVAL = 0.1
FLUSH_INTERVAL = 0.005

CLOSE_TIMEOUT = 1.0  # seconds that a prompt being encoded, or a step, may hold up the end

Order = ClientOrder | EncodedPrompt | Decoded | SpecmeshError | Solved


class VerifierLoop:
    """A verifier. Everything runs on the thread that calls `run`.

    grace: seconds that a session is kept for its lost drafter. max_queue: most requests that wait for a session.
    drain: seconds for sessions to finish after `stop`.
    """

    def __init__(
        self,
        name: str,
        socket: "zmq.Socket[bytes]",
        engine: VerifyEngine,
        mailbox: Mailbox[Order],
        costs: StepCosts,
        guard: ZapGuard | None = None,
        grace: float = GRACE,
        max_queue: int = MAX_QUEUE,
        *,
        drain: float = 10.0,
        explicit_threads: bool = False,
    ) -> None:
        self._name, self._router, self._mailbox = name, Router(socket, guard), mailbox
        self._engine, self._vocabulary, self._info = engine, engine.vocabulary, engine.info
        self._fingerprint = engine.vocabulary.fingerprint()
        self._probes: dict[str, object] = {text: engine.encode(text) for text in PROBES}
        self._limits = _limits(engine)
        self._prompts = PromptEncoder(engine, mailbox.put)
        self._queue = RequestQueue(self._prompts, self._limits, engine.info.n_seq, max_queue)
        self._costs = costs
        self._policies = PolicySolver(mailbox.put)
        self._cores = SharedCores(engine, drafts=False, explicit=explicit_threads)
        self._turns = 0
        self._next_snapshot = 0.0
        self._stopping: float | None = None
        self._drain = drain
        self.stats = VerifierStats(time.monotonic())
        self._drafters = Drafters(self._router, self.stats.round_trips, self._state)
        self._hash_sent = ""
        self._core = _core(engine.info, self._limits, costs, self._drafters.acceptance)
        self._stepper = Stepper(engine, mailbox.put, self._core)
        self._sessions = Sessions(costs, self._router, self._drafters, self._core, self._policies, self.stats, grace)

    # --- the loop

    def run(self) -> bool:
        """Serve until stopped and drained; return True where the engine is idle and may be freed."""
        while not self._drained():
            self._router.wait(self._mailbox, self._timeout(time.monotonic()))
            self._turns += 1
            for order in self._mailbox.drain():
                self._order(order, time.monotonic())
            self._receive()
            self._tick(time.monotonic())
        self._mailbox.end(lambda order: refuse(order, _stopping()))
        self._drafters.send_all(m.Bye())
        self._policies.close()
        encoded = self._prompts.close(CLOSE_TIMEOUT)
        return self._stepper.close(CLOSE_TIMEOUT) and encoded

    @property
    def models(self) -> tuple[str, ...]:
        return (self._info.model,)

    def not_ready(self) -> None:
        return None

    def served(self, _: str) -> ModelInfo:
        return ModelInfo(self._info.model, self._vocabulary)

    @property
    def progress(self) -> int:
        """Changes while the loop and the engine get on; from any thread."""
        return -1 if self._stepper.overdue(time.monotonic()) or not self._router.guarded else self._turns

    def stop(self) -> None:
        """Take no new sessions and end after the live ones; safe in a signal handler."""
        if self._stopping is None:
            self._stopping = time.monotonic()

    def _drained(self) -> bool:
        if self._stopping is None:
            return False
        for opening in self._queue.withdraw(lambda _: True):
            opening.client.on_event(Failed(_stopping()))
        now = time.monotonic()
        self._sessions.stop(now)
        if not self._sessions:
            return True
        if now < self._stopping + self._drain:
            return False
        for live in list(self._sessions.live.values()):
            self._sessions.fail(live, WentAway("the verifier is stopping: the text ends here"), now, "shutdown")
        return True

    def _timeout(self, now: float) -> float:
        """Begin a step where one is ready; return the seconds that the loop may sleep."""
        due = self._drafters.next_ping()
        until = now + 1.0 if due is None else due
        if self._stopping is not None:
            until = min(until, self._stopping + self._drain)
        until = min(until, self._sessions.closing.next_deadline() or until)
        if self.stats.unpublished:
            until = min(until, self._next_snapshot)
        if self._router.behind:
            until = min(until, now + FLUSH_INTERVAL)
        return max(min(until, self._stepper.feed(now)) - now, 0.0)

    def _order(self, order: Order, now: float) -> None:
        match order:
            case Submit(request, client):
                self._open(Opening(request, client, None), now)
            case EncodedPrompt():
                self._queue.encoded(order)
            case Cancel(client):
                self._queue.withdraw(lambda opening: opening.client is client)
                self._sessions.cancel_of(client, now)
            case PingPeers():
                self._drafters.probe(order, now)
            case Decoded():
                self._decoded(order, now)
            case SpecmeshError():  # the engine's sequences are in doubt: those of the step end, the others go on
                log.error("step_failed", error=str(order))
                for session in self._stepper.abandon():
                    self._sessions.fail(self._sessions.live[session], order, now, "error")
            case Solved(session, policy):
                if (solved := self._sessions.live.get(session)) is not None:
                    solved.machine.pacing.adopt(policy)
            case _:
                assert_never(order)

    def _tick(self, now: float) -> None:
        self._router.flush()
        for identity, reason in self._router.gone().items():
            self._peer_gone(identity, reason)
        for identity in self._drafters.silent(now):
            self._router.gate.hang_up(identity)
            self._peer_gone(identity, "silent")
        for peer in self._drafters.turned():
            self._peer_turned(peer)
        self._drafters.ping(now)
        if self._hash_sent != (self.stats.model_hash or ""):
            self._hash_sent = self.stats.model_hash or ""
            self._drafters.send_all(self._welcome())
        self._sessions.expire(now)
        while self._queue and (waiting := self._queue.next(self._sessions.owners(), now)) is not None:
            self._sessions.begin(waiting, now)
        if not self._sessions.live:
            self.stats.throughput.idle()
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_INTERVAL
            self.stats.unpublished = bool(self._sessions.live)
            self.stats.latest = self.snapshot(now)

    # --- steps

    def _decoded(self, result: Decoded, now: float) -> None:
        finished = self._stepper.finish(result, now)
        outcomes = [(self._sessions.live[session], effects) for session, effects in finished]
        if all(live.machine.drafts or not live.machine.drafting for live, _ in outcomes):
            # Before TRUTH is sent: no answer is needed for it.
            self._stepper.feed(time.monotonic())
        before = self.stats.totals.generated
        for live, effects in outcomes:
            self._sessions.carry_out(live, effects)
            self._policies.reconsider(live, now)
            self._sessions.drafting.stepped(live, now)
        self.stats.step(result.started, result.ended, self.stats.totals.generated - before)

    # --- requests

    def _open(self, opening: Opening, now: float) -> None:
        """Resume the session that a request names, else queue it: until the end of this turn where there is room."""
        try:
            if self._stopping is not None:
                raise _stopping()
            if not self._sessions.adopted(opening, now):
                self._queue.add(opening, self._sessions.owners(), now)
        except SpecmeshError as error:
            opening.client.on_event(Failed(error))

    def snapshot(self, now: float) -> VerifierSnapshot:
        return self.stats.snapshot(
            self._engine.info,
            list(self._sessions.live.values()),
            list(self._drafters),
            self._costs,
            self._router.traffic,
            now,
            len(self._sessions.kept),
            len(self._queue),
            address=self._router.address,
            encrypted=self._router.encrypted,
            reuse=self._core.slots.snapshot(),
        )

    # --- the wire

    def _receive(self) -> None:
        for identity, message, size in self._router.receive(time.monotonic()):
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
            case m.Draft() | m.DraftProbs() | m.Shadow() | m.Nack():
                self._sessions.on_frame(peer, message.session, from_drafter(message), size, now)
            case m.Open():
                self._open_for(peer, message, now)
            case m.Close(ref=ref) if ref:  # its client did not wait for a session
                self._queue.withdraw(lambda opening: (opening.owner, opening.ref) == (peer.identity, ref))
            case m.Close():
                self._sessions.closed(peer, message, now)
            case m.Vocab(start):
                self._router.send(peer.identity, vocabulary_chunk(self._vocabulary, start))
            case m.Ping():
                self._drafters.pinged(peer, message, now)
            case m.Pong():
                self._drafters.ponged(peer, message, now)
            case _:
                self._router.misdirected(peer.identity, now)

    def _hello(self, identity: bytes, hello: m.Hello, now: float) -> None:
        known = self._drafters.get(identity)
        if known is not None and known.hello == hello:
            known.link.last_heard = now
            self._router.send(identity, self._welcome(hello))  # it asked more than once while nobody listened
            return
        self._peer_gone(identity, "hello again")
        try:
            self._drafters.add(identity, hello, now)
        except Busy as error:
            self._router.send(identity, m.Error("busy", str(error)))
            return
        self.stats.peer_came()
        self._share_cores()
        self._router.send(identity, self._welcome(hello))
        self._drafters.ping(now)
        log.info("drafter_attached", drafter=hello.drafter, engine=hello.engine, model=hello.model)
        self._sessions.drafting.find_all(now)

    def _welcome(self, hello: m.Hello | None = None) -> m.Welcome:
        """Return WELCOME, with the host's name only for who knows it: its holder may claim this host's cores."""
        limits, sha256 = self._limits, self.stats.model_hash or ""
        host = self._cores.host if hello is not None and hello.host == self._cores.host else ""
        return m.Welcome(self._name, self._info.model, sha256, self._fingerprint, limits.n_vocab, limits.n_ctx,
                         sorted(limits.end_ids), self._probes, host, self._cores.threads)  # fmt: skip

    def _share_cores(self) -> None:
        threads = self._cores.beside(peer.hello for peer in self._drafters)
        if threads is not None:
            self._stepper.use_threads(threads)
            self._costs.doubt()  # they are learned anew

    def _state(self, now: float) -> Heartbeat:
        load = reported_load(len(self._sessions.owners()), len(self._queue), self._info.n_seq, self._costs)
        step_ms, row_ms = round(load.step_s * 1e3, 4), round(load.row_s * 1e3, 4)
        return self._turns & U32, self.stats.minute.busy(now), load.sessions, load.queued, load.places, step_ms, row_ms

    def _peer_gone(self, identity: bytes, reason: str) -> None:
        peer = self._drafters.remove(identity)
        if peer is None:
            return
        self.stats.peer_lost()
        log.info("drafter_gone", drafter=peer.hello.drafter, reason=reason)
        self._share_cores()
        self._queue.withdraw(lambda opening: opening.owner == identity)
        self._sessions.left(identity, time.monotonic(), may_return=reason not in ("revoked", "flooding"))

    def _peer_turned(self, peer: DrafterPeer) -> None:
        """A drafter is stuck, or gets on again."""
        log.warning("drafter_stuck" if peer.stuck else "drafter_gets_on", drafter=peer.hello.drafter)
        self.stats.unpublished = True
        now = time.monotonic()
        if peer.stuck:
            self._sessions.drafting.go_round(peer.identity, now)
        self._sessions.drafting.find_all(now)

    def _open_for(self, peer: DrafterPeer, order: m.Open, now: float) -> None:
        identity = peer.identity
        client = RemoteClient(lambda message: self._router.send(identity, message), order)
        try:
            if not self._router.gate.may_open(identity, now):
                raise Busy("requests come too fast: try again in a moment")
            request = requested(order)
        except SpecmeshError as error:
            client.on_event(Failed(error))
            return
        self._open(Opening(request, client, identity, order.ref), now)


def _stopping() -> Busy:
    return Busy("the verifier is stopping: try again when it is back")


def _limits(engine: VerifyEngine) -> TargetLimits:
    info, vocabulary = engine.info, engine.vocabulary
    most = MAX_DRAFTS if info.width is None else min(MAX_DRAFTS, info.width - 1)
    drafts = most if info.can_trim else 0
    return TargetLimits(info.n_ctx, len(vocabulary), vocabulary.end_ids, drafts, vocabulary.pieces, info.width)


def _core(info: EngineInfo, limits: TargetLimits, costs: StepCosts, acceptance: RollingAcceptance) -> VerifierCore:
    room = info.n_ctx * (1 if info.reuse == "whole" else info.n_seq)
    slots = KVSlots(info.n_seq, info.reuse, room, PREFILL_ROWS if info.width is not None else None)
    first = time.monotonic_ns() & 0xFFFFFF  # ids of sessions differ from those before a restart
    return VerifierCore(
        limits, costs, acceptance, slots, info.n_batch, restores=info.trimming == "restore", first=first
    )
