"""Who may connect to a verifier: the ZAP handler that libzmq asks about each key, and a test that it is asked.

libzmq silently lets every key in where no handler is asked, so a socket is tried before it listens. What breaks later
fails closed: without a handler nobody gets in.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import zmq
from zmq.auth import Authenticator
from zmq.utils import z85

from specmesh.core.peer_limits import Throttle
from specmesh.errors import ConfigError, InsecureKeys
from specmesh.security.curve import (
    CONNECTIONS,
    DOMAIN,
    HANDSHAKES,
    Context,
    Handshake,
    Socket,
    TcpConnection,
    handshake,
    next_event,
    protect_client,
    protect_server,
    unwatch,
    user_of,
    watch,
)
from specmesh.security.keys import SECRET, Identity, KeyFolder, Listing, new_identity

log = structlog.get_logger("specmesh.auth")

CHECK_INTERVAL = 0.2  # seconds between two looks at the list of drafters and at pending handshakes
HANDSHAKE_TIMEOUT = 5.0  # seconds that a handshake of the self-test may take
HELLO_TIMEOUT = 10.0  # seconds without a HELLO after which a connection is cut; drafters say it at once
STUCK = 10.0  # seconds without a turn after which the handler counts as dead
BAN_SECONDS = 30.0  # seconds that a key is kept out after one of its connections sent too much
MAX_KEYS_LOGGED = 16  # refused keys that the log names in a minute: whoever invents keys must not fill a disk


class _Zap(Authenticator):
    """pyzmq's handler; the User-Id of a message is the sender's key as we write keys."""

    def curve_user_id(self, client_public_key: bytes) -> str:
        return client_public_key.hex()


class NoKeys:
    """In the place of a guard where keys are not used: whoever connects may speak."""

    alive = True
    allowed = frozenset[str]()

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.failures: Counter[str] = Counter()
        self.introduced: frozenset[TcpConnection] | None = None

    def key_of(self, _: zmq.Frame) -> str:
        return ""

    def admits(self, _: str) -> bool:
        return True

    def ban(self, _: str) -> None:
        """Nobody is known again."""


class ZapGuard:
    """Lets in the keys on the list of drafters, and this machine's own. Answers libzmq on a thread of its own.

    `allowed` is replaced as a whole when the list has changed, after which `wake` is called. `failures` counts
    handshakes that failed, by reason. The router sets `introduced`: the connections of drafters, or None while some
    are unknown; others are cut when they have waited long enough.
    """

    def __init__(self, context: Context, keys: KeyFolder, wake: Callable[[], None]) -> None:
        """Read the keys; raises ConfigError where they are wrong."""
        self._context, self._keys, self._wake = context, keys, wake
        self._identity = keys.identity()
        self._stamp = self._stamped()
        self._trouble = ""
        self.names: dict[str, str] = {}
        self.allowed = self._read()
        self.failures: Counter[str] = Counter()
        self._logged = Throttle(60.0, MAX_KEYS_LOGGED)
        self.introduced: frozenset[TcpConnection] | None = None
        self._connections: dict[int, tuple[TcpConnection, float]] = {}  # and since when each has been no drafter's
        self._banned: dict[str, float] = {}
        self._listening = self._serving = False
        self._tested_port = ""
        self._closing, self._unwatched = threading.Event(), threading.Event()
        self._turned = time.monotonic()
        self._close: Callable[[], None] = lambda: None

    @property
    def alive(self) -> bool:
        """Keys are still asked about; a verifier whose guard is dead should end."""
        return self._serving and time.monotonic() - self._turned < STUCK

    def key_of(self, message: zmq.Frame) -> str:
        """Return the key that a message's sender has proved."""
        return user_of(message)

    def admits(self, key: str) -> bool:
        """Return True if a key, as we write keys, may connect and speak now."""
        return key in self.allowed and time.monotonic() >= self._banned.get(key, 0.0)

    def ban(self, key: str) -> None:
        now = time.monotonic()
        self._banned = {other: until for other, until in self._banned.items() if until > now} | {key: now + BAN_SECONDS}

    def protect(self, socket: Socket) -> None:
        """Guard this socket, which is not bound yet, from now on. Raises InsecureKeys where it would not hold."""
        protect_server(socket, self._identity)
        zap = _Zap(self._context)
        zap.configure_curve_callback(DOMAIN, self)
        zap.start()
        monitor = watch(socket, HANDSHAKES | CONNECTIONS)

        def close() -> None:
            socket.disable_monitor()  # while it is read
            self._closing.set()
            self._unwatched.set()
            thread.join(HANDSHAKE_TIMEOUT)
            if not thread.is_alive():  # else they are in use, and the process ends without them
                monitor.close(linger=0)
                zap.stop()

        self._close, self._serving = close, True
        thread = threading.Thread(target=self._run, args=(zap, monitor), name="auth", daemon=True)
        thread.start()
        try:
            self._prove(socket)
        except InsecureKeys:
            self.close()
            raise
        self._listening = True

    def callback(self, domain: str, key: bytes) -> bool:
        written = z85.decode(key).hex()
        if domain == DOMAIN and self.admits(written):
            return True
        if written not in self.allowed:
            self._log_refused(written)
        return False

    def close(self) -> None:
        """Let nobody in any more; to be called before the socket is closed."""
        self._close()
        self._close = lambda: None

    def _run(self, zap: _Zap, monitor: Socket) -> None:
        try:
            self._serve(zap, monitor)
        except Exception as error:  # noqa: BLE001  (whatever it is, nobody gets in any more, and that is told)
            log.critical("keys_not_asked", error=f"{type(error).__name__}: {error}", meaning="nobody gets in any more")
        self._serving = False
        while not self._unwatched.is_set():  # libzmq waits for who reads its monitor, also for being closed
            next_event(monitor, CHECK_INTERVAL)

    def _serve(self, zap: _Zap, monitor: Socket) -> None:
        poller = zmq.Poller()
        poller.register(zap.zap_socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        next_check = 0.0
        with asyncio.Runner() as runner:  # pyzmq's handler is a coroutine, which waits for nothing
            while not self._closing.is_set():
                self._turned = time.monotonic()
                for ready, _ in poller.poll(int(CHECK_INTERVAL * 1e3)):
                    if ready is monitor:
                        self._note(next_event(monitor))
                    else:
                        runner.run(zap.handle_zap_message(zap.zap_socket.recv_multipart()))
                now = time.monotonic()
                if now >= next_check:
                    next_check = now + CHECK_INTERVAL
                    self._reread()
                    self._cut_strangers(now)

    def _note(self, event: Mapping[str, Any] | None) -> None:
        """Follow connections and count handshakes; those of the self-test, which may come late, are neither."""
        if event is None or event["endpoint"].decode(errors="replace").rpartition(":")[2] == self._tested_port:
            return
        match event["event"], event["value"]:
            case zmq.EVENT_ACCEPTED, descriptor:
                if (connection := TcpConnection.at(descriptor)) is not None:
                    self._connections[descriptor] = connection, time.monotonic()
            case zmq.EVENT_DISCONNECTED, descriptor:
                self._connections.pop(descriptor, None)
            case _ if (ended := handshake(event)) is not Handshake.DONE:
                self.failures[ended] += 1

    def _cut_strangers(self, now: float) -> None:
        overdue: list[TcpConnection] = []
        for descriptor, (connection, since) in self._connections.items():
            if self.introduced is None or connection in self.introduced:
                self._connections[descriptor] = connection, now
            elif now - since > HELLO_TIMEOUT:
                overdue.append(connection)
        for connection in overdue:
            connection.cut()
            del self._connections[connection.descriptor]
        if overdue:
            log.info("strangers_cut", connections=len(overdue), meaning="no HELLO came over them")

    def _reread(self) -> None:
        """Take the list over when it has changed; a list that is wrong changes nothing, and is logged."""
        stamp, before = self._stamped(), self.allowed
        if stamp == self._stamp:
            return
        try:
            self.allowed = self._read()
        except (ConfigError, OSError) as error:  # read again next time: it may be the moment's trouble
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("drafters_not_read", error=self._trouble, meaning="those allowed before still are")
            return
        self._stamp, self._trouble = stamp, ""
        new, revoked = len(self.allowed - before), len(before - self.allowed)
        log.info("drafters_read", allowed=len(self.names), new=new, revoked=revoked)
        self._wake()

    def _stamped(self) -> tuple[int, ...]:
        return self._keys.stamp(Listing.DRAFTERS) + self._keys.stamp(SECRET)

    def _read(self) -> frozenset[str]:
        """The list, and this machine's own key unless it was replaced, perhaps because it leaked."""
        self.names = self._keys.listed(Listing.DRAFTERS)
        if self._keys.identity() != self._identity:
            log.warning("key_replaced", meaning="the old one lets nobody in; restart the verifier to use the new one")
            return frozenset(self.names)
        return frozenset(self.names) | {self._identity.public.hex()}

    def _log_refused(self, key: str) -> None:
        if self._listening and self._logged.due(key, time.monotonic()):
            log.warning("drafter_refused", key=key, meaning="to let it in: specmesh keys allow KEY --name NAME")

    def _prove(self, socket: Socket) -> None:
        """Try this very socket on a port of its own, which is closed again; raises InsecureKeys."""
        socket.bind("tcp://127.0.0.1:*")
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._tested_port = endpoint.rpartition(":")[2]
        try:
            for what, identity, right in (
                ("an unknown key", new_identity(), Handshake.KEY),
                ("no key", None, Handshake.MECHANISM),
                ("this machine's own key", self._identity, Handshake.DONE),
            ):
                ended = self._attempt(endpoint, identity)
                if ended is not right:
                    said = {Handshake.DONE: "was let in", None: "got no answer"}.get(ended, f"was refused ({ended})")
                    raise InsecureKeys(f"the self-test of the wire failed, so nothing listens: {what} {said}")
        finally:
            socket.unbind(endpoint)

    def _attempt(self, endpoint: str, identity: Identity | None) -> Handshake | None:
        """How the handshake of a client with these keys ends; None where it does not."""
        client = self._context.socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.IPV6, 1)
        if identity is not None:
            protect_client(client, identity, self._identity.public)
        monitor = watch(client)
        try:
            client.connect(endpoint)
            event = next_event(monitor, HANDSHAKE_TIMEOUT)
            return handshake(event) if event is not None else None
        finally:
            unwatch(client, monitor)
            client.close()
