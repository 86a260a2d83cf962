"""The drafter's end of the wire: messages to and from the one verifier it is connected to."""

from collections.abc import Callable, Iterator

import zmq

from specmesh.daemons.transport import Inlet, Traffic
from specmesh.errors import ConfigError, FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

MAX_FRAMES_PER_TURN = 64


class Dealer:
    """A connected DEALER. `connect` opens one; a fresh one replaces a connection that went silent."""

    def __init__(self, connect: "Callable[[], zmq.Socket[bytes]]", address: str) -> None:
        self._connect, self._address = connect, address
        self.socket = connect()
        self.inlet = Inlet(self.socket)
        self.traffic = Traffic()

    def send(self, message: m.Message) -> int:
        """Send and return the bytes handed over; 0 when the verifier is not there or does not keep up.

        Raises ValueError for a message no frame can hold.
        """
        frame = encode(message)
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return 0
        self.traffic.sent(len(frame))
        return len(frame)

    def receive(self) -> Iterator[tuple[m.Message | None, int]]:
        """(message, bytes) of what has come, a bounded number; None for a frame that is none.

        Raises ConfigError when the verifier speaks another protocol version.
        """
        for _ in range(MAX_FRAMES_PER_TURN):
            parts = self.inlet.receive()
            if parts is None:
                return
            if len(parts) != 1:
                self.traffic.rejected["parts"] += 1
                continue
            self.traffic.received(len(parts[0]))
            yield self._decoded(parts[0]), len(parts[0])

    def reconnect(self) -> None:
        """Open a fresh connection, by which the verifier knows nothing of the old one."""
        self.close(linger=0)
        self.socket = self._connect()
        self.inlet = Inlet(self.socket)

    def close(self, linger: int = 100) -> None:
        """Give the connection back; what is on its way has `linger` milliseconds to leave."""
        self.socket.close(linger=linger)

    def _decoded(self, frame: bytes) -> m.Message | None:
        try:
            return decode(frame)
        except FrameError as error:
            self.traffic.rejected[error.reason] += 1
            if error.reason == "version":
                raise ConfigError(
                    f"the verifier at {self._address} speaks protocol version {error.seen}, this drafter "
                    f"{m.PROTOCOL_VERSION}: install the same specmesh on both"
                ) from None
            return None
