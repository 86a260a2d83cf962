"""The other end of a connection, as the kernel sees it: the client's socket."""

import socket
import struct
from dataclasses import dataclass

# of netlink: see sock_diag(7)
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_WANTED = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_IDENTITY = struct.Struct("=4s16s16sIII")  # ports, addresses, interface, cookie
_UCRED = struct.Struct("=iII")  # process, user, group: of Linux, see unix(7)
_SOL_LOCAL = 0  # of macOS, see unix(4)
_LOCAL_PEERCRED = 1
_XUCRED = struct.Struct("=II")  # version, user; groups follow
_FOUND = struct.Struct("=BBBB48sIIIII")  # ..., identity, expiry, unread, unsent, user, inode


@dataclass(frozen=True, slots=True)
class OtherEnd:
    """A client's socket. unread: bytes that it has received. held: a program still has it."""

    unread: int
    held: bool


def other_end(connection: socket.socket) -> OtherEnd | None:
    """Return the other end of a TCP connection within this machine.

    Returns None if the kernel does not know it: for another machine or network namespace, for a
    Unix socket, and without Linux.
    """
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
    """Return the question for the socket at the other end of a connection. Raises OSError."""
    family = connection.family
    theirs = connection.getpeername()
    ours = connection.getsockname()
    ports = struct.pack("!HH", theirs[1], ours[1])
    their_address = socket.inet_pton(family, theirs[0]).ljust(16, b"\0")
    our_address = socket.inet_pton(family, ours[0]).ljust(16, b"\0")
    identity = _IDENTITY.pack(ports, their_address, our_address, 0, _NO_COOKIE, _NO_COOKIE)
    body = _WANTED.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + identity
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body


def _read(answer: bytes) -> OtherEnd | None:
    """Return the socket of the kernel's answer; None if it knows no such socket."""
    if len(answer) < _HEADER.size + _FOUND.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    *_, unread, _, _, inode = _FOUND.unpack_from(answer, _HEADER.size)
    return OtherEnd(unread, held=inode != 0)  # a closed socket has no inode


def user_of(connection: socket.socket) -> int | None:
    """Return the number of the user at the other end of a Unix socket.

    Returns None for any other connection, and where the kernel does not name the user.
    """
    if connection.family != socket.AF_UNIX:
        return None
    try:
        if hasattr(socket, "SO_PEERCRED"):
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            _, user, _ = _UCRED.unpack(found)
        else:
            found = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
            _, user = _XUCRED.unpack(found)
    except (OSError, struct.error):
        return None
    return int(user)


def has_no_peer(connection: socket.socket) -> bool:
    """Return True if nothing is at the other end of a connection.

    A Unix socket shows it at once, TCP after something that was sent has come back as a reset.
    """
    try:
        with connection.dup() as own:
            own.setblocking(False)
            own.send(b"")
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    return False
