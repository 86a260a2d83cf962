"""What the kernel tells of the other end of a connection: the client's socket, and what that has
not read."""

import socket
import struct
from dataclasses import dataclass

_SOCK_DIAG, _BY_FAMILY = 4, 20  # a netlink family, and its question: see sock_diag(7)
_REQUEST, _ANY_STATE, _NO_COOKIE = 1, 0xFFFFFFFF, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_WANTED = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_IDENTITY = struct.Struct("=4s16s16sIII")  # ports, addresses, interface, cookie
_FOUND = struct.Struct("=BBBB48sIIIII")  # ..., identity, expiry, unread, unsent, user, inode


@dataclass(frozen=True, slots=True)
class OtherEnd:
    """unread: bytes that came, and that its program has not read. held: a program still has it."""

    unread: int
    held: bool


def other_end(connection: socket.socket) -> OtherEnd | None:
    """Return the other end of a TCP connection within this machine. Return None where the kernel
    does not tell: of another machine or network namespace, of a Unix socket, or without Linux."""
    if not hasattr(socket, "AF_NETLINK") or connection.family == socket.AF_UNIX:
        return None
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)  # the answer is there once the question was sent
            kernel.send(_question(connection))
            answer = kernel.recv(4096)
    except OSError:
        return None
    return _read(answer)


def _question(connection: socket.socket) -> bytes:
    """Return what asks for the socket whose peer this connection is. Raises OSError."""
    family, theirs, ours = connection.family, connection.getpeername(), connection.getsockname()
    ports = struct.pack("!HH", theirs[1], ours[1])
    addresses = [socket.inet_pton(family, one[0]).ljust(16, b"\0") for one in (theirs, ours)]
    identity = _IDENTITY.pack(ports, *addresses, 0, _NO_COOKIE, _NO_COOKIE)
    body = _WANTED.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + identity
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body


def _read(answer: bytes) -> OtherEnd | None:
    """Return what the kernel answered; None where it knows no such socket."""
    if len(answer) < _HEADER.size + _FOUND.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    *_, unread, _, _, inode = _FOUND.unpack_from(answer, _HEADER.size)
    return OtherEnd(unread, held=inode != 0)  # one that its program has closed has no inode


def hears_nothing(connection: socket.socket) -> bool:
    """Return whether a connection is known to have nobody at its other end: of a Unix socket at
    once, of TCP once something that was sent has come back as a reset."""
    try:
        with connection.dup() as own:
            own.setblocking(False)
            own.send(b"")
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    return False
