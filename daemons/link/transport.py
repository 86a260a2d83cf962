"""ZeroMQ sockets of both ends: their options, how they are opened, received from and listened to."""

import asyncio
import re
from collections import deque
from collections.abc import Callable

import zmq

from specmesh.errors import ConfigError
from specmesh.security import check_bind, check_connect
from specmesh.security.curve import HANDSHAKES, Context, Socket, ZapGuard, protect_client, unwatch, watch
from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire.codec import MAX_FRAME

UPDATE = "update specmesh on the machine with the lower version"
MAX_BACKLOG = 2**20  # bytes kept for a peer beyond ZeroMQ's queue
MAX_PARTS = 3  # one more than a message of ours has with its sender's identity: enough to know that it is none

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: MAX_FRAME,
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 64,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.HEARTBEAT_IVL: 0,  # by its heartbeats libzmq aborts where a connection breaks while its queue is full
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: 5000,
    zmq.IPV6: 1,
}
_DEALER_OPTIONS = _OPTIONS | {
    zmq.IMMEDIATE: 1,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.CONNECT_TIMEOUT: 3000,
}


class Backlog:
    """Frames, in order, that ZeroMQ's queue had no room for. Whoever adds them sees to it that `size`, their bytes,
    stays within MAX_BACKLOG."""

    def __init__(self) -> None:
        self._frames = deque[bytes]()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.size += len(frame)

    def flush(self, hand_over: Callable[[bytes], bool]) -> None:
        """Hand over what fits now."""
        while self._frames and hand_over(self._frames[0]):
            self.size -= len(self._frames.popleft())

    def clear(self) -> None:
        self._frames.clear()
        self.size = 0


def bind_router(context: Context, address: str, insecure: bool, guard: ZapGuard | None = None) -> Socket:
    """A ROUTER bound to one address, beyond loopback only with a guard or where `insecure`; raises ConfigError."""
    check_bind(address, keyed=guard is not None, insecure=insecure)
    socket = context.socket(zmq.ROUTER)
    _configure(socket, _OPTIONS | {zmq.ROUTER_MANDATORY: 1})
    try:
        if guard is not None:
            guard.protect(socket)
        socket.bind(address)
    except (ConfigError, zmq.ZMQError) as error:
        if guard is not None:
            guard.stop()
        socket.close()
        if isinstance(error, ConfigError):
            raise
        if error.errno == zmq.EADDRINUSE:
            raise ConfigError(f"{address} is in use: stop what listens there or choose another --bind") from None
        raise ConfigError(f"cannot bind {address}: {error.strerror}") from None
    return socket


class Route:
    """The way to one verifier, by the key that it must prove as known now; `keys` is None where none are used."""

    def __init__(self, context: Context, address: str, insecure: bool = False, keys: KeyFolder | None = None) -> None:
        self.address = address
        self._context, self._insecure, self._keys = context, insecure, keys
        self._stamp: tuple[int, ...] = ()
        self._known: bytes | None = None

    def open(self) -> Socket:
        """Return a fresh DEALER that connects, and reconnects, to the verifier. Raises ConfigError for a missing key.

        Its monitor (`get_monitor_socket`) reports handshakes and disconnections; `close_dealer` closes both.
        """
        identity = self._keys.identity() if self._keys is not None else None
        if self._keys is not None:
            self._stamp, self._known = self._keys.stamp(Listing.VERIFIERS), self._keys.verifier_at(self.address)
        check_connect(self.address, keyed=self._known is not None, insecure=self._insecure)
        socket = self._context.socket(zmq.DEALER)
        _configure(socket, _DEALER_OPTIONS)
        if identity is not None and self._known is not None:
            protect_client(socket, identity, self._known)
        watch(socket, HANDSHAKES | zmq.EVENT_DISCONNECTED)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            close_dealer(socket)
            raise ConfigError(f"cannot connect to {self.address}: {error.strerror}") from None
        return socket

    def changed(self) -> bool:
        """Return True if another key is known than when it was opened; a damaged list changes nothing."""
        if self._keys is None or self._stamp == (stamp := self._keys.stamp(Listing.VERIFIERS)):
            return False
        try:
            changed = self._keys.verifier_at(self.address) != self._known
        except (ConfigError, OSError):
            return False  # looked at again next time
        self._stamp = stamp
        return changed


def close_dealer(socket: Socket, linger: int = 0) -> None:
    """Close a DEALER and its monitor; what is on its way has `linger` milliseconds to leave."""
    unwatch(socket)
    socket.close(linger=linger)


class Inlet:
    """The receiving side of a socket, asked several times per draft: each call here is chosen for what it costs."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._last: zmq.Frame | None = None
        self._close: Callable[[], object] = lambda: None
        self._again: asyncio.TimerHandle | None = None

    def listen(self, heard: Callable[[], None]) -> None:
        """Have `heard` called on the running event loop when there may be messages, until `close`."""
        loop, descriptor = asyncio.get_running_loop(), self._socket.FD
        loop.add_reader(descriptor, heard)
        self._call_later, self._heard = loop.call_later, heard
        self._close = lambda: loop.remove_reader(descriptor)

    def check(self, pause: float = 0.0) -> None:
        """See to it that messages are heard of, after the pause. To be called after each turn that may have used the
        socket: its descriptor tells of changes only, and receiving or sending may have taken one."""
        if self._again is None and self._poller.poll(0):
            self._again = self._call_later(pause, self._hear_again)

    def _hear_again(self) -> None:
        self._again = None
        self._heard()

    def close(self) -> None:
        """Listen no more; to be called before the socket is closed."""
        self._close()
        if self._again is not None:
            self._again.cancel()

    def receive(self) -> list[bytes] | None:
        """Return the parts of the next message, at most MAX_PARTS; None where there is none now."""
        if not self._poller.poll(0):
            return None
        part = self._socket.recv(zmq.NOBLOCK, copy=False)
        parts = [part.bytes]
        while part.more:
            part = self._socket.recv(zmq.NOBLOCK, copy=False)
            if len(parts) < MAX_PARTS:
                parts.append(part.bytes)
        self._last = part
        return parts

    def sender(self) -> str:
        """Return the IP address that the last message came from as tcp://HOST; empty where libzmq does not know."""
        try:
            host = str(self.last().get("Peer-Address"))
        except zmq.ZMQError:
            return ""
        return plain(f"tcp://[{host}]" if ":" in host else f"tcp://{host}") if host else ""

    def last(self) -> zmq.Frame:
        """Return the last message, for what libzmq knows of its sender; only after `receive` gave one."""
        assert self._last is not None, "nothing was received yet"
        return self._last


def plain(address: str) -> str:
    """An address whose IPv4 host is not written as IPv6: sockets for both show it so."""
    return re.sub(r"\[::ffff:([\d.]+)\]", r"\1", address)


def _configure(socket: Socket, options: dict[zmq.SocketOption, int]) -> None:
    for option, value in options.items():
        socket.setsockopt(option, value)
