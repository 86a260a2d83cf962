"""The drafters attached to a verifier: who is there, and what each says."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, assert_never

import structlog

from specmesh.api.backend import Peer, PingPeers
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.events import Rows, Step
from specmesh.core.liveness import Departure, Link
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.requests import (
    ClientEvent,
    Failed,
    Finished,
    Scored,
    Started,
    Tokens,
    refusal_of,
    requested,
)
from specmesh.core.sampling.logprobs import flattened
from specmesh.core.session_params import TargetLimits, opened_options
from specmesh.core.statistics.daemon import VerifierStats
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, ClientsEffect
from specmesh.core.vocabulary.vocabulary import chunk
from specmesh.daemons.link.sockets import Router
from specmesh.daemons.runtime.loops import EngineLoop
from specmesh.daemons.runtime.process import note
from specmesh.engines.base import VerifyEngine
from specmesh.errors import Busy, SpecmeshError
from specmesh.security.curve import TcpConnection
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")

Heartbeat = TypeVar("Heartbeat", m.Ping, m.Pong)
CoreLoop = EngineLoop[vev.Happened, vev.Effect, Step, Sequence[Rows]]


@dataclass(frozen=True, slots=True)
class DrafterPeer:
    """A drafter attached to this verifier, the `number`-th to come. key_name: what the key that it has proved is called
    here, where keys are used. connection: where libzmq tells it."""

    identity: bytes
    hello: m.Hello
    link: Link
    number: int = 0
    address: str = ""
    key_name: str = ""
    connection: TcpConnection | None = None

    @property
    def end(self) -> Peer:
        return Peer(self.hello.drafter, self.address)

    def describe(self) -> dict[str, object]:
        """Return its part of `stats --json`, but for what the core has measured."""
        return {
            "number": self.number,
            "drafter": self.hello.drafter,
            "address": self.address,
            "key": self.key_name or None,
            "engine": self.hello.engine,
            "model": self.hello.model,
            "round_trip_ms": self.link.round_trips.percentiles_ms(50, 99),
            "busy": round(self.link.busy, 3),
            "no_drafts": NoDrafts.VOCABULARY if self.link.mute else None,
        }


class Drafters:
    """Attached drafters by identity, the oldest first: what they say becomes events of the core, what that says of
    their sessions becomes frames. While a step hangs PINGs and their answers stop. step_s: seconds of a step of one
    row, as sent to them."""

    def __init__(
        self,
        name: str,
        engine: VerifyEngine,
        limits: TargetLimits,
        router: Router,
        clients: Clients,
        act: Callable[[Sequence[ClientsEffect]], None],
        stats: VerifierStats,
        core: CoreLoop,
        model_hash: str,
        cores: ThreadShare,
        link: Callable[[float], Link],
    ) -> None:
        self._model_hash, self._link = model_hash, link
        self._name, self._info, self._limits = name, engine.info, limits
        self._vocabulary = engine.tokenizer.vocabulary
        self._fingerprint = self._vocabulary.fingerprint()
        self._cores, self._shared = cores, vev.ThreadsShared(cores.alone, cores.alone)
        self._router, self._clients, self._act, self._stats, self._core = (
            router,
            clients,
            act,
            stats,
            core,
        )
        self.peers: dict[bytes, DrafterPeer] = {}
        self._numbers = itertools.count(1)
        self.step_s = 0.0

    def look(self, now: float) -> None:
        """Do what is due: PINGs, and those that are gone."""
        gone = {
            peer.identity: why
            for peer in self.peers.values()
            if (why := peer.link.departure(now)) is not None
        }
        for identity, reason in (gone | self._router.take_gone()).items():
            self._peer_gone(identity, reason, now)
        due = [
            peer
            for peer in self.peers.values()
            if now >= peer.link.next_ping and not self._core.stuck
        ]
        for peer in due:
            self._ping(peer, now)
        if due:
            self._core.put(vev.Signal.REPORT_WANTED, now)  # what the next ones tell

    def send(self, order: vev.ToDrafter) -> None:
        traffic, peer = (
            self._clients.sessions.get(order.what.session),
            self.peers.get(order.drafter),
        )
        if peer is None:
            return
        size = self._router.send(order.drafter, order.what)
        peer.link.unread += size
        if traffic is not None:
            traffic.bytes_sent += size
            traffic.drafters.add(order.drafter)

    def leave(self) -> None:
        for identity in self.peers:
            self._router.send(identity, m.Bye())

    def ping_for(self, order: PingPeers, now: float) -> None:
        order.sent(peer.end for peer in self.peers.values())
        for peer in self.peers.values():
            self._ping(peer, now, partial(order.answered, peer.end))

    # --- what they say

    def receive(self) -> None:
        for identity, message, size in self._router.receive(time.monotonic()):
            now = time.monotonic()
            peer = self.peers.get(identity)
            if peer is not None:
                peer.link.last_frame_at = now
            match message:
                case None:
                    pass
                case m.Hello():
                    self._hello(identity, message, now)
                case m.Bye():
                    self._peer_gone(identity, Departure.STOPPED, now)
                case _ if peer is None:
                    self._router.traffic.handshake_failures["hello"] += 1
                    self._router.send(
                        identity, m.Error("hello", "introduce yourself with HELLO first")
                    )
                case _:
                    self._message(peer, message, size, now)

    def _message(self, peer: DrafterPeer, message: m.Message, size: int, now: float) -> None:
        match message:
            case m.Draft() | m.DraftProbs() | m.Nack():
                traffic = self._clients.sessions.get(message.session)
                if traffic is not None and peer.identity in traffic.drafters:
                    traffic.bytes_received += size
                self._core.put(vev.FromDrafter(peer.identity, message), now)
            case m.Open():
                self._open_for(peer, message, now)
            case m.Close(ref=ref) if ref:  # its client did not wait for a session
                self._act(self._clients.withdraw(peer.identity, ref))
            case m.Close():
                self._core.put(vev.SessionClosed(peer.identity, message.session), now)
            case m.Pause(session, paused):
                self._core.put(vev.SessionPaused(peer.identity, session, paused), now)
            case m.Vocab(start):
                pieces = chunk(self._vocabulary, start)
                peer.link.unread += self._router.send(peer.identity, m.Vocab(start, pieces))
            case m.Ping(number, busy):
                peer.link.note_busy(busy)
                self._heard_mute(peer, message, now)
                if not self._core.stuck:
                    self._router.send(peer.identity, self._heartbeat(m.Pong, number, now))
            case m.Pong(number, busy):
                self._heard_mute(peer, message, now)
                round_trip = peer.link.pong(number, busy, now)
                if round_trip is not None:
                    self._stats.round_trips.record(round_trip)
                    self._core.put(vev.RoundTrip(peer.identity, round_trip), now)
            case m.Hello() | m.Bye():
                pass  # dealt with before
            case (
                m.Welcome()
                | m.Opened()
                | m.Done()
                | m.Error()
                | m.Logprobs()
                | m.Truth()
                | m.Sync()
            ):
                self._router.traffic.rejected["direction"] += 1
                self._router.bad(peer.identity, now)
            case _:
                assert_never(message)

    def _heard_mute(self, peer: DrafterPeer, beat: m.Ping | m.Pong, now: float) -> None:
        """Note whether a drafter drafts at all, by a field of each PING and PONG."""
        muted = beat.no_drafts == NoDrafts.VOCABULARY
        if muted != peer.link.mute:
            peer.link.mute = muted
            self._core.put(vev.DrafterMuted(peer.identity, muted), now)

    def _hello(self, identity: bytes, hello: m.Hello, now: float) -> None:
        if self._core.stuck:
            return
        known = self.peers.get(identity)
        if known is not None and known.hello == hello:
            self._router.send(
                identity, self._welcome(hello)
            )  # it asked more than once while nobody listened
            return
        self._peer_gone(identity, Departure.HELLO_AGAIN, now)
        key = self._router.proved_key()
        try:
            self._router.accounts.attach(identity, key)
        except Busy as error:
            self._router.send(identity, m.Error("busy", str(error)))
            return
        router, number = self._router, next(self._numbers)
        proved = router.name_of(key), TcpConnection.of(router.inlet.known)
        self.peers[identity] = peer = DrafterPeer(
            identity, hello, self._link(now), number, router.sender(), *proved
        )
        self._stats.peer_came()
        self._share_cores(now)
        self._router.send(identity, self._welcome(hello))
        self._ping(peer, now)
        log.info("drafter_attached", drafter=hello.drafter, engine=hello.engine, model=hello.model)
        if hello.n_ctx < self._limits.n_ctx:
            meaning = (
                f"texts of more tokens get no drafts from it: give it --ctx {self._limits.n_ctx}"
            )
            log.warning("drafter_context_is_smaller", n_ctx=hello.n_ctx, meaning=meaning)
        self._core.put(vev.DrafterJoined(identity, hello.n_ctx, hello.drafter), now)

    def _welcome(self, hello: m.Hello) -> m.Welcome:
        """Return WELCOME, with the host's name only for who knows it: its holder may claim this host's cores."""
        limits = self._limits
        host = self._cores.host if hello.host == self._cores.host else ""
        return m.Welcome(
            verifier=self._name,
            model=self._info.model,
            model_hash=self._model_hash,
            vocab_fingerprint=self._fingerprint,
            n_vocab=limits.n_vocab,
            n_ctx=limits.n_ctx,
            end_ids=sorted(limits.end_ids),
            host=host,
            cpu_threads=self._cores.threads,
        )

    def _share_cores(self, now: float) -> None:
        cores, peers = self._cores, self.peers
        note(cores.beside(peer.hello for peer in peers.values()))
        here = frozenset(
            identity for identity, peer in peers.items() if cores.shared_with(peer.hello)
        )
        shared = vev.ThreadsShared(cores.alone, cores.threads, here)
        if shared != self._shared:
            self._shared = shared
            self._core.put(shared, now)

    def _ping(
        self, peer: DrafterPeer, now: float, answer: Callable[[float], None] | None = None
    ) -> None:
        self._router.send(peer.identity, self._heartbeat(m.Ping, peer.link.ping(now, answer), now))

    def _heartbeat(self, kind: type[Heartbeat], number: int, now: float) -> Heartbeat:
        """Return a PING or PONG with the verifier's load."""
        return kind(
            number,
            self._stats.busy.share(now),
            sessions=len(self._clients.owners()),
            queued=len(self._clients.waiting),
            max_sessions=self._info.max_sessions,
            step_ms=round(self.step_s * 1e3, 4),
        )

    def _peer_gone(self, identity: bytes, reason: Departure, now: float) -> None:
        """Let a drafter go, if it is one, with a connection that its own end may never end. One without a way to it
        has none: what was taken for its connection may be another's."""
        peer = self.peers.pop(identity, None)
        if peer is None:
            return
        self._router.accounts.keys.pop(identity, None)
        if reason.cuts and peer.connection is not None:
            peer.connection.cut()
        self._stats.peer_lost()
        log.info("drafter_gone", drafter=peer.hello.drafter, reason=reason)
        self._share_cores(now)
        self._clients.abandon(identity)
        self._core.put(vev.DrafterLeft(identity, reason.may_return), now)

    def _open_for(self, peer: DrafterPeer, order: m.Open, now: float) -> None:
        identity = peer.identity
        client = RemoteClient(lambda message: self._router.send(identity, message), order)
        try:
            self._router.accounts.limits(identity).check_open(now)
            request = requested(order)
        except SpecmeshError as error:
            client.on_event(Failed(error))
            return
        self._act(
            self._clients.open(
                request,
                client,
                identity,
                order.ref,
                self._router.accounts.keys[identity],
                tenant=(identity, order.ref),
            )
        )


class RemoteClient:
    """The client of a session that a drafter asked for: `say` sends it a frame."""

    def __init__(self, say: Callable[[m.ControlMessage], object], order: m.Open) -> None:
        self._say, self._ref, self._session = say, order.ref, 0

    def on_event(self, event: ClientEvent) -> None:
        """Send what TRUTH does not."""
        match event:
            case Started(session, prompt_tokens, _, params):
                assert params is not None, "a verifier knows them"
                self._session = session
                self._say(m.Opened(session, self._ref, prompt_tokens, opened_options(params)))
            case Scored(logprobs):
                for at, flat in flattened(logprobs, m.MAX_LOGPROBS):
                    chosen, top_ids, top = flat
                    self._say(
                        m.Logprobs(
                            session=self._session,
                            base=1 + at,
                            chosen=chosen,
                            top_ids=top_ids,
                            top=top,
                        )
                    )
            case Tokens() | Finished():
                pass  # TRUTH and DONE were sent
            case Failed(error):
                code, message, param = refusal_of(error)
                self._say(m.Error(code, message, self._ref, param))
            case _:
                assert_never(event)
