"""The verifier's end of the wire: messages to and from drafters, by the identity of their connection; who of them may
speak, and how much. The receiving side of a socket is the drafter's, too.
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
    Cost,
    FrameAction,
    PeerAccounts,
)
from specmesh.errors import ConfigError, FrameError, NotThereYet
from specmesh.security.addresses import ABSENT, check_bind
from specmesh.security.curve import BAN_SECONDS, Context, Socket, TcpConnection, ZapGuard
from specmesh.wire import messages as m
from specmesh.wire.codec import HEADER, IDS_COUNT, MAX_FRAME, decode, encode, may_be_control
from specmesh.wire.messages import Kind

log = structlog.get_logger("specmesh.verifier")

UPDATE = "update specmesh on the machine with the lower version"
CUT_INTERVAL = 1.0  # seconds until a peer is cut again: what is read of it meanwhile names another's descriptor perhaps
LOG_INTERVAL = (
    10.0  # seconds between two log lines of peers that do the same: they must not fill a disk
)
MAX_FRAMES_PER_TURN = 64
MAX_REFUSED_PER_TURN = (
    16  # frames over the limits after which a turn reads no more, and the next do not for PAUSE
)
PAUSE = 4e-3  # seconds; ZeroMQ takes from its peers in turn, so a drafter's frames wait no longer beside a flood
MAX_PARTS = 3  # one more than a message of ours has with its sender's identity: enough to know that it is none

OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: MAX_FRAME,
    zmq.SNDHWM: 256,  # frames for a peer that the network does not take; the verifier's are for many sessions
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
_COSTS: dict[int, Cost] = {
    Kind.DRAFT: Cost.IDS,
    Kind.DRAFT_PROBS: Cost.IDS,
    Kind.NACK: Cost.NACKS,
    Kind.HELLO: Cost.HELLOS,
    Kind.VOCAB: Cost.VOCABS,
    Kind.PING: Cost.PINGS,
}


@contextlib.contextmanager
def zmq_errors() -> Generator[None]:
    """Raise what ZeroMQ cannot do as OSError. Its own errors are caught here, by `hand_over` and by `Inlet.known`."""
    try:
        yield
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror) from None


_MORE, _LAST = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.NOBLOCK)
_UNSENT: dict[int | None, Departure] = {
    zmq.EAGAIN: Departure.BEHIND,
    zmq.EHOSTUNREACH: Departure.UNREACHABLE,
}


def hand_over(
    socket: Socket, traffic: WireSection, frame: bytes, identity: bytes | None = None
) -> Departure | None:
    """Send and count a frame, by a ROUTER to that peer; return why it was not sent: no room for it, or nobody there."""
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
    socket = context.socket(kind)
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket


def bind_router(
    context: Context, address: str, insecure: bool, guard: ZapGuard | None = None
) -> Socket:
    """Return a ROUTER bound to one address, beyond loopback only with a guard or if `insecure`.
    Raises NotThereYet if no interface has the address, ConfigError for other reasons; the guard is
    stopped then."""
    check_bind(address, keyed=guard is not None, insecure=insecure)
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
        what = f"cannot bind {address}: {error.strerror}"
        if error.errno in ABSENT:
            raise NotThereYet.of(what, "name an address of this machine") from None
        raise ConfigError(what) from None
    return socket


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

    def check(self, at: float = 0.0) -> None:
        """See to it that messages are heard of, not before `at`. To be called after each turn that may have used the
        socket: its descriptor tells of changes only, and receiving or sending may have taken one."""
        if self._again is None and self._poller.poll(0):
            self._again = self._call_later(max(at - time.monotonic(), 0.0), self._hear_again)

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

    def known(self, what: str | int) -> str:
        """Return what libzmq knows of the last message's sender, empty for nothing; only after `receive` gave one."""
        assert self._last is not None, "nothing was received yet"
        try:
            return str(self._last.get(what))
        except zmq.ZMQError:
            return ""


class Router:
    """A bound ROUTER. Frames that are none are counted and dropped; their sender counts as heard all the same. With
    keys, a frame counts only while its sender's key is allowed, whatever its handshake has proved before. Frames beyond
    core.peer_limits are dropped, and who goes on is cut off, with keys for some time. A drafter whose queue is full is
    let go, and gets nothing more: a lost DONE is for ever. gone: who went away, or is to, and why, since the last
    `take_gone`."""

    def __init__(
        self, socket: Socket, guard: ZapGuard | None = None, accounts: PeerAccounts | None = None
    ) -> None:
        self.socket, self.inlet = socket, Inlet(socket)
        self.address = plain(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        self.traffic = WireSection(
            handshake_failures=Counter() if guard is None else guard.failures
        )
        self.traffic.handshake_failures["hello"] = 0  # scrapers see a counter from the start
        self.encrypted, self._guard = guard is not None, guard
        self.accounts, self.gone = accounts or PeerAccounts(), dict[bytes, Departure]()
        self.paused_until = 0.0
        self._cut, self._logged = Throttle(CUT_INTERVAL), Throttle(LOG_INTERVAL)

    @property
    def guarded(self) -> bool:
        """Strangers are kept out still, where they are to be."""
        return self._guard is None or self._guard.is_alive()

    def send(self, identity: bytes, message: m.Message) -> int:
        """Send to a peer and return the bytes handed over; 0 when it is gone or does not keep up."""
        if identity in self.gone:
            return 0
        if isinstance(message, m.Truth | m.Sync):
            self.accounts.limits(identity).earn(message.draft_n)
        frame = encode(message)
        unsent = hand_over(self.socket, self.traffic, frame, identity)
        if unsent is not None:
            self.gone[identity] = unsent
            return 0
        return len(frame)

    def take_gone(self) -> dict[bytes, Departure]:
        """Return the drafters that went away, or are to, since the last call, and why."""
        gone, self.gone = self.gone, {}
        if self._guard is not None and self._guard.reread():
            allowed = self._guard.allowed
            gone |= {
                identity: Departure.REVOKED
                for identity, key in self.accounts.keys.items()
                if key not in allowed
            }
        return gone

    def receive(self, now: float) -> Iterator[tuple[bytes, m.Message | None, int]]:
        """Yield (identity, message, bytes) of a bounded number of frames; message None for what is no frame."""
        if now < self.paused_until:
            return
        refused = 0
        for _ in range(MAX_FRAMES_PER_TURN):
            parts = self.inlet.receive()
            if parts is None:
                return
            reason = self.objection(parts, now)
            if reason is not None:
                self.traffic.rejected[reason] += 1
                refused += 1
                if refused == MAX_REFUSED_PER_TURN:
                    self.paused_until = now + PAUSE
                    return
                continue
            identity, frame = parts
            self.traffic.frames_received += 1
            self.traffic.bytes_received += len(frame)
            try:
                message: m.Message | None = decode(frame)
            except FrameError as error:
                self._undecoded(identity, frame, error, now)
                message = None
            yield identity, message, len(frame)

    # --- the sender of the newest message

    def objection(self, parts: list[bytes], now: float) -> str | None:
        """Return why the newest message is not to be decoded, as a label of a counter; None if it is."""
        identity, key = parts[0], self.proved_key()
        if self._guard is not None and not self._guard.admits(key, now):
            self._end_connection(identity, now)
            return "key"
        if (
            self.accounts.keys.get(identity, key) != key
        ):  # it calls itself as a drafter does that has another
            return "key"
        if len(parts) != 2:
            self.bad(identity, now)
            return "parts"
        frame = parts[1]
        kind = frame[3] if len(frame) >= HEADER.size else 0
        cost = _COSTS.get(kind)
        amount = max(int.from_bytes(frame[IDS_COUNT], "little"), 1) if cost is Cost.IDS else 1
        size = len(frame) * (BODY_WEIGHT if kind >= Kind.HELLO else 1)
        action = self.accounts.limits(identity, key).frame(size, cost, amount, now)
        if action is FrameAction.CUT:
            self._cut_off(identity, now)
        return None if action is FrameAction.TAKE else "rate"

    def bad(self, identity: bytes, now: float) -> None:
        """Count a sender's last message, which was no frame, or none for a verifier."""
        if self.accounts.limits(identity, self.proved_key()).bad(now) is FrameAction.CUT:
            self._cut_off(identity, now)

    def sender(self) -> str:
        """Return the IP address that it came from as tcp://HOST; empty where libzmq does not know."""
        host = self.inlet.known("Peer-Address")
        return plain(f"tcp://[{host}]" if ":" in host else f"tcp://{host}") if host else ""

    def proved_key(self) -> str:
        """Return the key that it has proved; empty where keys are not used."""
        return self._guard.key_of(self.inlet.known("User-Id")) if self._guard is not None else ""

    def name_of(self, key: str) -> str:
        return self._guard.names.get(key, "") if self._guard is not None else ""

    def _cut_off(self, identity: bytes, now: float) -> None:
        """End the connection of a sender of too much; its key stays out for a while."""
        if not self._end_connection(identity, now):
            return
        self.gone[identity] = Departure.FLOODING
        key, whose = self.proved_key(), dict[str, object]()
        if self._guard is not None:
            self._guard.ban(key, now)
            whose = {"key": self.name_of(key) or key, "barred_s": BAN_SECONDS}
        if self._logged.due("cut off", now):
            log.warning("peer_cut_off", address=self.sender(), meaning="it sent too much", **whose)

    def _end_connection(self, identity: bytes, now: float) -> bool:
        """Cut the sender's connection; return False if that was just done."""
        due = self._cut.due(identity, now)
        if due and (connection := TcpConnection.of(self.inlet.known)) is not None:
            connection.cut()
        return due

    def _undecoded(self, identity: bytes, frame: bytes, error: FrameError, now: float) -> None:
        self.traffic.rejected[error.reason] += 1
        self.bad(identity, now)
        if error.reason == "version":
            text = f"this verifier speaks protocol version {m.PROTOCOL_VERSION}, the frame says {error.seen}"
            self.send(identity, m.Error("version", text))
            if self._logged.due("version", now):
                log.warning("other_version", address=self.sender(), error=text, meaning=UPDATE)
        elif may_be_control(frame, error):
            self.send(identity, m.Error("hello", "a frame came damaged: begin anew, with HELLO"))


def plain(address: str) -> str:
    """An address whose IPv4 host is not written as IPv6: sockets for both show it so."""
    return re.sub(r"\[::ffff:([\d.]+)\]", r"\1", address)
