"""The connection to a verifier: frames become events of an `Upstream`, its effects frames."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import structlog

from specmesh.api.backend import Peer, PingPeers
from specmesh.core import events as ev
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.drafter import upstream_events as uev
from specmesh.core.drafter.placement import (
    PlacementEffect,
    PlacementEnded,
    PlacementLost,
    PlacementOpened,
    PlacementRefused,
)
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.drafter.window import Windows
from specmesh.core.fields import Json
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.liveness import Greeting, Link
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.request_frames import error_of
from specmesh.core.requests import Reply
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.session_params import wire_params
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.statistics.snapshot import WireSection
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.dealer import Dealer, Route
from specmesh.daemons.link.names import LookedUp, NameLookups
from specmesh.daemons.link.sockets import UPDATE
from specmesh.daemons.link.vocabulary_handshake import VocabularyHandshake
from specmesh.daemons.runtime.facts import note
from specmesh.daemons.runtime.loops import EngineLoop
from specmesh.engines.base import DraftEngine
from specmesh.engines.grammar_compiler import GrammarCompiler, grammar_compiler
from specmesh.errors import Busy, RemoteProtocolError, RequestError, SpecmeshError
from specmesh.wire import messages as m
from specmesh.wire.codec import write_body

log = structlog.get_logger("specmesh.drafter")

CoreLoop = EngineLoop[ev.CoreEvent, ev.CoreEffect, ev.DraftStep, ev.DraftedRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """The parts of a drafter that the links to all its verifiers share.

    name: of the drafter. cores: its share of the host's. core: the way into its core.
    speaking: the draft engine in the ids of each verifier, by place, once there is one.
    lookups: of the names of verifiers' hosts. windows: of texts, that the draft model reads.
    give_back: tells the router what has become of a request at a verifier.
    """

    name: str
    engine: DraftEngine
    cores: ThreadShare
    stats: DrafterStats
    traffic: WireSection
    speaking: dict[int, DraftEngine]
    core: CoreLoop
    lookups: NameLookups
    windows: Windows
    give_back: Callable[[PlacementEffect, float], None]


class UpstreamLink:
    """The verifier at `route`, over a socket of its own; number: its place in the settings."""

    def __init__(self, route: Route, number: int, shared: SharedParts) -> None:
        now = time.monotonic()
        engine = shared.engine
        self.numbers = route.numbers
        self.dealer = Dealer(route, shared.traffic)
        self.link = Link(now)
        self._grammars = DraftGrammars(shared.core)
        self.vocabularies = VocabularyHandshake(
            engine=engine,
            address=route.address,
            cores=shared.cores,
            ask=self.dealer.send,
            prepare=self._grammars.prepare,
            any_length=shared.windows.any_length,
        )
        n_ctx = ANY_LENGTH if shared.windows.any_length else engine.info.n_ctx
        self.upstream = Upstream(route.address, number, shared.stats, write_body, n_ctx)
        self._lookups = shared.lookups
        self._name = shared.name
        self._number = number
        self._stats = shared.stats
        self._speaking = shared.speaking
        self._core = shared.core
        self._give_back = shared.give_back
        self._bytes_sent = Counter[ev.SessionKey]()  # of sessions that the core has
        self._barred = uev.UpstreamBarred(None, "")  # as the upstream knows it
        self._greeting = Greeting(now)
        self._outdated: str | None = None  # why its version cannot be used

    @property
    def peer(self) -> Peer | None:
        """Return the verifier's name and address; None while it is away."""
        facts = self.upstream.facts
        return Peer(facts.info.verifier, facts.address) if facts.info is not None else None

    def describe(self) -> Json:
        """Return its part of `stats --json`."""
        upstream = self.upstream
        facts = upstream.facts
        match = self.vocabularies.comparison
        link = self.link
        info = facts.info
        load = facts.load
        vocabulary: Json | None = None
        if match:
            vocabulary = {"verdict": str(match.verdict), "overlap": round(match.overlap, 4)}
        return {
            "address": facts.address,
            "name": info and info.verifier,
            "model": info and info.model,
            "model_hash": info and (info.model_hash or None),
            "refusal": facts.refusal,
            "no_drafts": upstream.no_drafts,
            "encrypted": self.dealer.encrypted,
            "vocabulary": vocabulary,
            "round_trip_ms": link.round_trips.percentiles_ms(50, 99),
            "busy": round(link.busy, 3),
            "sessions": {"live": len(upstream.draft_ns), "own": upstream.own},
            "load": {
                "sessions": load.sessions,
                "queued": load.queued,
                "max_sessions": load.max_sessions or None,
            },
        }

    # --- frames that come

    def receive(self) -> bool:
        """Handle the frames that have come; return whether any was more than ids."""
        more = False
        for message, size in self.dealer.receive():
            now = time.monotonic()
            self.link.last_frame_at = now
            if isinstance(message, m.Truth | m.Sync | m.Nack):
                self.handle(uev.SessionFrame(message, size, not self._core.inbox), now)
            elif message is not None:
                more = True
                self._message(message, size, now)
                self._bar(now)
        return more

    def handle(self, event: uev.UpstreamEvent, now: float) -> None:
        """Have the upstream take an event, and carry out what follows."""
        effects = self.upstream.handle(event, now)
        if effects:
            self.carry_out(effects, now)

    def _message(
        self, message: m.ControlMessage | m.Draft | m.DraftProbs | m.Ids, size: int, now: float
    ) -> None:
        match message:
            case m.Logprobs():
                self.handle(uev.LogprobsCame(message, size), now)
            case m.Progress() | m.Done():
                self.handle(message, now)
            case m.Opened():
                self._opened(message, now)
            case m.Welcome():
                self._greeting.answered()
                self._outdated = None
                self.handle(message, now)
            case m.Vocab():
                self.vocabularies.answered(message, now)
            case m.Error(code, text, ref, param):
                self.handle(uev.ErrorCame(ref, error_of(code, text, param), code), now)
            case m.Bye():
                self._lost("stopped", now)
            case m.Ping(number, busy):
                self.link.note_busy(busy)
                self.handle(message, now)
                if not self._core.stuck:
                    self.dealer.send(
                        m.Pong(number, self._stats.busy.share(now), no_drafts=self._no_drafts)
                    )
            case m.Pong(number, busy):
                self.handle(message, now)
                round_trip = self.link.pong(number, busy, now)
                if round_trip is not None:
                    self._stats.round_trips.record(round_trip)
                    measured = self.link.round_trips.percentile(50) or 0.0
                    self.handle(uev.UpstreamMeasured(measured), now)
            case m.Hello() | m.Open() | m.Close() | m.Pause() | m.Body():
                self.dealer.traffic.rejected["direction"] += 1
            case m.Draft() | m.DraftProbs() | m.Ids():
                self.dealer.traffic.rejected["direction"] += 1
            case _:
                assert_never(message)

    def _found(self, welcome: m.Welcome, now: float) -> None:
        """Begin with a verifier that was not there before."""
        # The last look may have been before this connection, and have found none.
        self.dealer.look_at(now)
        self.link.ping_at(now)
        self.vocabularies.welcomed(welcome, now)
        self._share_vocabulary(now)

    def _opened(self, opened: m.Opened, now: float) -> None:
        """Take up a session; leave one whose options no session can have."""
        try:
            params = wire_params(opened.options)
        except RequestError as error:
            self.dealer.traffic.rejected["body"] += 1
            self.dealer.send(m.Close(opened.session))
            self.handle(uev.ErrorCame(opened.ref, RemoteProtocolError(str(error))), now)
        else:
            event = uev.SessionOpened(opened.session, opened.ref, opened.prompt_tokens, params)
            self.handle(event, now)

    # --- work that is due

    def tick(self, now: float) -> None:
        """Send the frames that are due, and notice a verifier that went away."""
        refused = self.dealer.look(now)
        if refused is not None:
            log.warning("refused", error=refused)
            self._lost("refused", now)
        elif self.dealer.cut:
            self._lost("disconnected", now)
        elif self.link.silent(now):  # the socket has just been emptied
            self._lost("silent", now)
        self._find(now)
        self._bar(now)
        if self._core.stuck:
            return  # peers see by the silence that this drafter is stuck
        there = self.upstream.facts.info is not None
        if not there:
            self._greet(now)
        elif now >= self.link.next_ping:
            self._ping(self.link.ping(now), now)
        self.vocabularies.look(now, there=there)
        self._share_vocabulary(now)

    def looked_up(self, found: LookedUp, now: float) -> None:
        """Take the answer of a look-up, if it was for this verifier's host."""
        if found.host != self.numbers.host:
            return
        if found.numbers:
            self.numbers.answered(found.numbers, now)
        else:
            self.numbers.failed(found.trouble, now)
        self._find(now)

    def _find(self, now: float) -> None:
        """Look the name up, and try the next number, as far as that is due."""
        there = self.upstream.facts.info is not None
        if self.numbers.due(now, there=there):
            self._lookups.begin(self.numbers.host)
        if self.numbers.moves(now, there=there):
            self.dealer.reconnect()
            self._greeting.begins(now)

    def ping_for(self, order: PingPeers, peer: Peer, now: float) -> None:
        """Send a PING; `order` gets the round trip."""
        self._ping(self.link.ping(now, partial(order.answered, peer)), now)

    def _ping(self, number: int, now: float) -> None:
        busy = self._stats.busy.share(now)
        self.dealer.send(m.Ping(number, busy, no_drafts=self._no_drafts))

    @property
    def _no_drafts(self) -> str:
        """Return why this drafter drafts nothing here, as PING and PONG have it."""
        suits = not (self.vocabularies.foreign or self.vocabularies.unusable)
        return "" if suits else NoDrafts.VOCABULARY

    def stop(self) -> None:
        """Leave the verifier."""
        self._grammars.close()
        self.vocabularies.close()
        self.dealer.send(m.Bye())
        self.dealer.close()

    def _greet(self, now: float) -> None:
        if not self._greeting.due(now, _share()):
            return
        refused = self.dealer.refusal or self._outdated
        if refused is None and self._greeting.doubtful(now):
            facts = self.upstream.facts
            meaning = f"{facts.trouble} It is tried again over a fresh connection"
            log.warning("verifier_not_answering", connect=facts.address, meaning=meaning)
            self.dealer.reconnect()
        if self.dealer.send(self.vocabularies.hello(self._name)):
            self._greeting.sent()

    def _lost(self, reason: str, now: float) -> None:
        """Note that the verifier went away, if it was there."""
        if self.upstream.facts.info is not None:
            effects = self.upstream.handle(uev.VerifierLost(reason), now)
            self.dealer.reconnect()
            self._greeting.lost(now)
            self.carry_out(effects, now)

    def _error(self, code: str, error: SpecmeshError, now: float) -> None:
        """Handle an ERROR about the connection.

        A verifier of another version is greeted again, since it may be updated.
        """
        if code == "hello":
            self._lost(str(error), now)
        elif code != "version":
            log.warning("verifier_error", code=code, message=str(error))
        elif self.upstream.facts.info is None:
            self._greeting.refused(now, _share())
            before = self._outdated
            address = self.upstream.facts.address
            self._outdated = f"the verifier at {address} refused this drafter: {error}: {UPDATE}"
            if self._outdated != before:
                log.error("verifier_of_another_version", error=self._outdated)

    def _bar(self, now: float) -> None:
        """Tell the upstream why no connection can be made, or that it can, if that is new."""
        barred = uev.UpstreamBarred(self.dealer.refusal or self._outdated, self.numbers.trouble)
        if barred != self._barred:
            self._barred = barred
            self.handle(barred, now)

    def _share_vocabulary(self, now: float) -> None:
        """Pass on to the core and the verifier how far the vocabulary is known."""
        vocabularies = self.vocabularies
        engine = vocabularies.engine
        if engine is not None:
            self._speaking[self._number] = engine
        compared = uev.VocabularyCompared(
            vocabularies.vocabulary,
            foreign=vocabularies.foreign,
            unusable=vocabularies.unusable,
            ready=engine is not None,
        )
        self.handle(compared, now)

    # --- effects

    def from_core(self, key: ev.SessionKey, effect: ev.SessionEffect, now: float) -> None:
        """Carry out an effect of the core; those for a session that is over here are dropped."""
        match effect:
            case m.Draft() | m.DraftProbs() | m.Nack():
                if self.upstream.has(key):
                    self._bytes_sent[key] += self.dealer.send(effect)
            case Grammar():
                if self.upstream.has(key):
                    self._grammars.compile(self._speaking[self._number].vocabulary, effect, key)
            case ev.DraftingEnded():
                sent = self._bytes_sent.pop(key, 0)
                self.handle(uev.FromDraftCore(key, effect, sent), now)
            case ev.Learned() | ev.Noted():
                self.handle(uev.FromDraftCore(key, effect), now)
            case _:
                assert_never(effect)

    def carry_out(self, effects: Iterable[uev.UpstreamEffect], now: float) -> None:
        """Carry out effects of the upstream."""
        for effect in effects:
            match effect:
                case ev.FrameReceived() | ev.OpenSession() | ev.CloseSession():
                    self._core.put(effect, now)
                case ev.UpstreamChanged():
                    self._core.put(effect, now)
                case m.Open():
                    self._ask(effect, now)
                case m.Ids() | m.Body() | m.Close() | m.Pause():
                    self.dealer.send(effect)
                case Reply(client, event):
                    client.on_event(event)
                case PlacementOpened() | PlacementRefused() | PlacementLost() | PlacementEnded():
                    self._give_back(effect, now)
                case ev.Noted():
                    note(effect)
                case uev.FrameRejected(reason):
                    self.dealer.traffic.rejected[reason] += 1
                case uev.VerifierFound(welcome):
                    self._found(welcome, now)
                case uev.ReasonChanged():
                    self.link.ping_at(now)
                case uev.ErrorCame(_, error, code):
                    self._error(code, error, now)
                case _:
                    assert_never(effect)

    def _ask(self, order: m.Open, now: float) -> None:
        """Send a request for a session, which is refused if it cannot be sent."""
        if self.dealer.send(order):
            return
        address = self.upstream.facts.address
        error = Busy(f"the verifier at {address} takes no requests now", "try again")
        self.handle(uev.ErrorCame(order.ref, error), now)


def _share() -> float:
    """Return the share of a pause that this one takes: drafters must not greet in chorus."""
    return random.uniform(0.5, 1)  # noqa: S311  (a pause is no secret)


class DraftGrammars:
    """Compiles grammars on a thread of its own, so that neither frames nor drafts wait."""

    def __init__(self, core: CoreLoop) -> None:
        self._core = core
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._lock = threading.Lock()
        self._closed = False
        self._grammars: tuple[Vocabulary, GrammarCompiler] | None = None

    def prepare(self, vocabulary: Vocabulary) -> None:
        """Make now what the first grammar in a vocabulary would wait for, and all drafts with it.

        Any thread may call it.
        """
        grammars = self._of(vocabulary)
        if grammars is not None:
            grammars.prepare()

    def compile(self, vocabulary: Vocabulary | None, grammar: Grammar, key: ev.SessionKey) -> None:
        """Hand a session's grammar to the core once it is compiled.

        Without a vocabulary the engine knows only ids, and needs no grammar.
        """
        if vocabulary is not None:
            self._pool.submit(self._compile, vocabulary, grammar, key)

    def close(self) -> None:
        """Compile no more. A grammar that is compiled now is dropped."""
        with self._lock:
            self._closed = True
            self._drop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, vocabulary: Vocabulary, grammar: Grammar, key: ev.SessionKey) -> None:
        grammars = self._of(vocabulary)
        if grammars is None:
            return
        try:
            compiled = grammars.compile(grammar)
        except Exception as error:  # noqa: BLE001  (drafts go on without it)
            if not self._closed:
                log.warning(
                    "grammar_unknown",
                    session=key.number,
                    error=str(error),
                    meaning="its drafts ignore the grammar",
                )
        else:
            self._core.put(ev.CompiledGrammar(key, compiled), time.monotonic())

    def _of(self, vocabulary: Vocabulary) -> GrammarCompiler | None:
        """Return the grammars of a vocabulary, in the place of another's; None after `close`."""
        with self._lock:
            if self._closed:
                return None
            if self._grammars is None or self._grammars[0] != vocabulary:
                self._drop()
                self._grammars = vocabulary, grammar_compiler(vocabulary)
            return self._grammars[1]

    def _drop(self) -> None:
        if self._grammars is not None:
            self._grammars[1].close()
            self._grammars = None
