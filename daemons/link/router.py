"""The verifier's end of the wire: messages to and from drafters, by the identity their connection has."""

from collections.abc import Iterator
from functools import partial

import structlog
import zmq

from specmesh.daemons.link.auth import ZapGuard
from specmesh.daemons.link.curve import Socket
from specmesh.daemons.link.peer_gate import PeerGate
from specmesh.daemons.link.transport import MAX_BACKLOG, UPDATE, Inlet, Traffic, plain
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode, may_be_control

log = structlog.get_logger("specmesh.verifier")

MAX_FRAMES_PER_TURN = 64
MAX_REFUSED_PER_TURN = 16  # frames over the limits after which a turn reads no more, and the next do not for PAUSE
PAUSE = 4e-3  # seconds; ZeroMQ takes from its peers in turn, so a drafter's frames wait no longer beside a flood
LOG_INTERVAL = 60.0  # seconds between two log lines about drafters of another version: they must not fill a disk


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
        self._paused_until = self._next_log = 0.0

    @property
    def behind(self) -> bool:
        """Frames are kept for a drafter that did not keep up."""
        return any(peer.backlog for peer in self.gate.peers.values())

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
        if not peer.backlog and self._hand_over(identity, frame):
            return len(frame)
        if identity in self.gate.gone:
            return 0
        peer.backlog.add(frame)
        if peer.backlog.size > MAX_BACKLOG:
            self._give_up(identity)
            return 0
        return len(frame)

    def flush(self) -> None:
        for identity, peer in self.gate.peers.items():
            peer.backlog.flush(partial(self._hand_over, identity))

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
                    self._next_log = now + LOG_INTERVAL
                    log.warning("other_version", address=self.inlet.sender(), error=text, meaning=UPDATE)
            elif may_be_control(frame, error):
                self.send(identity, m.Error("hello", "a frame came damaged: begin anew, with HELLO"))
            return None
