"""One verifier of a drafter: connection, handshake, liveness, and the sessions there."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from specmesh.api.requests import ModelInfo, Peer, PingPeers
from specmesh.core import events as ev
from specmesh.core.drafting.verifier_choice import HelloTimer, PaceMeter, ReportedLoad, VerifierLoad
from specmesh.daemons.drafter.client_session import same_model
from specmesh.daemons.drafter.draft_sessions import CoreLoop, DrafterStats, DraftSessions
from specmesh.daemons.link.dealer import Dealer
from specmesh.daemons.link.peers import U32, Link
from specmesh.daemons.link.transport import UPDATE, Route, Traffic
from specmesh.daemons.link.vocabulary_handshake import VocabularyHandshake
from specmesh.engines.base import DraftEngine
from specmesh.errors import ConfigError, DaemonUnreachable, SpecmeshError
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")


class Upstream:
    """The verifier at `route`, over a socket of its own, in place `number` of `count`.

    speaking: where the draft engine that speaks this verifier's ids is put. core: the way into it. progress: what PONG
    tells of it.
    """

    def __init__(
        self,
        name: str,
        route: Route,
        place: tuple[int, int],
        introduction: VocabularyHandshake,
        stats: DrafterStats,
        traffic: Traffic,
        speaking: dict[int, DraftEngine],
        core: CoreLoop,
        progress: Callable[[], int],
    ) -> None:
        now = time.monotonic()
        self.address, self._name = route.address, name
        self.dealer = Dealer(route, traffic)
        self.introduction, self.link = introduction, Link(now)
        self.welcome: m.Welcome | None = None
        self.given_up: SpecmeshError | None = None
        self.sessions = DraftSessions(route.address, place, self.dealer, stats, core)
        self._number, self._stats, self._speaking, self._tell = place[0], stats, speaking, core.put
        self._told = ev.UpstreamChanged(self._number, 0.0, speaks=False)
        self._greeting = HelloTimer(random.random, now)
        self._round_trip, self._met, self._refused_version = 0.0, False, False
        self._own_at_load, self._progress = 0, progress

    # --- what it is

    @property
    def n_ctx(self) -> int:
        """Ids that a session can hold there; 0 while it is away."""
        return self.welcome.n_ctx if self.welcome is not None else 0

    @property
    def target(self) -> str:
        """Its name in `Request.target`; empty while it is away."""
        return f"{self.welcome.vocab_fingerprint} {self.welcome.model}" if self.welcome is not None else ""

    @property
    def served(self) -> ModelInfo | None:
        """Its model; None while it is away or its vocabulary unknown."""
        welcome, vocabulary = self.welcome, self.introduction.vocabulary
        if welcome is None or vocabulary is None:
            return None
        return ModelInfo(welcome.model, vocabulary, self.target)

    @property
    def refusal(self) -> str | None:
        """Why the verifier or our own keys keep this drafter out, or why it was given up."""
        return str(self.given_up) if self.given_up is not None else self.dealer.refusal

    @property
    def trouble(self) -> str:
        silent = f"the verifier at {self.address} does not answer: is it running, and reachable from here?"
        return self.refusal or silent

    def outlook(self, now: float) -> VerifierLoad:
        rounds, committed = self._stats.totals.rounds, self._stats.totals.committed
        length = max(committed / rounds, 1.0) if rounds else 1.0
        ours = self.sessions.own - self._own_at_load
        return VerifierLoad(self.sessions.load, ours, self._round_trip, self.sessions.meter.pace(now), length)

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

    # --- the connection

    def receive(self) -> bool:
        """Handle what has come; return whether any was more than ids. Raises ConfigError or RemoteProtocolError where
        this verifier is unusable."""
        more = False
        for message, size in self.dealer.receive():
            self.link.last_heard = now = time.monotonic()
            if isinstance(message, m.Truth | m.Sync | m.Nack):
                self.sessions.heard(message, size, now)
            elif message is not None:
                more = True
                self._message(message, size, now)
        return more

    def tick(self, now: float) -> bool:
        """Send what is due. Raises as `receive` does."""
        refusal = self.dealer.look(now)
        if refusal is not None:
            log.warning("refused", error=refusal)
            if self.welcome is not None:
                self._lost("refused")
        if self.welcome is not None and self.dealer.cut:
            self._lost("disconnected")
        if self.welcome is not None and self.link.silent(now):
            self._lost("silent")  # judged with the socket just emptied
        self.dealer.flush()
        if self.welcome is None:
            if now >= self._greeting.due:
                self._say_hello(now)
        elif now >= self.link.next_ping:
            self.dealer.send(m.Ping(self.link.ping(now), *self._state(now)))
        if self.introduction.engine is None:
            self.introduction.settle()
            if self.welcome is not None:
                self._ask_vocabulary(self.introduction.overdue(now))
        self._tell_changes(now)
        return False

    def probe(self, order: PingPeers, peer: Peer, now: float) -> None:
        self.dealer.send(m.Ping(self.link.ping(now, order.answer(peer)), *self._state(now)))

    def leave(self, error: SpecmeshError) -> None:
        self.given_up = error
        self.dealer.send(m.Bye())
        self._away(error)
        self.dealer.close()

    def stop(self, error: SpecmeshError) -> None:
        self.sessions.stop(error)
        if self.given_up is None:
            self.dealer.send(m.Bye())
            self.dealer.close()

    def _say_hello(self, now: float) -> None:
        if self._greeting.unanswered(now) and self.dealer.refusal is None:
            log.warning("verifier_not_answering", connect=self.address, meaning="trying on; is it running there?")
        if self._greeting.doubtful(now) and self.dealer.refusal is None:
            self.dealer.reconnect()
        self._greeting.said(now, sent=self.dealer.send(self.introduction.hello(self._name)) > 0)

    def _message(self, message: m.Message, size: int, now: float) -> None:
        match message:
            case m.Round() | m.Logprobs():
                self.sessions.add(message, size)
            case m.Done():
                self.sessions.done(message)
            case m.Opened():
                self.sessions.opened(message, now)
            case m.Welcome():
                self._welcomed(message, now)
            case m.Vocab():
                self._ask_vocabulary(self.introduction.answered(message, now))
            case m.Error():
                self._error(message)
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
        return self._progress() & U32, self._stats.minute.busy(now)

    def _tell_changes(self, now: float) -> None:
        """Tell the core the round trip, and whether the vocabulary is known."""
        engine = self.introduction.engine
        if engine is not None:
            self._speaking[self._number] = engine
            self.sessions.vocabulary = engine.vocabulary
        changed = ev.UpstreamChanged(self._number, self._round_trip, engine is not None)
        if changed != self._told:
            self._told = changed
            self._tell(changed, now)

    def _loaded(self, message: m.Ping | m.Pong) -> None:
        step_s, row_s = max(message.step_ms, 0.0) / 1e3, max(message.row_ms, 0.0) / 1e3
        self.sessions.load = ReportedLoad(message.sessions, message.queued, message.places, step_s, row_s)
        self._own_at_load = self.sessions.own

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        before, known = self.welcome, self.sessions.known
        if before is not None and before.verifier == welcome.verifier:
            self.welcome = self.sessions.known = replace(before, model_hash=welcome.model_hash or before.model_hash)
            return  # it got more than one HELLO, or knows its file's hash by now
        self.sessions.interrupt(DaemonUnreachable("the verifier started anew and has forgotten this session"))
        self.welcome = self.sessions.known = welcome
        if known is not None and not same_model(known, welcome):
            self._tell(ev.ForgetSlots(), now)
        if before is not None:
            self._stats.peer_lost()
        if self._met:
            self._stats.peer_came()
        self._met, self._refused_version = True, False
        self.dealer.next_look = now  # the last may have been before this connection, and have found none
        self._greeting.answered(now)
        self.link.next_ping = now
        log.info("verifier_found", verifier=welcome.verifier, model=welcome.model)
        self._ask_vocabulary(self.introduction.welcomed(welcome, now))
        self._tell_changes(now)

    def _ask_vocabulary(self, request: m.Vocab | None) -> None:
        if request is not None:
            self.dealer.send(request)

    def _error(self, error: m.Error) -> None:
        if error.ref and self.sessions.request_failed(error):
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
        self.sessions.interrupt(error)
