"""The verifier's end of the wire: messages to and from drafters, by the identity their connection has."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import zmq

from specmesh.daemons.auth import Guard
from specmesh.daemons.curve import Connection, user_of
from specmesh.daemons.transport import Inlet, Traffic, plain
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

MAX_FRAMES_PER_TURN = 64

MAX_BACKLOG = 2**20
"""Most bytes kept for a drafter beyond ZeroMQ's queue; one that falls further behind is let go."""


@dataclass(slots=True)
class _Backlog:
    """Frames kept for one drafter, and how many bytes they are."""

    frames: deque[bytes] = field(default_factory=deque)
    size: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    """A drafter's end of the wire: the key that it has proved, and its connection where that is known."""

    key: str
    connection: Connection | None


class Router:
    """A bound ROUTER. Frames that are none are counted and dropped; their sender counts as heard all the same.

    With a guard, a frame counts only where its sender's key is allowed now, whatever its handshake has proved before.
    What a drafter cannot take at once is kept for it, in order: ZeroMQ would drop it, and a lost DONE is for ever.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", guard: Guard | None = None) -> None:
        self.socket, self.inlet = socket, Inlet(socket)
        self.traffic = Traffic()
        self._guard = guard
        self._allowed: frozenset[str] = frozenset()
        if guard is not None:
            self.traffic.refused, self._allowed = guard.failures, guard.allowed
        self._ends: dict[bytes, _End] = {}
        self._unreachable: list[bytes] = []
        self._backlogs: dict[bytes, _Backlog] = {}

    def send(self, identity: bytes, message: m.Message) -> int:
        """Send to a drafter and return the bytes handed over; 0 when it is gone or does not keep up."""
        frame = encode(message)
        if identity not in self._backlogs and self._hand_over(identity, frame):
            return len(frame)
        if identity in self._unreachable:
            return 0
        backlog = self._backlogs.setdefault(identity, _Backlog())
        backlog.frames.append(frame)
        backlog.size += len(frame)
        if backlog.size > MAX_BACKLOG:
            self._give_up(identity)
            return 0
        return len(frame)

    @property
    def behind(self) -> bool:
        """Whether something is kept for a drafter that did not keep up."""
        return bool(self._backlogs)

    def flush(self) -> None:
        """Send what was kept, as far as it is taken."""
        for identity, backlog in list(self._backlogs.items()):
            while backlog.frames and self._hand_over(identity, backlog.frames[0]):
                backlog.size -= len(backlog.frames.popleft())
            if not backlog.frames:
                self.forget(identity)

    def forget(self, identity: bytes) -> None:
        """Keep nothing for this drafter any more."""
        self._backlogs.pop(identity, None)

    @property
    def encrypted(self) -> bool:
        """Whether keys are used."""
        return self._guard is not None

    @property
    def guarded(self) -> bool:
        """Whether strangers are kept out still, where they are to be."""
        return self._guard is None or self._guard.alive

    def attach(self, identity: bytes) -> str:
        """Remember whose the last message was, who is a drafter from now on; what its key is called, if it has one."""
        if self._guard is None:
            return ""
        frame = self.inlet.last()
        self._ends[identity] = end = _End(user_of(frame), Connection.of(frame))
        return self._guard.names.get(end.key, "")

    def key_of(self, identity: bytes) -> str:
        """The key that a drafter has proved; empty where there are no keys."""
        end = self._ends.get(identity)
        return end.key if end is not None else ""

    def detach(self, identity: bytes) -> None:
        """It is none any more."""
        self._ends.pop(identity, None)
        self.forget(identity)

    def expelled(self) -> list[bytes]:
        """Drafters whose key has been revoked since the last call; nothing reaches them any more."""
        if self._guard is None or self._guard.allowed is self._allowed:
            return []
        self._allowed = self._guard.allowed
        gone = {identity: end for identity, end in self._ends.items() if end.key not in self._allowed}
        for end in gone.values():
            if end.connection is not None:
                end.connection.cut()
        return list(gone)

    def _hand_over(self, identity: bytes, frame: bytes) -> bool:
        """Whether ZeroMQ took the frame."""
        try:
            self.socket.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._give_up(identity)
            return False
        self.traffic.sent(len(frame))
        return True

    def _give_up(self, identity: bytes) -> None:
        self._unreachable.append(identity)
        self.forget(identity)

    def receive(self) -> Iterator[tuple[bytes, m.Message | None, int]]:
        """(identity, message, bytes) of what has come, a bounded number; message None for a frame that is none."""
        for _ in range(MAX_FRAMES_PER_TURN):
            parts = self.inlet.receive()
            if parts is None:
                return
            if len(parts) != 2:
                self.traffic.rejected["parts"] += 1
                continue
            identity, frame = parts
            if self._guard is not None and not self._admitted(identity, self._guard):
                self.traffic.rejected["key"] += 1
                continue
            self.traffic.received(len(frame))
            yield identity, self._decoded(identity, frame), len(frame)

    def _admitted(self, identity: bytes, guard: Guard) -> bool:
        """Whether the last message's sender may speak, and as this drafter: identities are the peers' own choice."""
        frame = self.inlet.last()
        key = user_of(frame)
        if key not in guard.allowed:
            connection = Connection.of(frame)
            if connection is not None:
                connection.cut()
            return False
        known = self._ends.get(identity)
        return known is None or known.key == key

    @property
    def address(self) -> str:
        """Where it listens."""
        return plain(self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))

    def unreachable(self) -> list[bytes]:
        """Drafters found gone while sending, since the last call."""
        gone, self._unreachable = self._unreachable, []
        return gone

    def _decoded(self, identity: bytes, frame: bytes) -> m.Message | None:
        try:
            return decode(frame)
        except FrameError as error:
            self.traffic.rejected[error.reason] += 1
            if error.reason == "version":
                text = f"this verifier speaks protocol version {m.PROTOCOL_VERSION}, the frame says {error.seen}"
                self.send(identity, m.Error("version", text))
            return None
