"""The drafters attached to a verifier: their frames, links, and clients."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar, assert_never

import structlog

from specmesh.api.backend import Peer, PingPeers
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.fields import Json
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.liveness import Departure, Link
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.request_frames import refusal_of, requested
from specmesh.core.requests import (
    ClientEvent,
    Failed,
    Finished,
    PromptRead,
    Scored,
    Started,
    Tokens,
)
from specmesh.core.session_params import opened_options
from specmesh.core.statistics.daemon import VerifierStats
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, ClientsEffect
from specmesh.core.verifier.incoming_open import IncomingOpen
from specmesh.core.verifier.outgoing_frames import OutgoingFrames
from specmesh.core.verifier.session_context import logprobs_frames
from specmesh.core.vocabulary.vocabulary import Vocabulary, chunk
from specmesh.daemons.link.sockets import Router
from specmesh.daemons.runtime.facts import note
from specmesh.engines.base import EngineInfo
from specmesh.errors import Busy, SpecmeshError
from specmesh.security.curve import TcpConnection
from specmesh.wire import messages as m
from specmesh.wire.codec import decode_body

log = structlog.get_logger("specmesh.verifier")

Heartbeat = TypeVar("Heartbeat", m.Ping, m.Pong)


class CoreInbox(Protocol):
    """Takes events for the core, which another thread has."""

    def put(self, event: vev.Happened, at: float, /) -> None:
        """Hand over an event that happened at `at`."""
        ...

    @property
    def stuck(self) -> bool:
        """Return True if a step has run for too long."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterPeer:
    """A drafter attached to this verifier.

    number: its place in the order in which drafters attached, from 1.
    key_name: the name here of the key that it has proved; empty if keys are not used.
    connection: its TCP connection, if libzmq names it.
    incoming: parts of its next OPEN. outgoing: frames of sessions that it is sent.
    """

    identity: bytes
    hello: m.Hello
    link: Link
    incoming: IncomingOpen
    outgoing: OutgoingFrames = field(default_factory=OutgoingFrames)
    number: int = 0
    address: str = ""
    key_name: str = ""
    connection: TcpConnection | None = None

    @property
    def end(self) -> Peer:
        """Return its name and address."""
        return Peer(self.hello.drafter, self.address)

    def describe(self) -> Json:
        """Return its part of `stats --json`, without the core's measurements."""
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
    """The drafters attached to a verifier.

    - Their frames become events of the core, and its frames go to them.
    - PINGs and their answers stop while a step hangs, so that drafters leave.

    peers: by identity, the oldest first.
    step_s: seconds of a step of one row, as they are sent it.
    """

    def __init__(
        self,
        *,
        info: EngineInfo,
        vocabulary: Vocabulary,
        router: Router,
        clients: Clients,
        act: Callable[[Sequence[ClientsEffect]], None],
        stats: VerifierStats,
        core: CoreInbox,
        welcome: m.Welcome,
        cores: ThreadShare,
        link: Callable[[float], Link],
    ) -> None:
        """Begin without drafters.

        info, vocabulary: of the target. act: carries out effects of requests.
        welcome: for all drafters, without the host and its threads.
        cores: the CPU threads of this host. link: makes the link of a drafter that attaches now.
        """
        self.peers: dict[bytes, DrafterPeer] = {}
        self.step_s = 0.0
        self._info = info
        self._router = router
        self._clients = clients
        self._act = act
        self._stats = stats
        self._core = core
        self._welcome = welcome
        self._cores = cores
        self._link = link
        self._vocabulary = vocabulary
        self._shared = vev.ThreadsShared(cores.undivided, cores.undivided)
        self._numbers = itertools.count(1)

    def look(self, now: float) -> None:
        """Do what is due: let drafters go, and send PINGs."""
        for identity, reason in self._router.take_gone().items():
            self._peer_gone(identity, reason, now)
        for identity, peer in list(self.peers.items()):
            departure = peer.link.departure(now)
            peer.incoming.expire(now)
            self._send_all(peer, peer.outgoing.expire(now), now)
            if departure is not None:
                self._peer_gone(identity, departure, now)
        if self._core.stuck:
            return
        due = [peer for peer in self.peers.values() if now >= peer.link.next_ping]
        for peer in due:
            self._ping(peer, now)
        if due:
            self._core.put(vev.Signal.REPORT_WANTED, now)  # for the next PINGs

    def send(self, effect: vev.ToDrafter, now: float) -> None:
        """Send a frame of the core, once the drafter has room for it."""
        peer = self.peers.get(effect.drafter)
        if peer is None:
            return
        frames = [effect.what]
        if peer.outgoing.waiting or isinstance(effect.what, m.Sync):
            frames = peer.outgoing.put(effect.what)
        self._send_all(peer, frames, now)

    def _send_all(self, peer: DrafterPeer, frames: Sequence[vev.DrafterFrame], now: float) -> None:
        """Send frames whose turn has come, and a PING if others wait for its answer."""
        for frame in frames:
            size = self._router.send(peer.identity, frame)
            peer.link.unread += size
            traffic = self._clients.sessions.get(frame.session)
            if traffic is not None:
                traffic.bytes_sent += size
                traffic.drafters.add(peer.identity)
        if not peer.outgoing.waiting:
            return
        if peer.outgoing.ping_due(now):
            self._ping(peer, now, partial(self._acknowledged, peer))
        elif peer.outgoing.full:
            self._router.let_go(peer.identity)

    def _acknowledged(self, peer: DrafterPeer, _: float) -> None:
        """Note that all frames before a PING have arrived."""
        self._send_all(peer, peer.outgoing.acknowledged(), time.monotonic())

    def leave(self) -> None:
        """Send all drafters BYE."""
        for identity in self.peers:
            self._router.send(identity, m.Bye())

    def ping_for(self, order: PingPeers, now: float) -> None:
        """Send all drafters a PING, and pass the answers on."""
        order.sent(peer.end for peer in self.peers.values())
        for peer in self.peers.values():
            self._ping(peer, now, partial(order.answered, peer.end))

    # --- their frames

    def receive(self) -> bool:
        """Take all frames that have come; return whether a drafter has gone."""
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
                    error = m.Error("hello", "introduce yourself with HELLO first")
                    self._router.send(identity, error)
                case _:
                    self._message(peer, message, size, now)
        return bool(self._router.gone)

    def _message(self, peer: DrafterPeer, message: m.Message, size: int, now: float) -> None:
        identity = peer.identity
        match message:
            case m.Draft() | m.DraftProbs() | m.Nack():
                traffic = self._clients.sessions.get(message.session)
                if traffic is not None and identity in traffic.drafters:
                    traffic.bytes_received += size
                self._core.put(vev.FromDrafter(identity, message), now)
            case m.Ids():
                peer.incoming.take_ids(message, now)
            case m.Body():
                peer.incoming.take_body(message, now)
            case m.Open():
                self._open_for(peer, message, now)
            case m.Close(ref=ref) if ref:  # its client has left before it had a session
                self._act(self._clients.withdraw(identity, ref))
            case m.Close():
                peer.outgoing.forget(message.session)
                self._core.put(vev.SessionClosed(identity, message.session), now)
            case m.Pause(session, paused):
                self._core.put(vev.SessionPaused(identity, session, paused), now)
            case m.Vocab(start):
                pieces = m.Vocab(start, chunk(self._vocabulary, start))
                peer.link.unread += self._router.send(identity, pieces)
            case m.Ping():
                self._ping_came(peer, message, now)
            case m.Pong():
                self._pong_came(peer, message, now)
            case m.Hello() | m.Bye():
                pass  # `receive` takes them
            case (
                m.Welcome() | m.Opened() | m.Done() | m.Error()
                | m.Truth() | m.Sync() | m.Logprobs() | m.Progress()
            ):  # fmt: skip
                # Only verifiers send these.
                self._router.traffic.rejected["direction"] += 1
                self._router.bad(identity, now)
            case _:
                assert_never(message)

    def _ping_came(self, peer: DrafterPeer, ping: m.Ping, now: float) -> None:
        peer.link.note_busy(ping.busy)
        self._note_mute(peer, ping, now)
        if not self._core.stuck:
            pong = self._heartbeat(m.Pong, ping.number, now)
            self._router.send(peer.identity, pong)

    def _pong_came(self, peer: DrafterPeer, pong: m.Pong, now: float) -> None:
        self._note_mute(peer, pong, now)
        round_trip = peer.link.pong(pong.number, pong.busy, now)
        if round_trip is not None:
            self._stats.round_trips.record(round_trip)
            self._core.put(vev.RoundTrip(peer.identity, round_trip), now)

    def _note_mute(self, peer: DrafterPeer, beat: m.Ping | m.Pong, now: float) -> None:
        """Note whether a drafter drafts at all, by a field of each PING and PONG."""
        muted = beat.no_drafts == NoDrafts.VOCABULARY
        if peer.link.note_mute(mute=muted):
            self._core.put(vev.DrafterMuted(peer.identity, muted), now)

    def _hello(self, identity: bytes, hello: m.Hello, now: float) -> None:
        if self._core.stuck:
            return
        attached = self.peers.get(identity)
        if attached is not None and attached.hello == hello:
            # It has sent HELLO more than once before this verifier answered.
            self._send_welcome(identity, hello)
            return
        self._peer_gone(identity, Departure.HELLO_AGAIN, now)
        key = self._router.proved_key()
        try:
            self._router.accounts.attach(identity, key)
        except Busy as error:
            self._router.send(identity, m.Error("busy", str(error)))
            return
        peer = DrafterPeer(
            identity=identity,
            hello=hello,
            link=self._link(now),
            incoming=IncomingOpen(self._info.n_ctx, partial(decode_body, m.Open)),
            number=next(self._numbers),
            address=self._router.sender(),
            key_name=self._router.name_of(key),
            connection=TcpConnection.of(self._router.inlet.known),
        )
        self.peers[identity] = peer
        self._stats.peer_came()
        self._share_cores(now)
        self._send_welcome(identity, hello)
        self._ping(peer, now)
        log.info("drafter_attached", drafter=hello.drafter, engine=hello.engine, model=hello.model)
        n_ctx = ANY_LENGTH if hello.any_length else hello.n_ctx
        if n_ctx < self._info.n_ctx:
            remedy = f"give it --window auto, or --ctx {self._info.n_ctx}"
            meaning = f"texts of more tokens get no drafts from it: {remedy}"
            log.warning("drafter_context_is_smaller", n_ctx=n_ctx, meaning=meaning)
        self._core.put(vev.DrafterJoined(identity, n_ctx, hello.drafter), now)

    def _send_welcome(self, identity: bytes, hello: m.Hello) -> None:
        """Send WELCOME.

        It names the host only to a drafter that knows the name, which may claim cores of this host.
        """
        cores = self._cores
        host = cores.host if hello.host == cores.host else ""
        welcome = replace(self._welcome, host=host, cpu_threads=cores.threads)
        self._router.send(identity, welcome)

    def _share_cores(self, now: float) -> None:
        cores = self._cores
        note(cores.beside(peer.hello for peer in self.peers.values()))
        peers = self.peers.values()
        sharing = frozenset(peer.identity for peer in peers if cores.computes_here(peer.hello))
        shared = vev.ThreadsShared(cores.undivided, cores.threads, sharing)
        if shared != self._shared:
            self._shared = shared
            self._core.put(shared, now)

    def _ping(
        self, peer: DrafterPeer, now: float, answer: Callable[[float], None] | None = None
    ) -> None:
        number = peer.link.ping(now, answer)
        ping = self._heartbeat(m.Ping, number, now)
        self._router.send(peer.identity, ping)

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
        """Let a drafter go, if it is one.

        Its TCP connection is cut if its own end may never do so, but not without a route to it:
        then the connection may be another drafter's.
        """
        peer = self.peers.pop(identity, None)
        if peer is None:
            return
        self._router.accounts.keys.pop(identity, None)
        self._router.accounts.forget_idle(now)
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
            request = requested(peer.incoming.complete(order))
        except SpecmeshError as error:
            client.on_event(Failed(error))
            return
        effects = self._clients.open(
            request,
            client,
            owner=identity,
            ref=order.ref,
            key=self._router.accounts.keys[identity],
            tenant=(identity, order.ref),
        )
        self._act(effects)


class RemoteClient:
    """The client of a session that a drafter asked for."""

    def __init__(self, send: Callable[[m.ControlMessage], object], order: m.Open) -> None:
        """Answer an OPEN; `send` sends its drafter a frame."""
        self._send = send
        self._ref = order.ref
        self._session = 0

    def on_event(self, event: ClientEvent) -> None:
        """Send the events that TRUTH does not carry."""
        match event:
            case Started(session, prompt_tokens, _, params):
                assert params is not None, "a verifier knows them"
                self._session = session
                options = opened_options(params)
                self._send(m.Opened(session, self._ref, prompt_tokens, options))
            case Scored(logprobs):
                for frame in logprobs_frames(self._session, 1, logprobs):
                    self._send(frame)
            case PromptRead(total, cached, processed, seconds):
                progress = m.Progress(
                    session=self._session,
                    total=total,
                    cached=cached,
                    processed=processed,
                    time_ms=round(seconds * 1e3),
                )
                self._send(progress)
            case Tokens() | Finished():
                pass  # TRUTH and DONE were sent
            case Failed(error):
                code, message, param = refusal_of(error)
                self._send(m.Error(code, message, self._ref, param))
            case _:
                assert_never(event)
