"""The connection to a verifier: its frames become calls of an `Upstream`, whose effects become frames."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import assert_never

import structlog

from specmesh.api.backend import Peer, PingPeers
from specmesh.core import events as ev
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.fields import Json
from specmesh.core.liveness import Greeting, Link
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.requests import Reply, error_of
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.session_params import wire_params
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.statistics.snapshot import WireSection
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.dealer import Dealer, Route
from specmesh.daemons.link.names import LookedUp, NameLookups
from specmesh.daemons.link.sockets import UPDATE
from specmesh.daemons.link.vocabulary_handshake import VocabularyHandshake
from specmesh.daemons.runtime.loops import EngineLoop
from specmesh.daemons.runtime.process import note
from specmesh.engines.base import DraftEngine
from specmesh.engines.grammar import Grammars
from specmesh.errors import Busy, RemoteProtocolError, RequestError, SpecmeshError
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")

MAX_UNHEARD = (
    8 * 2**20
)  # bytes of frames that wait for a core in a step; those beyond are lost, as on a wire

CoreLoop = EngineLoop[ev.CoreEvent, ev.CoreEffect, ev.DraftStep, ev.DraftedRows]


class UpstreamLink:
    """The verifier at `route`, over a socket of its own, in place `number` of `count`. speaking:
    where the draft engine that speaks this verifier's ids is put. core: the way into it.
    lookups: of the names of verifiers' hosts."""

    def __init__(
        self,
        name: str,
        route: Route,
        place: tuple[int, int],
        engine: DraftEngine,
        cores: ThreadShare,
        stats: DrafterStats,
        traffic: WireSection,
        speaking: dict[int, DraftEngine],
        core: CoreLoop,
        lookups: NameLookups,
    ) -> None:
        now = time.monotonic()
        self.numbers, self._lookups = route.numbers, lookups
        self.dealer, self.link = Dealer(route, traffic), Link(now)
        self.introduction = VocabularyHandshake(engine, route.address, cores, self.dealer.send)
        self.upstream = Upstream(route.address, place, stats, engine.info.n_ctx)
        self._name, self._number, self._stats, self._speaking = name, place[0], stats, speaking
        self._core, self._unheard = core, 0
        self._grammars = DraftGrammars(core)
        self._greeting = Greeting(now)
        self._outdated: str | None = None  # why it cannot be spoken with

    @property
    def peer(self) -> Peer | None:
        """What a PING is answered by; None while it is away."""
        info = self.upstream.info
        return Peer(info.verifier, self.upstream.address) if info is not None else None

    def describe(self) -> Json:
        """Return its part of `stats --json`."""
        upstream, match, link = self.upstream, self.introduction.comparison, self.link
        info, load = upstream.info, upstream.load
        return {
            "address": upstream.address,
            "name": info.verifier if info is not None else None,
            "model": info.model if info is not None else None,
            "refusal": upstream.refusal,
            "no_drafts": upstream.no_drafts,
            "encrypted": self.dealer.encrypted,
            "vocabulary": {"verdict": str(match.verdict), "overlap": round(match.overlap, 4)}
            if match
            else None,
            "round_trip_ms": link.round_trips.percentiles_ms(50, 99),
            "busy": round(link.busy, 3),
            "sessions": {"live": len(upstream.live), "own": upstream.own},
            "load": {
                "sessions": load.sessions,
                "queued": load.queued,
                "max_sessions": load.max_sessions or None,
            },
        }

    # --- frames that come

    def receive(self) -> bool:
        """Handle what has come; return whether any was more than ids."""
        more = False
        for message, size in self.dealer.receive():
            self.link.last_frame_at = now = time.monotonic()
            if isinstance(message, m.Truth | m.Sync | m.Nack):
                if self._has_room(message.session, size):
                    self._core.put(self.upstream.heard(message, size), now)
            elif message is not None:
                more = True
                self._message(message, size, now)
                self.carry_out(now)
        return more

    def _has_room(self, session: int, size: int) -> bool:
        """Return False for a frame that cannot be kept for the core, which has been in a step for too many of them, or
        that is of no session here."""
        if session not in self.upstream.live:
            return False
        self._unheard = self._unheard + size if self._core.behind else size
        if self._unheard <= MAX_UNHEARD:
            return True
        self.dealer.traffic.rejected["backlog"] += 1
        return False

    def _message(
        self, message: m.ControlMessage | m.Draft | m.DraftProbs, size: int, now: float
    ) -> None:
        upstream = self.upstream
        match message:
            case m.Logprobs():
                if self._has_room(message.session, size):
                    upstream.logprobs(message)
            case m.Done():
                upstream.done(message)
            case m.Opened():
                self._opened(message)
            case m.Welcome():
                self._welcomed(message, now)
            case m.Vocab():
                self.introduction.answered(message, now)
            case m.Error(code, text, ref, param):
                self._error(code, error_of(code, text, param), ref, now)
            case m.Bye():
                self._lost("stopped", now)
            case m.Ping(number, busy):
                self.link.note_busy(busy)
                upstream.load = message
                if not self._core.stuck:
                    self.dealer.send(
                        m.Pong(number, self._stats.busy.share(now), no_drafts=self._no_drafts)
                    )
            case m.Pong(number, busy):
                upstream.load = message
                round_trip = self.link.pong(number, busy, now)
                if round_trip is not None:
                    self._stats.round_trips.record(round_trip)
                    upstream.round_trip = self.link.round_trips.percentile(50) or 0.0
            case m.Hello() | m.Open() | m.Close() | m.Pause() | m.Draft() | m.DraftProbs():
                self.dealer.traffic.rejected["direction"] += 1
            case _:
                assert_never(message)

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        self._greeting.answered()
        self._outdated = None
        if self.upstream.welcomed(welcome, now):
            self.carry_out(now)
            self.dealer.next_look = (
                now  # the last may have been before this connection, and have found none
            )
            self.link.next_ping = now
            self.introduction.welcomed(welcome, now)
            self._tell_vocabulary(now)

    def _opened(self, opened: m.Opened) -> None:
        """Take up a session; leave one whose options no session can have."""
        try:
            params = wire_params(opened.options)
        except RequestError as error:
            self.dealer.traffic.rejected["body"] += 1
            self.dealer.send(m.Close(opened.session))
            self.upstream.request_failed(opened.ref, RemoteProtocolError(str(error)))
        else:
            self.upstream.opened(opened.session, opened.ref, opened.prompt_tokens, params)

    # --- what is due

    def tick(self, now: float) -> None:
        """Send what is due."""
        refused = self.dealer.look(now)
        if refused is not None:
            log.warning("refused", error=refused)
            self._lost("refused", now)
        elif self.dealer.cut or self.link.silent(
            now
        ):  # silence is judged with the socket just emptied
            self._lost("disconnected" if self.dealer.cut else "silent", now)
        self._find(now)
        if self._core.stuck:  # silence is what shows it
            return
        if self.upstream.info is None:
            self._greet(now)
        elif now >= self.link.next_ping:
            self._ping(self.link.ping(now), now)
        self.introduction.look(now, there=self.upstream.info is not None)
        self._tell_vocabulary(now)

    def looked_up(self, found: LookedUp, now: float) -> None:
        """Take the answer of a look-up, if it was of this verifier's host."""
        if found.host != self.numbers.host:
            return
        if found.numbers:
            self.numbers.answered(found.numbers, now)
        else:
            self.numbers.failed(found.trouble, now)
        self._find(now)

    def _find(self, now: float) -> None:
        """Look the name up, and try the next number, as far as that is due."""
        there = self.upstream.info is not None
        if self.numbers.due(now, there=there):
            self._lookups.begin(self.numbers.host)
        if self.numbers.moves(now, there=there):
            self.dealer.reconnect()
            self._greeting.begins(now)

    def ping_for(self, order: PingPeers, peer: Peer, now: float) -> None:
        self._ping(self.link.ping(now, partial(order.answered, peer)), now)

    def _ping(self, number: int, now: float) -> None:
        busy = self._stats.busy.share(now)
        self.dealer.send(m.Ping(number, busy, no_drafts=self._no_drafts))

    @property
    def _no_drafts(self) -> str:
        """Return why this drafter drafts nothing here, as PING and PONG have it."""
        suits = not (self.introduction.foreign or self.introduction.unusable)
        return "" if suits else NoDrafts.VOCABULARY

    def stop(self) -> None:
        self._grammars.close()
        self.dealer.send(m.Bye())
        self.dealer.close()

    def _greet(self, now: float) -> None:
        if not self._greeting.due(now, _share()):
            return
        refused = self.dealer.refusal or self._outdated
        if refused is None and self._greeting.doubtful(now):
            meaning = f"{self.upstream.trouble} It is tried on over a fresh connection"
            log.warning("verifier_not_answering", connect=self.upstream.address, meaning=meaning)
            self.dealer.reconnect()
        if self.dealer.send(self.introduction.hello(self._name)):
            self._greeting.sent()

    def _lost(self, reason: str, now: float) -> None:
        """Note that the verifier went away, if it was there."""
        if self.upstream.info is not None:
            self.upstream.lost(reason, now)
            self.dealer.reconnect()
            self._greeting.lost(now)
            self.carry_out(now)

    def _error(self, code: str, error: SpecmeshError, ref: int, now: float) -> None:
        """Handle an ERROR; a verifier of another version may be updated, so it is greeted on."""
        if self.upstream.request_failed(ref, error):
            return
        if code == "hello":
            self._lost(str(error), now)
        elif code != "version":
            log.warning("verifier_error", code=code, message=str(error))
        elif self.upstream.info is None:
            self._greeting.refused(now, _share())
            before, address = self._outdated, self.upstream.address
            self._outdated = f"the verifier at {address} refused this drafter: {error}: {UPDATE}"
            if self._outdated != before:
                log.error("verifier_of_another_version", error=self._outdated)
            self.carry_out(now)

    def _tell_vocabulary(self, now: float) -> None:
        """Pass on to the core and the verifier how far the vocabulary is known."""
        introduction, upstream = self.introduction, self.upstream
        if introduction.foreign != upstream.foreign or introduction.unusable != upstream.unusable:
            self.link.next_ping = now  # it says so
        upstream.foreign, upstream.unusable = introduction.foreign, introduction.unusable
        engine = introduction.engine
        if engine is not None:
            self._speaking[self._number] = engine
        upstream.speaks(introduction.vocabulary, ready=engine is not None)
        self.carry_out(now)

    # --- what is decided

    def from_core(self, key: int, said: ev.SessionEffect, now: float) -> bool:
        """Carry out what the core says to a session, unless that is over here; return whether it ended by that."""
        live = self.upstream.sessions.get(key)
        if live is None:
            return False
        match said:
            case m.Draft() | m.DraftProbs() | m.Nack():
                live.bytes_sent += self.dealer.send(said)
            case Grammar():
                self._grammars.compile(self._speaking[self._number].vocabulary, said, key)
            case ev.Learned() | ev.FollowUp() | ev.Noted():
                over = self.upstream.from_core(live, said, now)
                self.carry_out(now)
                return over
            case _:
                assert_never(said)
        return False

    def carry_out(self, now: float) -> bool:
        """Do what the upstream has decided, and tell it what kept that from being done; return whether a request is to
        be placed anew."""
        unsent, self.upstream.kept_out = False, self.dealer.refusal or self._outdated
        self.upstream.unknown = self.numbers.trouble
        for effect in self.upstream.take_effects():
            match effect:
                case m.Open():
                    unsent |= self._ask(effect)
                case m.Close() | m.Pause():
                    self.dealer.send(effect)
                case ev.DraftFor() | ev.FollowUp() | ev.Dropped() | ev.UpstreamChanged():
                    self._core.put(effect, now)
                case Reply(client, event):
                    client.on_event(event)
                case ev.Noted():
                    note(effect)
                case _:
                    assert_never(effect)
        return unsent

    def _ask(self, order: m.Open) -> bool:
        """Ask for a session; return whether that cannot be."""
        error: SpecmeshError = Busy(
            f"the verifier at {self.upstream.address} takes no requests now", "try again"
        )
        try:
            if self.dealer.send(order):
                return False
        except ValueError as wrong:
            error = RequestError(
                f"the request is longer than what a drafter can pass on ({wrong}): ask the verifier"
            )
        return self.upstream.request_failed(order.ref, error)


def _share() -> float:
    """Return which part of a pause this one takes: drafters must not speak in chorus."""
    return random.uniform(0.5, 1)  # noqa: S311  (a pause is no secret)


class DraftGrammars:
    """Compiles grammars on a thread of its own: neither frames nor drafts wait for them."""

    def __init__(self, core: CoreLoop) -> None:
        self._core = core
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._grammars: tuple[Vocabulary, Grammars] | None = None

    def compile(self, vocabulary: Vocabulary | None, grammar: Grammar, key: int) -> None:
        """Tell the core of a session's grammar once it is compiled; an engine that knows ids only needs none."""
        if vocabulary is not None:
            self._pool.submit(self._compile, vocabulary, grammar, key)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars[1].close()

    def _compile(self, vocabulary: Vocabulary, grammar: Grammar, key: int) -> None:
        try:
            if self._grammars is None or self._grammars[0] is not vocabulary:
                if self._grammars is not None:
                    self._grammars[1].close()
                self._grammars = vocabulary, Grammars(vocabulary)
            compiled = self._grammars[1].compile(grammar)
        except Exception as error:  # noqa: BLE001  (whatever it is, drafts go on without)
            log.warning(
                "grammar_unknown", session=key, error=str(error), meaning="its drafts go without"
            )
        else:
            self._core.put(ev.CompiledGrammar(key, compiled), time.monotonic())
