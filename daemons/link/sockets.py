"""The verifier's end of the wire: messages to and from drafters, by their connection's identity.

It limits the peers and their frames. The receiving side of a socket is the drafter's too.
"""

import asyncio
import contextlib
import errno
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator

import structlog
import zmq

from specmesh.core.liveness import Departure
from specmesh.core.statistics.snapshot import WireSection
from specmesh.core.throttle import Throttle
from specmesh.core.verifier.peer_limits import (
    BODY_WEIGHT,
    CONTROL_WEIGHT,
    Cost,
    FrameAction,
    PeerAccounts,
)
from specmesh.errors import ConfigError, FrameError, NotThereYet
from specmesh.security.addresses import ABSENT, bracketed, check_bind
from specmesh.security.curve import BAN_SECONDS, Context, Socket, TcpConnection, ZapGuard
from specmesh.wire import messages as m
from specmesh.wire.codec import HEADER, IDS_COUNT, MAX_FRAME, decode, encode, may_be_control
from specmesh.wire.messages import Kind

log = structlog.get_logger("specmesh.verifier")

UPDATE = "update specmesh on the machine with the lower version"
CUT_INTERVAL = 1.0
"""Seconds until a peer is cut again.

Its frames that are read meanwhile perhaps name the descriptor of another connection.
"""
LOG_INTERVAL = 10.0  # seconds between two equal log lines about peers: they must not fill a disk
MAX_FRAMES_PER_TURN = 64
MAX_BYTES_PER_TURN = 64 * 1024
"""Bytes of frames, after which other work of the loop comes first: the ids of a long text take 1 ms
for so many.
"""
MAX_REFUSED_PER_TURN = 16  # frames over the limits after which nothing is read for PAUSE
PAUSE = 4e-3
"""Seconds without reading.

ZeroMQ takes from its peers in turn, so a drafter's frames wait no longer in a flood of others.
"""
MAX_PARTS = 3  # one more than a message has with its sender's identity

OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: MAX_FRAME,
    zmq.SNDHWM: 256,  # frames for a peer that the network does not take
    zmq.RCVHWM: 64,
    zmq.HANDSHAKE_IVL: 5000,
    # With heartbeats libzmq aborts if a connection breaks while its queue is full.
    zmq.HEARTBEAT_IVL: 0,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: 5000,
    zmq.IPV6: 1,
}
_COSTS: dict[int, Cost] = {
    Kind.DRAFT: Cost.IDS,
    Kind.DRAFT_PROBS: Cost.IDS,
    Kind.NACK: Cost.NACKS,
    Kind.IDS: Cost.TEXT_IDS,
    Kind.HELLO: Cost.HELLOS,
    Kind.VOCAB: Cost.VOCABS,
    Kind.PING: Cost.PINGS,
}


@contextlib.contextmanager
def zmq_errors() -> Generator[None]:
    """Raise ZeroMQ's errors as OSError.

    Only this, `hand_over` and `Inlet.known` catch them.
    """
    try:
        yield
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror) from None


_MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
_LAST = int(zmq.NOBLOCK)
_UNSENT: dict[int | None, Departure] = {
    zmq.EAGAIN: Departure.BEHIND,
    zmq.EHOSTUNREACH: Departure.UNREACHABLE,
}


def hand_over(
    socket: Socket, traffic: WireSection, frame: bytes, identity: bytes | None = None
) -> Departure | None:
    """Send and count a frame; return why it was not sent: there is no room, or no peer.

    identity: of the peer, for a ROUTER.
    """
    try:
        if identity is not None:
            socket.send(identity, _MORE)
        socket.send(frame, _LAST)
    except zmq.ZMQError as error:
        if error.errno not in _UNSENT:
            raise
        return _UNSENT[error.errno]
    traffic.frames_sent += 1
    traffic.bytes_sent += len(frame)
    return None


@zmq_errors()
def open_socket(context: Context, kind: int, options: dict[zmq.SocketOption, int]) -> Socket:
    """Return a socket with these options; raise OSError if there are too many."""
    socket = context.socket(kind)
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket


def bind_router(
    context: Context, address: str, insecure: bool, guard: ZapGuard | None = None
) -> Socket:
    """Return a ROUTER bound to one address, beyond loopback only with a guard or if `insecure`.

    tcp://HOST:* is a free port, which `Router.address` names.
    Raise NotThereYet if no interface has the address, ConfigError for other reasons. The guard is
    stopped then.
    """
    check_bind(address, keyed=guard is not None, insecure=insecure, free_port=True)
    socket = open_socket(context, zmq.ROUTER, OPTIONS | {zmq.ROUTER_MANDATORY: 1, zmq.SNDHWM: 4096})
    try:
        with zmq_errors():
            if guard is not None:
                guard.protect(socket)
            socket.bind(address)
    except OSError as error:
        if guard is not None:
            guard.stop()
        socket.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{address} is in use", "stop what listens there or choose another --bind"
            ) from None
        reason = f"cannot bind {address}: {error.strerror}"
        if error.errno in ABSENT:
            raise NotThereYet(reason, "name an address of this machine") from None
        raise ConfigError(reason) from None
    return socket


class Inlet:
    """The receiving side of a socket.

    It is used several times per draft, so each call here was chosen for its cost.
    """

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._last: zmq.Frame | None = None
        self._on_readable: Callable[[], object] | None = None
        self._again: asyncio.TimerHandle | None = None

    def listen(self, on_readable: Callable[[], object]) -> None:
        """Have it called on the running event loop when there may be messages, until `close`."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, on_readable)
        self._on_readable = on_readable
        self.check()

    def check(self, at: float = 0.0) -> None:
        """Have messages noticed that are there already, not before `at`.

        It is called after each use of the socket, unless `receive` has just found no message: the
        descriptor shows changes only, and receiving or sending may have taken one.
        """
        if self._on_readable is not None and self._again is None and self._poller.poll(0):
            delay = max(at - time.monotonic(), 0.0)
            self._again = self._loop.call_later(delay, self._notice, self._on_readable)

    def _notice(self, on_readable: Callable[[], object]) -> None:
        self._again = None
        on_readable()

    def close(self) -> None:
        """Listen no more; to be called before the socket is closed."""
        if self._on_readable is not None:
            self._loop.remove_reader(self._socket.FD)
            self._on_readable = None
        if self._again is not None:
            self._again.cancel()

    def receive(self) -> list[bytes] | None:
        """Return the parts of the next message, at most MAX_PARTS; None if there is none now."""
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

    def known(self, key: str | int) -> str:
        """Return a fact that libzmq knows about the last message's sender; empty if it does not."""
        assert self._last is not None, "nothing was received yet"
        try:
            return str(self._last.get(key))
        except zmq.ZMQError:
            return ""


class Router:
    """A bound ROUTER.

    - Malformed frames are counted and dropped. They show all the same that their sender is there.
    - With keys, a frame counts only while its sender's key is allowed, whatever its handshake has
      proved before.
    - Frames beyond the limits of `peer_limits` are dropped. A peer that goes on is cut off, with
      keys for some time.
    - A drafter whose queue is full is let go and gets nothing more, as a lost DONE never comes
      again.

    gone: drafters that went away or are let go since the last `take_gone`, and why.
    """

    def __init__(
        self, socket: Socket, guard: ZapGuard | None = None, accounts: PeerAccounts | None = None
    ) -> None:
        """Begin with a bound socket; guard: of its keys, if they are used."""
        self.socket = socket
        self.inlet = Inlet(socket)
        self.address = plain(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        self.traffic = WireSection(
            handshake_failures=Counter() if guard is None else guard.failures
        )
        self.traffic.handshake_failures["hello"] = 0  # scrapers see a counter from the start
        self.encrypted = guard is not None
        self._guard = guard
        self.accounts = accounts or PeerAccounts()
        self.gone = dict[bytes, Departure]()
        self.paused_until = 0.0
        self._cut = Throttle(CUT_INTERVAL)
        self._logged = Throttle(LOG_INTERVAL)

    @property
    def guarded(self) -> bool:
        """Return False if strangers are to be kept out and are not."""
        return self._guard is None or self._guard.is_alive()

    def send(self, identity: bytes, message: m.Message) -> int:
        """Send to a peer; return the frame's bytes, or 0 if it is gone or does not keep up."""
        if identity in self.gone:
            return 0
        if isinstance(message, m.Truth | m.Sync):
            self.accounts.limits(identity).earn(message.draft_n)
        frame = encode(message)
        unsent = hand_over(self.socket, self.traffic, frame, identity)
        self.inlet.check()
        if unsent is not None:
            self.gone[identity] = unsent
            return 0
        return len(frame)

    def let_go(self, identity: bytes) -> None:
        """Let a drafter go that does not keep up."""
        self.gone[identity] = Departure.BEHIND

    def take_gone(self) -> dict[bytes, Departure]:
        """Return the drafters that went away or are let go since the last call, and why."""
        gone = self.gone
        self.gone = {}
        if self._guard is not None and self._guard.reread():
            allowed = self._guard.allowed
            for identity, key in self.accounts.keys.items():
                if key not in allowed:
                    gone[identity] = Departure.REVOKED
        return gone

    def receive(self, now: float) -> Iterator[tuple[bytes, m.Message | None, int]]:
        """Yield identity, message and bytes of a bounded number of frames.

        The message is None for a malformed frame.
        """
        if now < self.paused_until:
            self.inlet.check(self.paused_until)
            return
        refused = 0
        size = 0
        for _ in range(MAX_FRAMES_PER_TURN):
            if size >= MAX_BYTES_PER_TURN:
                break
            parts = self.inlet.receive()
            if parts is None:
                return
            reason = self.objection(parts, now)
            if reason is not None:
                self.traffic.rejected[reason] += 1
                refused += 1
                if refused == MAX_REFUSED_PER_TURN:
                    self.paused_until = now + PAUSE
                    self.inlet.check(self.paused_until)
                    return
                continue
            identity, frame = parts
            size += len(frame)
            self.traffic.frames_received += 1
            self.traffic.bytes_received += len(frame)
            try:
                message: m.Message | None = decode(frame)
            except FrameError as error:
                self._undecoded(identity, frame, error, now)
                message = None
            yield identity, message, len(frame)
        self.inlet.check()

    # --- the sender of the newest message

    def objection(self, parts: list[bytes], now: float) -> str | None:
        """Return why the newest message is not decoded, as a counter's label; None if it is."""
        identity = parts[0]
        key = self.proved_key()
        if self._guard is not None and not self._guard.admits(key, now):
            self._end_connection(identity, now)
            return "key"
        if self.accounts.keys.get(identity, key) != key:
            return "key"  # it uses the identity of a drafter with another key
        if len(parts) != 2:
            self.bad(identity, now)
            return "parts"
        frame = parts[1]
        kind = frame[3] if len(frame) >= HEADER.size else 0
        cost = _COSTS.get(kind)
        amount = 1
        if cost is Cost.IDS or cost is Cost.TEXT_IDS:
            amount = max(int.from_bytes(frame[IDS_COUNT], "little"), 1)
        size = len(frame)
        if kind == Kind.BODY:
            size *= BODY_WEIGHT
        elif kind >= Kind.HELLO:
            size *= CONTROL_WEIGHT
        action = self.accounts.limits(identity, key).frame(size, cost, amount, now)
        if action is FrameAction.CUT:
            self._cut_off(identity, now)
        return None if action is FrameAction.TAKE else "rate"

    def bad(self, identity: bytes, now: float) -> None:
        """Count a sender's last message, which was malformed or not for a verifier."""
        if self.accounts.limits(identity, self.proved_key()).bad(now) is FrameAction.CUT:
            self._cut_off(identity, now)

    def sender(self) -> str:
        """Return the IP address that it came from as tcp://HOST; empty if that is unknown."""
        host = self.inlet.known("Peer-Address")
        if not host:
            return ""
        return plain(f"tcp://{bracketed(host)}")

    def proved_key(self) -> str:
        """Return the key that it has proved; empty if keys are not used."""
        if self._guard is None:
            return ""
        return self._guard.key_of(self.inlet.known("User-Id"))

    def name_of(self, key: str) -> str:
        """Return the name of an allowed key; empty if it has none."""
        if self._guard is None:
            return ""
        return self._guard.names.get(key, "")

    def _cut_off(self, identity: bytes, now: float) -> None:
        """End the connection of a peer that sent too much, and bar its key for a while."""
        if not self._end_connection(identity, now):
            return
        self.gone[identity] = Departure.FLOODING
        key = self.proved_key()
        facts: dict[str, object] = {}
        if self._guard is not None:
            self._guard.ban(key, now)
            facts = {"key": self.name_of(key) or key, "barred_s": BAN_SECONDS}
        if self._logged.due("cut off", now):
            log.warning("peer_cut_off", address=self.sender(), meaning="it sent too much", **facts)

    def _end_connection(self, identity: bytes, now: float) -> bool:
        """Cut the sender's connection; return False if that was just done."""
        if not self._cut.due(identity, now):
            return False
        connection = TcpConnection.of(self.inlet.known)
        if connection is not None:
            connection.cut()
        return True

    def _undecoded(self, identity: bytes, frame: bytes, error: FrameError, now: float) -> None:
        self.traffic.rejected[error.reason] += 1
        self.bad(identity, now)
        if error.reason == "version":
            own = m.PROTOCOL_VERSION
            text = f"this verifier speaks protocol version {own}, the frame says {error.seen}"
            self.send(identity, m.Error("version", text))
            if self._logged.due("version", now):
                log.warning("other_version", address=self.sender(), error=text, meaning=UPDATE)
        elif may_be_control(frame, error):
            self.send(identity, m.Error("hello", "a frame came damaged: begin anew, with HELLO"))


def plain(address: str) -> str:
    """Return an address whose IPv4 host is not written as IPv6, as sockets for both show it."""
    return re.sub(r"\[::ffff:([\d.]+)\]", r"\1", address)
