"""The verifier's end of the wire: messages to and from drafters, by the identity their connection has."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import structlog
import zmq

from specmesh.daemons.link.auth import ZapGuard
from specmesh.daemons.link.curve import Socket
from specmesh.daemons.link.peer_gate import PeerGate
from specmesh.daemons.link.transport import UPDATE, Inlet, Traffic, plain
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode, may_be_control

log = structlog.get_logger("specmesh.verifier")

MAX_FRAMES_PER_TURN = 64
MAX_REFUSED_PER_TURN = 16  # frames over the limits after which a turn reads no more, and the next do not for PAUSE
PAUSE = 4e-3  # seconds; ZeroMQ takes from its peers in turn, so a drafter's frames wait no longer beside a flood
LOG_INTERVAL = 60.0  # seconds between two log lines about drafters of another version: they must not fill a disk
MAX_BACKLOG = 2**20  # bytes kept for a drafter beyond ZeroMQ's queue; one that falls further behind is let go


@dataclass(slots=True)
class _Backlog:
    frames: deque[bytes] = field(default_factory=deque)
    size: int = 0


class Router:
    """A bound ROUTER. Frames that are none are counted and dropped; their sender counts as heard all the same.

    `gate` decides who is heard. What a drafter cannot take at once is kept for it, in order: ZeroMQ would drop it, and
    a lost DONE is for ever.
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
        self._backlogs: dict[bytes, _Backlog] = {}

    @property
    def behind(self) -> bool:
        """Frames are kept for a drafter that did not keep up."""
        return bool(self._backlogs)

    @property
    def guarded(self) -> bool:
        """Strangers are kept out still, where they are to be."""
        return self._guard is None or self._guard.alive

    def send(self, identity: bytes, message: m.Message) -> int:
        """Send to a drafter and return the bytes handed over; 0 when it is gone or does not keep up."""
        frame = encode(message)
        if isinstance(message, m.Truth | m.Sync):
            self.gate.earn(identity, message.draft_n)
        if identity not in self._backlogs and self._hand_over(identity, frame):
            return len(frame)
        if identity in self.gate.gone:
            return 0
        backlog = self._backlogs.setdefault(identity, _Backlog())
        backlog.frames.append(frame)
        backlog.size += len(frame)
        if backlog.size > MAX_BACKLOG:
            self._give_up(identity)
            return 0
        return len(frame)

    def flush(self) -> None:
        for identity, backlog in list(self._backlogs.items()):
            while backlog.frames and self._hand_over(identity, backlog.frames[0]):
                backlog.size -= len(backlog.frames.popleft())
            if not backlog.frames:
                self.forget(identity)

    def forget(self, identity: bytes) -> None:
        self._backlogs.pop(identity, None)

    def gone(self) -> dict[bytes, str]:
        """Return those that went away or were cut off since the last call, and why."""
        self.gate.expel()
        gone, self.gate.gone = self.gate.gone, {}
        return gone

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
            self.traffic.frames_received += 1
            self.traffic.bytes_received += len(frame)
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
        self.traffic.frames_sent += 1
        self.traffic.bytes_sent += len(frame)
        return True

    def _give_up(self, identity: bytes) -> None:
        self.gate.gone.setdefault(identity, "unreachable")
        self.forget(identity)

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
