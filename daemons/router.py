"""The verifier's end of the wire: messages to and from drafters, by the identity their connection has."""

from collections.abc import Iterator

import zmq

from specmesh.daemons.transport import Traffic, readable
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

MAX_FRAMES_PER_TURN = 64


class Router:
    """A bound ROUTER. Frames that are none are counted and dropped; their sender counts as heard all the same."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self.traffic = Traffic()
        self._unreachable: list[bytes] = []

    def send(self, identity: bytes, message: m.Message) -> int:
        """Send to a drafter and return the bytes handed over; 0 when it is gone or does not keep up."""
        frame = encode(message)
        try:
            self.socket.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            return 0  # its queue is full; the prefix CRC of a later frame brings it back
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._unreachable.append(identity)
            return 0
        self.traffic.sent(len(frame))
        return len(frame)

    def receive(self) -> Iterator[tuple[bytes, m.Message | None, int]]:
        """(identity, message, bytes) of what has come, a bounded number; message None for a frame that is none."""
        for _ in range(MAX_FRAMES_PER_TURN):
            if not readable(self.socket):
                return
            parts = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(parts) != 2:
                self.traffic.rejected["parts"] += 1
                continue
            identity, frame = parts
            self.traffic.received(len(frame))
            yield identity, self._decoded(identity, frame), len(frame)

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
