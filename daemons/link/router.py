"""The verifier's end of the wire: messages to and from drafters, by the identity their connection has; who of them may
speak, and how much."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import structlog
import zmq

from specmesh.api.requests import Peer
from specmesh.core.daemon_statistics import Traffic
from specmesh.core.link import Link
from specmesh.core.peer_limits import BODY_WEIGHT, Cost, FrameAction, LimitsByAccount, PeerLimits, Throttle, check_room
from specmesh.daemons.link.transport import MAX_BACKLOG, UPDATE, Backlog, Inlet, plain
from specmesh.errors import FrameError
from specmesh.security.curve import BAN_SECONDS, Socket, TcpConnection, ZapGuard
from specmesh.wire import messages as m
from specmesh.wire.codec import HEADER, decode, encode, ids_in, may_be_control
from specmesh.wire.messages import Hello, Kind

log = structlog.get_logger("specmesh.verifier")

CUT_INTERVAL = 1.0  # seconds until a peer is cut again: what is read of it meanwhile names another's descriptor perhaps
# seconds between two log lines about peers that were cut off, or speak another version: they must not fill a disk
LOG_INTERVAL, VERSION_INTERVAL = 1.0, 60.0
MAX_FRAMES_PER_TURN = 64
MAX_REFUSED_PER_TURN = 16  # frames over the limits after which a turn reads no more, and the next do not for PAUSE
PAUSE = 4e-3  # seconds; ZeroMQ takes from its peers in turn, so a drafter's frames wait no longer beside a flood

_COSTS: dict[int, Cost] = {
    Kind.DRAFT: Cost.IDS,
    Kind.DRAFT_PROBS: Cost.IDS,
    Kind.NACK: Cost.NACKS,
    Kind.HELLO: Cost.HELLOS,
    Kind.VOCAB: Cost.VOCABS,
    Kind.PING: Cost.PINGS,
}


@dataclass(slots=True)
class DrafterPeer:
    """A drafter attached to this verifier, the `number`-th to come.

    key: that it has proved, where keys are used; key_name: what that is called here. connection: where libzmq tells it.
    """

    identity: bytes
    hello: Hello
    link: Link
    number: int = 0
    address: str = ""
    key: str = ""
    key_name: str = ""
    connection: TcpConnection | None = None
    limits: PeerLimits = field(default_factory=PeerLimits)
    backlog: Backlog = field(default_factory=Backlog)

    @property
    def end(self) -> Peer:
        return Peer(self.hello.drafter, self.address)

    def hang_up(self) -> None:
        """End its connection: its own end may never."""
        if self.connection is not None:
            self.connection.cut()

    def describe(self) -> dict[str, object]:
        """Return its part of `stats --json`, but for what the core has measured."""
        return {
            "number": self.number,
            "drafter": self.hello.drafter,
            "address": self.address,
            "key": self.key_name or None,
            "engine": self.hello.engine,
            "model": self.hello.model,
            "round_trip_ms": self.link.round_trip_ms(),
            "busy": round(self.link.busy, 3),
        }


class PeerGate:
    """Judges the newest message of an inlet by its sender.

    With keys, a frame counts only while its sender's key is allowed, whatever its handshake has proved before.
    Frames beyond core.peer_limits are dropped, and who goes on is cut off, with keys for some time. peers: the drafters
    by the identity of their connection, the oldest first. gone: who went away or was cut off, and why.
    """

    def __init__(self, inlet: Inlet, guard: ZapGuard | None) -> None:
        self._inlet, self._guard = inlet, guard
        self.peers: dict[bytes, DrafterPeer] = {}
        self.gone: dict[bytes, str] = {}
        self._numbers = itertools.count(1)
        self._limits = LimitsByAccount()
        self._cut, self._logged = Throttle(CUT_INTERVAL), Throttle(LOG_INTERVAL)

    def attach(self, identity: bytes, hello: Hello, now: float) -> DrafterPeer:
        """Take the sender as a drafter; raises Busy where there are too many."""
        key = self.proved_key()
        check_room([peer.key for peer in self.peers.values()], key)
        self.peers[identity] = peer = DrafterPeer(
            identity,
            hello,
            Link(now),
            next(self._numbers),
            self._inlet.sender(),
            key,
            self._name_of(key),
            TcpConnection.of(self._inlet.last()),
            self._limits[key or identity],
        )
        return peer

    def detach(self, identity: bytes) -> DrafterPeer | None:
        return self.peers.pop(identity, None)

    def take_gone(self) -> dict[bytes, str]:
        """Return those that went away or were cut off since the last call, and why; cut those whose key was revoked."""
        if self._guard is not None and self._guard.reread():
            for peer in self.peers.values():
                if peer.key not in self._guard.allowed:
                    peer.hang_up()
                    self.gone[peer.identity] = "revoked"
        gone, self.gone = self.gone, {}
        return gone

    def objection(self, parts: list[bytes], now: float) -> str | None:
        """Return why the newest message is not to be decoded, as a label of a counter; None if it is."""
        identity = parts[0]
        if not self._admitted(identity, now):
            return "key"
        if len(parts) != 2:
            self.bad(identity, now)
            return "parts"
        frame = parts[1]
        kind = frame[3] if len(frame) >= HEADER.size else 0
        cost = _COSTS.get(kind)
        amount = max(ids_in(frame), 1) if cost is Cost.IDS else 1
        size = len(frame) * (BODY_WEIGHT if kind >= Kind.HELLO else 1)
        action = self._limits_of(identity).frame(size, cost, amount, now)
        if action is FrameAction.CUT:
            self._cut_off(identity, now)
        return None if action is FrameAction.TAKE else "rate"

    def bad(self, identity: bytes, now: float) -> None:
        """Count a sender's last message, which was no frame, or none for a verifier."""
        if self._limits_of(identity).bad(now) is FrameAction.CUT:
            self._cut_off(identity, now)

    def _admitted(self, identity: bytes, now: float) -> bool:
        """May the sender speak, and as this drafter? Identities are the peers' own choice."""
        key = self.proved_key()
        if self._guard is not None and not self._guard.admits(key, now):
            self._cut_once(identity, now)
            return False
        known = self.peers.get(identity)
        return known is None or known.key == key

    def _cut_off(self, identity: bytes, now: float) -> None:
        """End the connection of a sender of too much; its key stays out for a while."""
        if not self._cut_once(identity, now):
            return
        self.gone[identity] = "flooding"
        key, told = self.proved_key(), dict[str, object]()
        if self._guard is not None:
            self._guard.ban(key, now)
            told = {"key": self._name_of(key) or key, "barred_s": BAN_SECONDS}
        if self._logged.due(None, now):
            log.warning("peer_cut_off", address=self._inlet.sender(), meaning="it sent too much", **told)

    def _cut_once(self, identity: bytes, now: float) -> bool:
        """Cut the sender's connection; return False if that was just done."""
        if not self._cut.due(identity, now):
            return False
        peer = self.peers.get(identity)
        connection = peer.connection if peer is not None else TcpConnection.of(self._inlet.last())
        if connection is not None:
            connection.cut()
        return True

    def proved_key(self) -> str:
        """Return the key that the sender of the newest message has proved; empty where keys are not used."""
        return self._guard.key_of(self._inlet.last()) if self._guard is not None else ""

    def _name_of(self, key: str) -> str:
        return self._guard.names.get(key, "") if self._guard is not None else ""

    def _limits_of(self, identity: bytes) -> PeerLimits:
        """The limits that a peer uses up: its key's, so that more connections bring no more, or else its own."""
        peer = self.peers.get(identity)
        return peer.limits if peer is not None else self._limits[self.proved_key() or identity]


class Router:
    """A bound ROUTER. Frames that are none are counted and dropped; their sender counts as heard all the same.

    `gate` decides who is heard. What a drafter cannot take at once is kept for it, in order: ZeroMQ would drop it, and
    a lost DONE is for ever. One that falls MAX_BACKLOG behind is let go.
    """

    def __init__(self, socket: Socket, guard: ZapGuard | None = None) -> None:
        self.socket, self.inlet = socket, Inlet(socket)
        self.address = plain(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        self.traffic = Traffic()
        self.encrypted, self._guard = guard is not None, guard
        self.gate = PeerGate(self.inlet, guard)
        if guard is not None:
            self.traffic.refused = guard.failures
        self.behind = False  # frames are kept for a drafter that did not keep up
        self._paused_until = 0.0
        self._logged = Throttle(VERSION_INTERVAL)

    @property
    def guarded(self) -> bool:
        """Strangers are kept out still, where they are to be."""
        return self._guard is None or self._guard.is_alive()

    def send(self, identity: bytes, message: m.Message) -> int:
        """Send to a drafter and return the bytes handed over; 0 when it is gone or does not keep up."""
        frame, peer = encode(message), self.gate.peers.get(identity)
        if peer is None:  # what a stranger cannot take at once is lost
            return len(frame) if self._hand_over(identity, frame) else 0
        if isinstance(message, m.Truth | m.Sync):
            peer.limits.earn(message.draft_n)
        if not peer.backlog.size and self._hand_over(identity, frame):
            return len(frame)
        if identity in self.gate.gone:
            return 0
        peer.backlog.add(frame)
        self.behind = True
        if peer.backlog.size > MAX_BACKLOG:
            self._give_up(identity)
            return 0
        return len(frame)

    def flush(self) -> None:
        for identity, peer in self.gate.peers.items():
            peer.backlog.flush(partial(self._hand_over, identity))
        self._look_behind()

    def _look_behind(self) -> None:
        self.behind = any(peer.backlog.size for peer in self.gate.peers.values())

    def paused(self, now: float) -> float:
        """Return for how many seconds nothing is received."""
        return max(self._paused_until - now, 0.0)

    def receive(self, now: float) -> Iterator[tuple[bytes, m.Message | None, int]]:
        """Yield (identity, message, bytes) of a bounded number of frames; message None for what is no frame."""
        if now < self._paused_until:
            return
        refused = 0
        for _ in range(MAX_FRAMES_PER_TURN):
            parts = self.inlet.receive()
            if parts is None:
                return
            reason = self.gate.objection(parts, now)
            if reason is not None:
                self.traffic.rejected[reason] += 1
                refused += 1
                if refused == MAX_REFUSED_PER_TURN:
                    self._paused_until = now + PAUSE
                    return
                continue
            identity, frame = parts
            self.traffic.received(frame)
            yield identity, self._decoded(identity, frame, now), len(frame)

    def misdirected(self, identity: bytes, now: float) -> None:
        """Count the sender's last message, which was none to a verifier."""
        self.traffic.rejected["direction"] += 1
        self.gate.bad(identity, now)

    def _hand_over(self, identity: bytes, frame: bytes) -> bool:
        try:
            self.socket.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._give_up(identity)
            return False
        self.traffic.sent(frame)
        return True

    def _give_up(self, identity: bytes) -> None:
        self.gate.gone.setdefault(identity, "unreachable")
        if identity in self.gate.peers:
            self.gate.peers[identity].backlog.clear()
            self._look_behind()

    def _decoded(self, identity: bytes, frame: bytes, now: float) -> m.Message | None:
        try:
            return decode(frame)
        except FrameError as error:
            self.traffic.rejected[error.reason] += 1
            self.gate.bad(identity, now)
            if error.reason == "version":
                text = f"this verifier speaks protocol version {m.PROTOCOL_VERSION}, the frame says {error.seen}"
                self.send(identity, m.Error("version", text))
                if self._logged.due(None, now):
                    log.warning("other_version", address=self.inlet.sender(), error=text, meaning=UPDATE)
            elif may_be_control(frame, error):
                self.send(identity, m.Error("hello", "a frame came damaged: begin anew, with HELLO"))
            return None
