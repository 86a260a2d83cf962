"""CURVE on ZeroMQ sockets: options of each side, admission, results of handshakes, senders.

Two locks keep strangers out of a verifier, and each is enough by itself:

- libzmq asks `ZapGuard` about each key in the handshake, and lets nobody in if no handler answers
  (ZAP_ENFORCE_DOMAIN).
- The router asks again about each message: only a handshake that the guard was asked about leaves a
  key with it.
"""

import contextlib
import itertools
import os
import secrets
import socket as sockets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, cast

import structlog
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from specmesh.core.throttle import Throttle
from specmesh.errors import ConfigError
from specmesh.security.keys import SECRET, Identity, KeyFolder, Listing

log = structlog.get_logger("specmesh.auth")

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

DOMAIN = "specmesh"  # the ZAP domain; libzmq asks no handler about a socket without one
BAN_SECONDS = 30.0  # seconds that a key is kept out after one of its connections sent too much
MAX_KEYS_LOGGED = 16
"""Refused keys that the log names in a minute: invented keys must not fill a disk."""

HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

_watched = itertools.count()


def protect_server(socket: Socket, identity: Identity) -> None:
    """Let in only keys that the ZAP handler admits.

    Without an enforced domain libzmq would not ask it.
    """
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, identity.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def protect_client(socket: Socket, identity: Identity, server: bytes) -> None:
    socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, identity.secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server)


class ZapGuard(ThreadAuthenticator):
    """Lets in the keys on the list of drafters, and this machine's own.

    pyzmq's thread answers libzmq. `reread` replaces `allowed` as a whole.

    names: the name of each key on the list.
    failures: failed handshakes, by reason.
    """

    def __init__(self, context: Context, keys: KeyFolder) -> None:
        """Read the keys. Raises ConfigError."""
        super().__init__(context)  # pyright: ignore[reportUnknownMemberType]  # of any context
        self._keys = keys
        self._identity = keys.identity()
        self._stamp = self._stamped(keys)
        self.names: dict[str, str] = {}
        self.allowed = self._read()
        self.failures: Counter[str] = Counter()
        self._banned: dict[str, float] = {}
        # Stamp of a list that could not be read, and was logged.
        self._wrong: tuple[int, ...] | None = None
        self._logged = Throttle(60.0, MAX_KEYS_LOGGED)
        self._mark = secrets.token_hex(16)
        self.configure_curve_callback(DOMAIN, self)

    def protect(self, socket: Socket) -> None:
        """Guard this socket, which is not bound yet, until `stop`."""
        protect_server(socket, self._identity)
        self.start()
        self.thread.name = "auth"

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the User-Id of the key's messages: a mark that no peer knows, and the key.

        If no handler is asked about a handshake, libzmq takes the User-Id that the peer sends.
        """
        return self._mark + client_public_key.hex()

    def key_of(self, user: str) -> str:
        """Return the key that the sender with this User-Id has proved; "" without one."""
        if not user.startswith(self._mark):
            return ""
        return user.removeprefix(self._mark)

    def stop(self) -> None:
        """Stop, even after the thread has died, which pyzmq would wait for."""
        if self.is_alive():
            super().stop()
            return
        pipe = cast("Socket | None", self.pipe)  # None before `start`, despite its annotation
        if pipe is not None:
            pipe.close(linger=0)

    def callback(self, _: str, key: bytes) -> bool:
        """Answer libzmq, on pyzmq's thread. An error ends the thread, and then nobody gets in."""
        written = z85.decode(key).hex()
        now = time.monotonic()
        if self.admits(written, now):
            return True
        self.failures["key"] += 1
        if written not in self.allowed and self._logged.due(written, now):
            meaning = "to let it in: specmesh keys allow KEY --name NAME"
            log.warning("drafter_refused", key=written, meaning=meaning)
        return False

    def admits(self, key: str, now: float) -> bool:
        """Return True if a key, as we write keys, may connect and send messages."""
        return key in self.allowed and now >= self._banned.get(key, 0.0)

    def ban(self, key: str, now: float) -> None:
        """Keep a key out for BAN_SECONDS."""
        banned = {key: until for key, until in self._banned.items() if until > now}
        banned[key] = now + BAN_SECONDS
        self._banned = banned

    def reread(self) -> bool:
        """Read the list if it has changed; return True if it was read.

        A list with an error is logged, and changes nothing.
        """
        stamp = self._stamped(self._keys)
        if stamp == self._stamp:
            return False
        before = self.allowed
        try:
            self.allowed = self._read()
        # A shortage of descriptors passes: the list is read again.
        except (ConfigError, OSError) as error:
            if stamp != self._wrong:
                meaning = "those allowed before still are"
                log.error("drafters_not_read", error=str(error), meaning=meaning)
            self._wrong = stamp
            return False
        self._stamp = stamp
        self._wrong = None
        new = len(self.allowed - before)
        revoked = len(before - self.allowed)
        log.info("drafters_read", allowed=len(self.names), new=new, revoked=revoked)
        return True

    @staticmethod
    def _stamped(keys: KeyFolder) -> tuple[int, ...]:
        return keys.stamp(Listing.DRAFTERS) + keys.stamp(SECRET)

    def _read(self) -> frozenset[str]:
        """Return the keys of the list and this machine's own.

        Its own key is left out if it was replaced, perhaps because it leaked.
        """
        names = self._keys.listed(Listing.DRAFTERS)
        own = {self._identity.public.hex()}
        if self._keys.identity() != self._identity:
            meaning = "the old one lets nobody in; restart the verifier to use the new one"
            log.warning("key_replaced", meaning=meaning)
            own.clear()
        self.names = names
        return frozenset(names) | own


# --- handshakes of a client


class Handshake(StrEnum):
    """The result of a handshake, or the end of its connection. Failures are labels of a counter."""

    DONE = "done"
    KEY = "key"  # the server does not allow the client's key
    MECHANISM = "mechanism"  # one side has keys and the other has none
    BROKEN = "broken"  # the other side left: it has another key, or the connection was cut
    DISCONNECTED = "disconnected"


def watch(socket: Socket) -> None:
    """Watch a socket that has not connected yet, until `unwatch`.

    Its monitor must be read: libzmq waits for its reader with everything. Its name is used once, so
    that no reader reaches an old socket that is still being closed.
    """
    name = f"inproc://handshakes-{next(_watched)}"
    socket.get_monitor_socket(HANDSHAKES | zmq.EVENT_DISCONNECTED, name)


def unwatch(socket: Socket) -> None:
    monitor = socket.get_monitor_socket()
    socket.disable_monitor()  # first, or libzmq would wait for a reader that has gone
    monitor.close(linger=0)


def next_handshake(monitor: Socket) -> Handshake | None:
    if not monitor.poll(0):
        return None
    event = parse_monitor_message(monitor.recv_multipart())
    match event["event"], event["value"]:
        case zmq.EVENT_DISCONNECTED, _:
            return Handshake.DISCONNECTED
        case zmq.EVENT_HANDSHAKE_SUCCEEDED, _:
            return Handshake.DONE
        case zmq.EVENT_HANDSHAKE_FAILED_AUTH, _:
            return Handshake.KEY
        case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return Handshake.MECHANISM
        case _:
            return Handshake.BROKEN


# --- senders of messages


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """A TCP connection of libzmq's, by its descriptor and the address of its other end."""

    descriptor: int
    end: tuple[object, ...]

    @classmethod
    def of(cls, known: Callable[[str | int], str]) -> Self | None:
        """Return the connection of a message, if libzmq knows it.

        known: returns a property of the message. None if another connection has the descriptor by
        now.
        """
        descriptor = int(known(zmq.SRCFD) or -1)
        host = known("Peer-Address")
        with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(descriptor)) as connection:
            end: tuple[object, ...] | str | bytes = connection.getpeername()
            if isinstance(end, tuple) and end[0] == host.partition("%")[0]:
                return cls(descriptor, end)
        return None

    def cut(self) -> None:
        """End the connection, for which libzmq has no call.

        Its I/O thread then finds that the peer has left. A descriptor that was used again since is
        left as it is.
        """
        with (
            contextlib.suppress(OSError),
            sockets.socket(fileno=os.dup(self.descriptor)) as connection,
        ):
            if connection.getpeername() == self.end:
                connection.shutdown(sockets.SHUT_RDWR)
