"""One verifier of a drafter: connection, handshake, liveness, and the sessions there."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from specmesh.api.requests import ModelInfo, Peer, PingPeers
from specmesh.core.drafting.verifier_choice import HelloTimer, PaceMeter, ReportedLoad, VerifierLoad
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.daemons.drafter.draft_sessions import DraftSessions, RequestOwner
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.daemons.link.dealer import FLUSH_INTERVAL, Dealer
from specmesh.daemons.link.frames import from_verifier
from specmesh.daemons.link.peers import U32, Link
from specmesh.daemons.link.transport import UPDATE, Route, Traffic
from specmesh.daemons.link.vocabulary_handshake import VocabularyHandshake
from specmesh.engines.base import DraftEngine
from specmesh.errors import ConfigError, DaemonUnreachable, SpecmeshError
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")


class Upstream:
    """The verifier at `route`, over a socket of its own. turns: returns how often the loop has turned."""

    def __init__(
        self,
        name: str,
        route: Route,
        engine: DraftEngine,
        introduction: VocabularyHandshake,
        stats: DrafterStats,
        traffic: Traffic,
        owner: RequestOwner,
        slots: KVSlots,
        turns: Callable[[], int],
        temperature: float | None = None,
    ) -> None:
        now = time.monotonic()
        self.address, self._name = route.address, name
        self.dealer = Dealer(route, traffic)
        self.introduction, self.link = introduction, Link(now)
        self.sessions = DraftSessions(self.dealer, engine, stats, route.address, owner, slots, temperature)
        self.welcome: m.Welcome | None = None
        self.last_model = ""
        self.given_up: SpecmeshError | None = None
        self._greeting = HelloTimer(random.random, now)
        self._stats, self._owner, self._turns = stats, owner, turns
        self._round_trip, self._met, self._refused_version = 0.0, False, False
        self._own_at_load = 0

    @property
    def n_ctx(self) -> int:
        """Ids that a session can hold there; 0 while it is away."""
        return self.welcome.n_ctx if self.welcome is not None else 0

    @property
    def target(self) -> str:
        """Its name in `Request.target`; empty while it is away."""
        return _target(self.welcome) if self.welcome is not None else ""

    @property
    def served(self) -> ModelInfo | None:
        """Its model, from any thread; None while it is away or its vocabulary unknown."""
        welcome, vocabulary = self.welcome, self.introduction.vocabulary
        if welcome is None or vocabulary is None:
            return None
        return ModelInfo(welcome.model, vocabulary, _target(welcome))

    @property
    def refusal(self) -> str | None:
        """Why the verifier or our own keys keep this drafter out, or why it was given up."""
        return str(self.given_up) if self.given_up is not None else self.dealer.refusal

    @property
    def trouble(self) -> str:
        silent = f"the verifier at {self.address} does not answer: is it running, and reachable from here?"
        return self.refusal or silent

    def outlook(self, now: float) -> VerifierLoad:
        ours, pace = self.sessions.own - self._own_at_load, self.sessions.meter.pace(now)
        rounds, committed = self._stats.totals.rounds, self._stats.totals.committed
        length = max(committed / rounds, 1.0) if rounds else 1.0
        return VerifierLoad(self.sessions.load, ours, self._round_trip, pace, length)

    def describe(self, now: float) -> dict[str, object]:
        welcome, load, pace = self.welcome, self.sessions.load, self.sessions.meter.pace(now)
        comparison = self.introduction.comparison
        return {
            "address": self.address,
            "name": welcome.verifier if welcome is not None else None,
            "model": welcome.model if welcome is not None else None,
            "refusal": self.refusal,
            "encrypted": self.given_up is None and self.dealer.encrypted,
            "stuck": self.link.stuck,
            "vocabulary": str(comparison.verdict) if comparison is not None else None,
            "round_trip_ms": self.link.round_trip_ms(),
            "sessions": {"live": len(self.sessions.live), "own": self.sessions.own},
            "load": {"sessions": load.sessions, "queued": load.queued, "max": load.places or None},
            "busy": round(self.link.busy, 3),
            "token_ms": round(pace.token_s * 1e3, 3) if pace is not None else None,
        }

    def next_due(self) -> float:
        if self.given_up is not None:
            return float("inf")
        due = self._greeting.due if self.welcome is None else self.link.next_ping
        if self.dealer.behind:
            due = min(due, time.monotonic() + FLUSH_INTERVAL)
        return min(due, self.dealer.next_look)

    def receive(self) -> None:
        """Handle what has come. Raises ConfigError or RemoteProtocolError where this verifier is unusable."""
        for message, size in self.dealer.receive():
            self.link.last_heard = time.monotonic()
            if message is not None:
                self._message(message, size, self.link.last_heard)
        if self.welcome is not None and self.link.silent(time.monotonic()):
            self._lost("silent")  # judged with the socket just emptied: frames may have waited for a long guess

    def work(self) -> bool:
        engine = self.introduction.engine  # None while the verifier's vocabulary is still on its way
        return engine is not None and self.sessions.work(engine, self._round_trip)

    def shadow(self) -> bool:
        engine = self.introduction.engine
        return engine is not None and self.sessions.shadow(engine)

    def tick(self, now: float) -> None:
        """Send what is due. Raises as `receive` does."""
        refusal = self.dealer.look(now)
        if refusal is not None:
            log.warning("refused", error=refusal)
            if self.welcome is not None:
                self._lost("refused")
        if self.welcome is not None and self.dealer.cut:
            self._lost("disconnected")
        self.dealer.flush()
        if self.welcome is None:
            if now >= self._greeting.due:
                self._say_hello(now)
        elif now >= self.link.next_ping:
            self.dealer.send(m.Ping(self.link.ping(now), *self._state(now)))
        self.introduction.settle()
        if self.welcome is not None:
            self._ask_vocabulary(self.introduction.overdue(now))

    def probe(self, order: PingPeers, peer: Peer, now: float) -> None:
        self.dealer.send(m.Ping(self.link.ping(now, order.answer(peer)), *self._state(now)))

    def leave(self, error: SpecmeshError) -> None:
        self.given_up = error
        self.dealer.send(m.Bye())
        self._away(error)
        self.dealer.close()

    def _say_hello(self, now: float) -> None:
        if self._greeting.unanswered(now) and self.dealer.refusal is None:
            log.warning("verifier_not_answering", connect=self.address, meaning="trying on; is it running there?")
        if self._greeting.doubtful(now) and self.dealer.refusal is None:
            self.dealer.reconnect()
        self._greeting.said(now, sent=self.dealer.send(self.introduction.hello(self._name)) > 0)

    def _message(self, message: m.Message, size: int, now: float) -> None:
        match message:
            case m.Truth() | m.Sync() | m.Nack():
                self.sessions.on_frame(message.session, from_verifier(message), size, now)
            case m.Round() | m.Logprobs():
                self.sessions.add(message)
            case m.Done():
                self.sessions.done(message, now)
            case m.Opened():
                self.sessions.opened(message)
            case m.Welcome():
                self._welcomed(message, now)
            case m.Vocab():
                self._ask_vocabulary(self.introduction.answered(message, now))
            case m.Error():
                self._error(message, now)
            case m.Bye():
                if self.welcome is not None:
                    self._lost("stopped")
            case m.Ping(number, progress, busy):
                self.link.told(progress, busy, now)
                self._loaded(message)
                self.dealer.send(m.Pong(number, *self._state(now)))
            case m.Pong():
                self._loaded(message)
                round_trip = self.link.pong(message, now)
                if round_trip is not None:
                    self._stats.round_trips.record(round_trip)
                self._round_trip = self.link.round_trips.percentile(0.5) or 0.0
            case _:
                self.dealer.traffic.rejected["direction"] += 1

    def _state(self, now: float) -> tuple[int, float]:
        return self._turns() & U32, self._stats.minute.busy(now)

    def _loaded(self, message: m.Ping | m.Pong) -> None:
        step_s, row_s = max(message.step_ms, 0.0) / 1e3, max(message.row_ms, 0.0) / 1e3
        self.sessions.load = ReportedLoad(message.sessions, message.queued, message.places, step_s, row_s)
        self._own_at_load = self.sessions.own

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        before = self.welcome
        if before is not None and before.verifier == welcome.verifier:
            self.welcome = replace(before, model_hash=welcome.model_hash or before.model_hash)
            self.sessions.found(self.welcome)  # it got more than one HELLO, or knows its file's hash by now
            return
        self.welcome = None  # while what it has forgotten is taken back
        self.sessions.lost(DaemonUnreachable("the verifier started anew and has forgotten this session"), now)
        self.welcome, self.last_model = welcome, welcome.model
        self._owner.found(welcome, self.address)
        self.sessions.found(welcome)
        if before is not None:
            self._stats.peer_lost()
        if self._met:
            self._stats.peer_came()
        self._met, self._refused_version = True, False
        self.dealer.next_look = now  # the last may have been before this connection, and have found none
        self._greeting.answered(now)
        self._stats.unpublished = True
        self.link.next_ping = now
        log.info("verifier_found", verifier=welcome.verifier, model=welcome.model)
        self._ask_vocabulary(self.introduction.welcomed(welcome, now))

    def _ask_vocabulary(self, request: m.Vocab | None) -> None:
        if request is not None:
            self.dealer.send(request)

    def _error(self, error: m.Error, now: float) -> None:
        if self.sessions.on_error(error, now):
            return
        if error.code == "hello":
            if self.welcome is not None:
                self._lost(error.message)
        elif error.code == "version":
            self._other_version(error.message)
        else:
            log.warning("verifier_error", code=error.code, message=error.message)

    def _other_version(self, error: str) -> None:
        """Raise ConfigError where the verifier says so again on a fresh connection."""
        if self.welcome is not None:
            return
        if self._refused_version:
            raise ConfigError(f"the verifier at {self.address} refused this drafter: {error}: {UPDATE}")
        self._refused_version = True
        log.warning("other_version", error=error, meaning="asking again on a fresh connection")
        self.dealer.reconnect()
        self._greeting.due = time.monotonic()

    def _lost(self, reason: str) -> None:
        log.warning("verifier_lost", reason=reason)
        self._away(DaemonUnreachable(f"the verifier at {self.address} went away"))
        self.dealer.reconnect()
        self._greeting.lost(time.monotonic())

    def _away(self, error: SpecmeshError) -> None:
        if self.welcome is not None:
            self._stats.peer_lost()
        self.welcome = None
        self.sessions.load, self.sessions.meter = ReportedLoad(), PaceMeter()
        self._stats.unpublished = True
        self.sessions.lost(error, time.monotonic())


def _target(welcome: m.Welcome) -> str:
    return f"{welcome.vocab_fingerprint} {welcome.model}"
