"""The drafter's loop: frames and orders in, one unit of drafting at a time, frames and client events out.

It polls between draft tokens, so a correction interrupts at once. What to draft, how far ahead and when to send is
decided by the sessions (specmesh.core).
"""

import itertools
import time
from collections.abc import Callable
from typing import assert_never

import structlog
import zmq

from specmesh.core import events as ev
from specmesh.core.drafter_session import DrafterSession
from specmesh.core.sampling import Sampler, SamplingParams
from specmesh.core.vocabulary import Vocabulary
from specmesh.core.vocabulary_match import LEAST_OVERLAP
from specmesh.daemons.dealer import Dealer
from specmesh.daemons.drafter_stats import DrafterStats
from specmesh.daemons.followed import Asked, Followed
from specmesh.daemons.introduction import Introduction
from specmesh.daemons.mailbox import Mailbox
from specmesh.daemons.peers import U32, Link
from specmesh.daemons.vocabulary_cache import VocabularyCache
from specmesh.engines.base import DraftEngine
from specmesh.errors import (
    Busy,
    ConfigError,
    DaemonUnreachable,
    EngineError,
    RemoteProtocolError,
    RequestError,
    SpecmeshError,
)
from specmesh.requests import Cancel, ClientOrder, Failed, Peer, Probe, Submit
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")

HELLO_INTERVAL = 0.25
"""Seconds between HELLOs until WELCOME comes."""

UNANSWERED = 12
"""HELLOs without an answer after which the log says so, once: three seconds."""

SNAPSHOT_INTERVAL = 0.1


class DrafterLoop:
    """One drafter attached to one verifier. Everything runs on the thread that calls `run`.

    connect() opens a fresh DEALER to the verifier at `address`. least_overlap is the share of tokens that must have a
    counterpart in the verifier's vocabulary, which is kept in `cache`. changed: whether `connect` would expect another
    verifier now.
    """

    def __init__(
        self,
        name: str,
        connect: "Callable[[], zmq.Socket[bytes]]",
        address: str,
        engine: DraftEngine,
        mailbox: Mailbox[ClientOrder],
        least_overlap: float = LEAST_OVERLAP,
        cache: VocabularyCache | None = None,
        changed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name, self._dealer, self._address = name, Dealer(connect, address, changed), address
        self._engine, self._mailbox = engine, mailbox
        self._introduction = Introduction(engine, address, least_overlap, cache, mailbox.wake)
        self._link = Link(time.monotonic())
        self._welcome: m.Welcome | None = None
        self._next_hello, self._hellos = 0.0, 0
        self._next_snapshot = 0.0
        self._unpublished = True
        self._sessions: dict[int, Followed] = {}
        self._asked: dict[int, Asked] = {}
        self._refs = itertools.count(1)
        self._free = list(reversed(range(engine.info.n_seq)))
        self._turns = 0
        self._round_trip = 0.0
        self._stopping = False
        self.stats = DrafterStats(time.monotonic())

    @property
    def verifier(self) -> m.Welcome | None:
        """What the verifier said of itself; None while there is none."""
        return self._welcome

    @property
    def trouble(self) -> str:
        """Why there is no verifier, as far as that is known."""
        silent = f"the verifier at {self._address} does not answer: is it running, and reachable from here?"
        return self.refusal or silent

    @property
    def refusal(self) -> str | None:
        """Why the verifier, or our own keys, keep this drafter out."""
        return self._dealer.refusal

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The verifier's vocabulary, once it is known and suits."""
        return self._introduction.vocabulary

    # --- the loop

    def run(self) -> None:
        """Draft until stopped; raises ConfigError when the verifier refuses this drafter for good."""
        try:
            self._draft()
        finally:
            self._dealer.send(m.Bye())

    def _draft(self) -> None:
        while not self._stopping:
            self._turns += 1
            self._receive()
            if self._welcome is not None and self._link.silent(time.monotonic()):
                self._lost("silent")  # judged with the socket just emptied: frames may have waited for a long guess
            worked = self._work()
            if not worked:
                self._flush()
                self._dealer.inlet.wait(self._mailbox, self._timeout(time.monotonic()))
            for order in self._mailbox.drain():
                self._order(order)
            self._tick(time.monotonic())
        stopping = DaemonUnreachable("the drafter is stopping")
        for order in self._mailbox.drain():
            if isinstance(order, Submit):
                order.client.hear(Failed(stopping))
        for live in list(self._sessions.values()):
            live.failed(stopping)
            self._close(live)
        self._drop_sessions(stopping)

    def close(self) -> None:
        """Give the connection back."""
        self._dealer.close()

    @property
    def progress(self) -> int:
        """Changes while the loop turns, and the engine with it; for a watchdog, from any thread."""
        return self._turns

    def stop(self) -> None:
        """End after this turn; a signal handler may call this."""
        self._stopping = True

    def _timeout(self, now: float) -> float:
        due = self._link.next_ping if self._welcome is not None else self._next_hello
        if self._unpublished:
            due = min(due, self._next_snapshot)
        return max(min(due, self._dealer.next_look) - now, 0.0)

    def _tick(self, now: float) -> None:
        refusal = self._dealer.look(now)
        if refusal is not None:
            log.warning("refused", error=refusal)
            if self._welcome is not None:
                self._lost("refused")
        if self._welcome is None:
            if now >= self._next_hello:
                self._say_hello(now)
        elif now >= self._link.next_ping:
            self._dealer.send(self._link.ping(now, self._turns, self.stats.busy.share(now)))
        self._introduction.settle()
        self._ask(self._introduction.overdue(now))
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_INTERVAL
            self._unpublished = bool(self._sessions)
            self.stats.publish(self.snapshot(now))

    def _order(self, order: ClientOrder) -> None:
        match order:
            case Submit(request, client):
                self._open(Asked(request, client))
            case Cancel(client):
                self._asked = {ref: asked for ref, asked in self._asked.items() if asked.client is not client}
                for live in list(self._sessions.values()):
                    if live.asked is not None and live.asked.client is client:
                        self._close(live)
            case Probe():
                peers = [Peer(self._welcome.verifier, self._address)] if self._welcome is not None else []
                order.sent(peers)
                for peer in peers:
                    now = time.monotonic()
                    busy, answer = self.stats.busy.share(now), order.answer(peer)
                    self._dealer.send(self._link.probe(now, self._turns, busy, answer))
            case _:
                assert_never(order)

    # --- drafting

    def _work(self) -> bool:
        """One unit of drafting for the next session that has some, or where none has, of shadowing; whether there was
        any."""
        engine = self._introduction.engine
        if engine is None:
            return False  # the verifier's vocabulary is still on its way
        for live in list(self._sessions.values()):
            if live.seq is None and self._free:
                live.seq = self._free.pop()
                live.machine.relocated(0)
            plan = live.machine.plan(self._round_trip) if live.seq is not None else None
            if plan is not None:
                self._sessions[live.id] = self._sessions.pop(live.id)  # the others come first next time
                self._predict(engine, live, plan)
                return True
        for live in self._sessions.values():
            plan = live.machine.plan_shadow() if live.seq is not None else None
            if plan is not None:
                self._predict(engine, live, plan)
                return True
        return False

    def _predict(self, engine: DraftEngine, live: Followed, plan: ev.Predict) -> None:
        started = time.monotonic()
        try:
            token = engine.predict(live.seq or 0, plan.ids, live.sampler if plan.guess else None)
        except SpecmeshError as error:
            log.error("drafting_failed", session=live.id, error=str(error))
            self._release(live)
            return
        ended = time.monotonic()
        drafted = live.machine.drafted
        effects = live.machine.handle(ev.Predicted(len(plan.ids), token, started), ended)
        self.stats.worked(started, ended, live.machine.drafted > drafted)
        self._carry_out(live, effects)

    def _flush(self) -> None:
        for live in list(self._sessions.values()):
            self._carry_out(live, live.machine.flush())

    def _carry_out(self, live: Followed, effects: list[ev.DrafterEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.SendDraft(base, crc, ids):
                    live.bytes_sent += self._dealer.send(m.Draft(live.id, base, crc, ids))
                case ev.SendShadow(base, crc, ids):
                    live.bytes_sent += self._dealer.send(m.Shadow(live.id, base, crc, ids))
                case ev.SendNack(base, crc):
                    live.bytes_sent += self._dealer.send(m.Nack(live.id, base, crc))
                case ev.Trim(length):
                    if live.seq is not None:
                        live.machine.relocated(self._engine.trim(live.seq, length))
                case ev.Learned():
                    if live.learned(effect):
                        self.stats.round(effect.accepted, len(effect.ids), time.monotonic())
                case _:
                    assert_never(effect)

    # --- sessions

    def _open(self, asked: Asked) -> None:
        """Ask the verifier for a session."""
        if self._welcome is None:
            asked.client.hear(Failed(DaemonUnreachable(self.trouble)))
            return
        ref = next(self._refs) & U32
        try:
            sent = self._dealer.send(asked.order(ref))
        except ValueError as error:
            asked.client.hear(Failed(RequestError(f"the request does not fit the wire: {error}")))
            return
        if sent:
            self._asked[ref] = asked
        else:
            asked.client.hear(Failed(Busy(f"the verifier at {self._address} takes no requests now: try again")))

    def _opened(self, message: m.Opened) -> None:
        asked = self._asked.pop(message.ref, None) if message.ref else None
        if message.ref and asked is None:
            self._dealer.send(m.Close(message.session, 0, 0.0))  # its client left before it was opened
            return
        if message.session in self._sessions:
            self._forget(self._sessions[message.session])
        seq = self._free.pop() if self._free else None
        info, n_vocab = self._engine.info, self._welcome.n_vocab if self._welcome else 0
        params = SamplingParams(message.temperature, message.top_k, message.top_p, message.seed)
        shadows = asked is None or asked.request.params.draft_n is None
        live = Followed(
            message.session,
            DrafterSession(n_vocab, info.n_ctx, info.n_batch, shadows=shadows),
            Sampler(params),
            seq,
            message.prompt_tokens,
            self._welcome.eog_ids if self._welcome else (),
            asked,
        )
        self._sessions[live.id] = live
        self.stats.opened += 1
        named = {"request": asked.request.id} if asked is not None else {}
        log.info("session_opened", session=live.id, prompt_tokens=live.n_prompt, **named)
        live.started()

    def _done(self, live: Followed, message: m.Done) -> None:
        machine = live.machine
        self._dealer.send(m.Close(live.id, machine.drafted, machine.draft_seconds))
        log.info("session_finished", session=live.id, reason=message.finish_reason, drafted=machine.drafted)
        if live.machine.n_truth < message.length:
            live.failed(RemoteProtocolError("the end of the text was lost on its way from the verifier: ask again"))
        elif message.finish_reason == "shutdown":
            live.failed(DaemonUnreachable("the verifier is stopping: the text ends here"))
        elif message.finish_reason == "error":
            live.failed(EngineError("the verifier's engine failed: see its log"))
        live.done(message)
        self._forget(live)

    def _close(self, live: Followed) -> None:
        """End a session from this side."""
        self._dealer.send(m.Close(live.id, live.machine.drafted, live.machine.draft_seconds))
        live.cancelled()
        self._forget(live)

    def _release(self, live: Followed) -> None:
        """Give the draft model's place back; the session is followed without drafting."""
        if live.seq is not None:
            self._engine.trim(live.seq, 0)
            self._free.append(live.seq)
            live.seq = None

    def _forget(self, live: Followed) -> None:
        self._release(live)
        self._unpublished = True
        self._sessions.pop(live.id, None)

    # --- the wire

    def _say_hello(self, now: float) -> None:
        self._next_hello, self._hellos = now + HELLO_INTERVAL, self._hellos + 1
        if self._hellos == UNANSWERED and self._dealer.refusal is None:
            log.warning("verifier_not_answering", connect=self._address, meaning="trying on; is it running there?")
        self._dealer.send(self._introduction.hello(self._name))

    def _receive(self) -> None:
        for message, size in self._dealer.receive():
            self._link.last_heard = time.monotonic()
            if message is not None:
                self._message(message, size, self._link.last_heard)

    def _message(self, message: m.Message, size: int, now: float) -> None:
        match message:
            case m.Truth(session, base, crc, ids, draft_n):
                self._session_event(session, ev.Told(base, crc, ids, draft_n, sync=False), size, now)
            case m.Sync(session, base, crc, ids, draft_n):
                self._session_event(session, ev.Told(base, crc, ids, draft_n, sync=True), size, now)
            case m.Nack(session, base, crc):
                self._session_event(session, ev.Nacked(base, crc), size, now)
            case m.Round(session) | m.Done(session) if session not in self._sessions:
                pass  # it was closed from this side
            case m.Round(session):
                self._sessions[session].round(message)
            case m.Done(session):
                self._done(self._sessions[session], message)
            case m.Opened():
                self._opened(message)
            case m.Welcome():
                self._welcomed(message, now)
            case m.Vocab():
                self._ask(self._introduction.answered(message, now))
            case m.Error():
                self._error(message, now)
            case m.Bye():
                if self._welcome is not None:
                    self._lost("stopped")
            case m.Ping(number, progress, busy):
                self._link.progress, self._link.busy = progress, busy
                self._dealer.send(m.Pong(number, self._turns & U32, self.stats.busy.share(now)))
            case m.Pong():
                round_trip = self._link.pong(message, now)
                if round_trip is not None:
                    self.stats.round_trips.record(round_trip)
                self._round_trip = self._link.round_trips.percentile(0.5) or 0.0
            case _:
                self._dealer.traffic.rejected["direction"] += 1

    def _session_event(self, session: int, event: ev.DrafterEvent, size: int, now: float) -> None:
        live = self._sessions.get(session)
        if live is not None:
            live.bytes_received += size
            self._carry_out(live, live.machine.handle(event, now))

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        if self._welcome is not None and self._welcome.verifier == welcome.verifier:
            return  # it heard more than one HELLO
        self._drop_sessions(DaemonUnreachable("the verifier started anew and has forgotten this session"))
        if self._welcome is not None:
            self.stats.reconnects.lost()
        self.stats.reconnects.came()
        self._welcome = welcome
        self._unpublished = True
        self._link.next_ping = now
        log.info("verifier_found", verifier=welcome.verifier, model=welcome.model)
        self._ask(self._introduction.welcomed(welcome, now))

    def _ask(self, request: m.Vocab | None) -> None:
        if request is not None:
            self._dealer.send(request)

    def _error(self, error: m.Error, now: float) -> None:
        asked = self._asked.pop(error.ref, None) if error.ref else None
        if asked is not None:
            asked.client.hear(Failed(Busy(error.message) if error.code == "busy" else RequestError(error.message)))
        elif error.code == "hello":
            if self._welcome is not None:
                self._lost("the verifier does not know this drafter")
            self._say_hello(now)
        elif error.code == "version":
            raise ConfigError(f"the verifier at {self._address} refused this drafter: {error.message}")
        else:
            log.warning("verifier_error", code=error.code, message=error.message)

    def _lost(self, reason: str) -> None:
        """The verifier is gone: forget its sessions and start over on a fresh connection."""
        log.warning("verifier_lost", reason=reason)
        self.stats.reconnects.lost()
        self._welcome = None
        self._unpublished = True
        self._introduction.lost()
        self._drop_sessions(DaemonUnreachable(f"the verifier at {self._address} went away"))
        self._dealer.reconnect()
        self._next_hello, self._hellos = 0.0, 0

    def _drop_sessions(self, error: SpecmeshError) -> None:
        for live in list(self._sessions.values()):
            live.failed(error)
            self._forget(live)
        for asked in self._asked.values():
            asked.client.hear(Failed(error))
        self._asked.clear()

    def snapshot(self, now: float) -> dict[str, object]:
        """What `stats` shows: an immutable picture, built on the loop's thread."""
        return self.stats.picture(
            self._engine.info,
            self._welcome,
            self._introduction.comparison,
            self._link,
            [live.machine for live in self._sessions.values()],
            self._dealer.traffic,
            now,
        ) | {"address": self._address, "encrypted": self._dealer.encrypted, "refusal": self._dealer.refusal}
