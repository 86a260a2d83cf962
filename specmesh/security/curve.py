"""CURVE on ZeroMQ sockets: the options for each side, and how a handshake ended, as the socket's monitor tells."""

import contextlib
import itertools
import os
import socket as sockets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from specmesh.security.keys import Identity

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

DOMAIN = "specmesh"  # the ZAP domain; libzmq asks no handler about a socket without one
HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
CONNECTIONS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED

_watched = itertools.count()


class Handshake(StrEnum):
    """How one ended. The failures are labels of a counter."""

    DONE = "done"
    KEY = "key"  # the server does not allow the client's key
    MECHANISM = "mechanism"  # one side has keys and the other has none
    CRYPTOGRAPHY = "cryptography"  # as a server sees it: the client expects a server with another key
    BROKEN = "broken"  # the other side left: cut, or, as a client sees it, a server with another key


def protect_server(socket: Socket, identity: Identity) -> None:
    """Let in only whom the ZAP handler admits: without an enforced domain libzmq would not ask it."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, identity.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def protect_client(socket: Socket, identity: Identity, server: bytes) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, identity.secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server)


def watch(socket: Socket, events: int = HANDSHAKES) -> Socket:
    """Return a monitor of a socket that has not connected or bound yet; end it by `unwatch`.

    It must be read: libzmq waits for its reader with everything else. Its name is used once, because a new reader could
    else reach an old socket that is still being closed.
    """
    return socket.get_monitor_socket(events, f"inproc://handshakes-{next(_watched)}")


def unwatch(socket: Socket, monitor: Socket) -> None:
    socket.disable_monitor()  # first, or libzmq would wait for a reader that has gone
    monitor.close(linger=0)


def next_event(monitor: Socket, patience: float = 0.0) -> Mapping[str, Any] | None:
    """Wait at most `patience` seconds for the next event, as pyzmq parses it; None where there is none.

    value: of a connection its descriptor. endpoint: where a listening socket listens.
    """
    return parse_monitor_message(monitor.recv_multipart()) if monitor.poll(int(patience * 1e3)) else None


def handshake(event: Mapping[str, Any]) -> Handshake:
    match event["event"], event["value"]:
        case zmq.EVENT_HANDSHAKE_SUCCEEDED, _:
            return Handshake.DONE
        case zmq.EVENT_HANDSHAKE_FAILED_AUTH, _:
            return Handshake.KEY
        case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return Handshake.MECHANISM
        case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return Handshake.CRYPTOGRAPHY
    return Handshake.BROKEN


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """A TCP connection of libzmq's, by its descriptor and where it leads."""

    descriptor: int
    end: tuple[object, ...]

    @classmethod
    def of(cls, message: zmq.Frame) -> Self | None:
        """The one a message came over; None where libzmq does not know, or another has its descriptor by now."""
        with contextlib.suppress(zmq.ZMQError):
            found = cls.at(int(message.get(zmq.SRCFD)))
            if found is not None and found.end[0] == str(message.get("Peer-Address")).partition("%")[0]:
                return found
        return None

    @classmethod
    def at(cls, descriptor: int) -> Self | None:
        with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
            end = connection.getpeername()
            if isinstance(end, tuple):  # else some other kind of socket has the descriptor now
                return cls(descriptor, end)
        return None

    def cut(self) -> None:
        """End it, for which libzmq has no call: its I/O thread then finds that the peer has left.

        Only where it still leads where it did: descriptors are used again.
        """
        with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(self.descriptor)) as connection:
            if connection.getpeername() == self.end:
                connection.shutdown(sockets.SHUT_RDWR)


def user_of(message: zmq.Frame) -> str:
    """The key of a message's sender, as its handshake has proved it; empty where there was none."""
    try:
        return str(message.get("User-Id"))
    except zmq.ZMQError:
        return ""
