"""The ZeroMQ sockets of the wire: one frame per message, bounded, counted.

Option values and reasons: libzmq's defaults queue without end, block for ever at exit, drop silently when a ROUTER does
not know a peer, and buffer whatever length a stranger announces.
"""

import re
import select
from collections import Counter
from typing import TypeVar
from urllib.parse import urlparse

import zmq

from specmesh.daemons.mailbox import Mailbox
from specmesh.errors import ConfigError
from specmesh.wire.codec import MAX_FRAME

T = TypeVar("T")

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: MAX_FRAME,
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 64,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.HEARTBEAT_IVL: 1000,
    zmq.HEARTBEAT_TIMEOUT: 3000,
    zmq.HEARTBEAT_TTL: 3000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.IPV6: 1,
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE = ("*", "0.0.0.0", "::")  # noqa: S104  (refused, not used)


class Traffic:
    """Frames and bytes of one socket (ZMTP's own 2 or 9 bytes per frame not counted)."""

    def __init__(self) -> None:
        self.frames_sent = self.frames_received = 0
        self.bytes_sent = self.bytes_received = 0
        self.rejected: Counter[str] = Counter()

    def sent(self, size: int) -> None:
        """Count a frame that was handed to the socket."""
        self.frames_sent += 1
        self.bytes_sent += size

    def received(self, size: int) -> None:
        """Count a frame that came."""
        self.frames_received += 1
        self.bytes_received += size


def bind_router(context: zmq.Context[zmq.Socket[bytes]], address: str, insecure: bool) -> zmq.Socket[bytes]:
    """A ROUTER bound to one address, beyond loopback only where `insecure`; raises ConfigError."""
    _require_private(address, insecure)
    socket = context.socket(zmq.ROUTER)
    _configure(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        if error.errno == zmq.EADDRINUSE:
            raise ConfigError(f"{address} is in use: stop what listens there or choose another --bind") from None
        raise ConfigError(f"cannot bind {address}: {error.strerror}") from None
    return socket


def connect_dealer(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """A DEALER that connects, and reconnects, to a verifier; raises ConfigError for an address that is none."""
    _parse(address, "--connect")
    socket = context.socket(zmq.DEALER)
    _configure(socket)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 3000)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(f"cannot connect to {address}: {error.strerror}") from None
    return socket


class Inlet:
    """The receiving side of a socket, asked several times per draft: each call here is chosen for what it costs."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._descriptor = socket.FD
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._last: zmq.Frame | None = None

    def receive(self) -> list[bytes] | None:
        """The parts of the next message; None when there is none now."""
        if not self._poller.poll(0):
            return None
        part = self._socket.recv(zmq.NOBLOCK, copy=False)
        parts = [part.bytes]
        while part.more:
            part = self._socket.recv(zmq.NOBLOCK, copy=False)
            parts.append(part.bytes)
        self._last = part
        return parts

    def sender(self) -> str:
        """Where the last message came from: an IP address as tcp://HOST; empty where libzmq does not know."""
        try:
            host = str(self._last.get("Peer-Address")) if self._last is not None else ""
        except zmq.ZMQError:
            return ""
        return plain(f"tcp://[{host}]" if ":" in host else f"tcp://{host}") if host else ""

    def wait(self, mailbox: Mailbox[T], seconds: float) -> None:
        """Sleep until there may be a message or an item in the mailbox, at most `seconds`.

        select() because zmq_poll and poll() count whole milliseconds, longer than a draft may take. The socket's own
        descriptor is edge-triggered: the caller has received until there was none, and what came since is asked for
        first.
        """
        if self._poller.poll(0):
            return
        wakeup = mailbox.fileno()
        ready, _, _ = select.select([self._descriptor, wakeup], [], [], seconds)
        if wakeup in ready:
            mailbox.quiet()


def plain(address: str) -> str:
    """An address whose IPv4 host is not written as IPv6: sockets for both show it so."""
    return re.sub(r"\[::ffff:([\d.]+)\]", r"\1", address)


def _configure(socket: zmq.Socket[bytes]) -> None:
    for option, value in _OPTIONS.items():
        socket.setsockopt(option, value)


def _parse(address: str, option: str) -> str:
    """The host of tcp://HOST:PORT; raises ConfigError."""
    parts = urlparse(address)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "tcp" or not parts.hostname or not port:
        raise ConfigError(f"{option} {address!r} is not an address: write tcp://HOST:PORT, like tcp://127.0.0.1:7071")
    return parts.hostname


def _require_private(address: str, insecure: bool) -> None:
    host = _parse(address, "--bind")
    if host in _EVERYWHERE:
        raise ConfigError(f"--bind {address} would listen on every network: name the one address to listen on")
    if host not in _LOOPBACK and not insecure:
        raise ConfigError(
            f"--bind {address} listens beyond this machine and the wire is not encrypted yet: bind "
            "tcp://127.0.0.1:PORT behind an SSH tunnel, or add --insecure-no-auth on a network you trust "
            "(a tailnet, a direct cable)"
        )
