"""The verifier's end of the wire: messages to and from drafters, by the identity their connection has; who of them may
speak, and how much."""

import itertools
from collections.abc import Iterator
from functools import partial

import structlog
import zmq

from specmesh.core.peer_limits import BODY_WEIGHT, Cost, FrameAction, LimitsByAccount, PeerLimits
from specmesh.daemons.link.auth import BAN_SECONDS, ZapGuard
from specmesh.daemons.link.curve import Socket, TcpConnection, user_of
from specmesh.daemons.link.peers import DrafterPeer, Link
from specmesh.daemons.link.transport import MAX_BACKLOG, UPDATE, Inlet, Traffic, plain
from specmesh.errors import Busy, FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import CRC, HEADER, decode, encode, may_be_control
from specmesh.wire.messages import Hello, Kind

log = structlog.get_logger("specmesh.verifier")

MAX_DRAFTERS = 64
MAX_PER_KEY = 8  # most drafters with the same key: one owner must not keep others out
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


class PeerGate:
    """Judges the newest message of an inlet by its sender.

    With a guard, a frame counts only while its sender's key is allowed, whatever its handshake has proved before.
    Frames beyond core.peer_limits are dropped, and who goes on is cut off, with keys for some time. peers: the drafters
    by the identity of their connection, the oldest first. gone: who went away or was cut off, and why.
    """

    def __init__(self, inlet: Inlet, guard: ZapGuard | None) -> None:
        self._inlet, self._guard = inlet, guard
        self.peers: dict[bytes, DrafterPeer] = {}
        self.gone: dict[bytes, str] = {}
        self._numbers = itertools.count(1)
        self._allowed = frozenset[str]() if guard is None else guard.allowed
        self._limits = LimitsByAccount()
        self._cut: dict[bytes, float] = {}
        self._logged = -LOG_INTERVAL
        self._tell_introduced()

    def attach(self, identity: bytes, hello: Hello, now: float) -> DrafterPeer:
        """Take the sender as a drafter; raises Busy where there are too many."""
        key = self._proved_key()
        same_key = [peer for peer in self.peers.values() if key and peer.key == key]
        if len(self.peers) >= MAX_DRAFTERS or len(same_key) >= MAX_PER_KEY:
            raise Busy(f"too many drafters are attached ({len(self.peers)}): stop one")
        self.peers[identity] = peer = DrafterPeer(
            identity,
            hello,
            Link(now),
            next(self._numbers),
            self._inlet.sender(),
            key,
            self._guard.names.get(key, "") if self._guard is not None else "",
            TcpConnection.of(self._inlet.last()),
            self._limits[key or identity],
        )
        self._tell_introduced()
        return peer

    def detach(self, identity: bytes) -> DrafterPeer | None:
        peer = self.peers.pop(identity, None)
        if peer is not None:
            self._tell_introduced()
        return peer

    def take_gone(self) -> dict[bytes, str]:
        """Return those that went away or were cut off since the last call, and why; cut those whose key was revoked."""
        if self._guard is not None and self._guard.allowed is not self._allowed:
            self._allowed = self._guard.allowed
            for peer in self.peers.values():
                if peer.key not in self._allowed:
                    peer.hang_up()
                    self.gone[peer.identity] = "revoked"
        gone, self.gone = self.gone, {}
        return gone

    def objection(self, parts: list[bytes], now: float) -> str | None:
        """Return why the newest message is not to be decoded, as a label of a counter; None if it is."""
        identity = parts[0]
        if self._guard is not None and not self._admitted(identity, self._guard, now):
            return "key"
        if len(parts) != 2:
            self.bad(identity, now)
            return "parts"
        frame = parts[1]
        kind = frame[3] if len(frame) >= HEADER.size else 0
        cost = _COSTS.get(kind)
        amount = max(_ids_in(frame), 1) if cost is Cost.IDS else 1
        size = len(frame) * (BODY_WEIGHT if kind >= Kind.HELLO else 1)
        action = self._limits_of(identity).frame(size, cost, amount, now)
        if action is FrameAction.CUT:
            self._cut_off(identity, now)
        return None if action is FrameAction.TAKE else "rate"

    def bad(self, identity: bytes, now: float) -> None:
        """Count a sender's last message, which was no frame, or none for a verifier."""
        if self._limits_of(identity).bad(now) is FrameAction.CUT:
            self._cut_off(identity, now)

    def _admitted(self, identity: bytes, guard: ZapGuard, now: float) -> bool:
        """May the sender speak, and as this drafter? Identities are the peers' own choice."""
        key = self._proved_key()
        if not guard.admits(key):
            self._cut_once(identity, now)
            return False
        known = self.peers.get(identity)
        return known is None or known.key == key

    def _cut_off(self, identity: bytes, now: float) -> None:
        """End the connection of a sender of too much; its key stays out for a while."""
        if not self._cut_once(identity, now):
            return
        self.gone[identity] = "flooding"
        told = dict[str, object]()
        if self._guard is not None:
            key = self._proved_key()
            self._guard.ban(key)
            told = {"key": self._guard.names.get(key, key), "barred_s": BAN_SECONDS}
        if now - self._logged >= LOG_INTERVAL:
            self._logged = now
            log.warning("peer_cut_off", address=self._inlet.sender(), meaning="it sent too much", **told)

    def _cut_once(self, identity: bytes, now: float) -> bool:
        """Cut the sender's connection; return False if that was just done."""
        if now - self._cut.get(identity, -CUT_INTERVAL) < CUT_INTERVAL:
            return False
        self._cut = {other: at for other, at in self._cut.items() if now - at < CUT_INTERVAL} | {identity: now}
        peer = self.peers.get(identity)
        connection = peer.connection if peer is not None else TcpConnection.of(self._inlet.last())
        if connection is not None:
            connection.cut()
        return True

    def _proved_key(self) -> str:
        """The key that the sender has proved; empty where keys are not used."""
        return user_of(self._inlet.last()) if self._guard is not None else ""

    def _limits_of(self, identity: bytes) -> PeerLimits:
        """The limits that a peer uses up: its key's, so that more connections bring no more, or else its own."""
        peer = self.peers.get(identity)
        return peer.limits if peer is not None else self._limits[self._proved_key() or identity]

    def _tell_introduced(self) -> None:
        """Tell the guard the drafters' connections; None while some is not known."""
        if self._guard is not None:
            connections = {peer.connection for peer in self.peers.values()}
            known = frozenset(connection for connection in connections if connection is not None)
            self._guard.introduced = known if None not in connections else None


def _ids_in(frame: bytes) -> int:
    """How many ids a frame of drafts has. One whose length does not bear out its count is refused when it is decoded,
    and what else it may have is counted in bytes."""
    if frame[3] == Kind.DRAFT_PROBS:
        return int.from_bytes(frame[16:18], "little")
    return (len(frame) - HEADER.size - CRC.size) // 4


class Router:
    """A bound ROUTER. Frames that are none are counted and dropped; their sender counts as heard all the same.

    `gate` decides who is heard. What a drafter cannot take at once is kept for it, in order: ZeroMQ would drop it, and
    a lost DONE is for ever. One that falls MAX_BACKLOG behind is let go.
    """

    def __init__(self, socket: Socket, guard: ZapGuard | None = None) -> None:
        self.socket, self.inlet = socket, Inlet(socket)
        self.address = plain(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        self.traffic = Traffic()
        self.gate = PeerGate(self.inlet, guard)
        self._guard, self.encrypted = guard, guard is not None
        if guard is not None:
            self.traffic.refused = guard.failures
        self.behind = False  # frames are kept for a drafter that did not keep up
        self._paused_until = self._next_log = 0.0

    @property
    def guarded(self) -> bool:
        """Strangers are kept out still, where they are to be."""
        return self._guard is None or self._guard.alive

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
                if now >= self._next_log:
                    self._next_log = now + VERSION_INTERVAL
                    log.warning("other_version", address=self.inlet.sender(), error=text, meaning=UPDATE)
            elif may_be_control(frame, error):
                self.send(identity, m.Error("hello", "a frame came damaged: begin anew, with HELLO"))
            return None
