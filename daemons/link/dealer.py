"""The drafter's end of the wire: messages to and from the one verifier it is connected to."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

import zmq

from specmesh.core.host_numbers import HostNumbers
from specmesh.core.states import state_after
from specmesh.core.statistics.snapshot import WireSection
from specmesh.daemons.link.sockets import (
    MAX_FRAMES_PER_TURN,
    OPTIONS,
    Inlet,
    hand_over,
    open_socket,
    zmq_errors,
)
from specmesh.errors import ConfigError, FrameError
from specmesh.security.addresses import bracketed, check_connect, endpoint
from specmesh.security.curve import (
    Context,
    Handshake,
    Socket,
    next_handshake,
    protect_client,
    unwatch,
    watch,
)
from specmesh.security.keys import Identity, KeyFolder, Listing
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode, may_be_control

CHECK_INTERVAL = 0.2  # seconds between two looks at handshakes, or tries with a refused key

_DEALER_OPTIONS = OPTIONS | {
    zmq.IMMEDIATE: 1,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.CONNECT_TIMEOUT: 3000,
}
_MEANINGS = {
    Handshake.KEY: "it does not allow this machine's key: run "
    "`specmesh keys allow KEY --name NAME` there, with what `specmesh keys show` prints here",
    Handshake.MECHANISM: "one of the two has keys and the other has none: run `specmesh pair` "
    "there and then here (or `specmesh keys new` where they are missing), or give both "
    "--insecure-no-auth",
    Handshake.BROKEN: "nothing answers there with the key that is known for it: is it running, "
    "and is its key, which `specmesh keys show` prints there, the one that `specmesh keys list` "
    "shows here for this address?",
}


class Route:
    """The way to one verifier, and the key that this one must prove.

    numbers: of its host. libzmq gets numbers only: it looks names up on the one thread that all its
        connections share.
    """

    def __init__(
        self, context: Context, address: str, insecure: bool = False, keys: KeyFolder | None = None
    ) -> None:
        """Begin without a connection; keys: None if none are used."""
        self.address = address
        self._context = context
        self._insecure = insecure
        self._keys = keys
        self._stamp: tuple[int, ...] = ()
        self._known: bytes | None = None
        host, self._port = endpoint(address)
        self.numbers = HostNumbers(host)

    def check(self) -> Identity | None:
        """Return this machine's key, if keys are used.

        Raise ConfigError for a missing key, a malformed address, and an address that needs a key.
        """
        identity = self._keys.identity() if self._keys is not None else None
        if self._keys is not None:
            self._stamp = self._keys.stamp(Listing.VERIFIERS)
            self._known = self._keys.verifier_at(self.address)
        check_connect(self.address, keyed=self._known is not None, insecure=self._insecure)
        return identity

    def open(self) -> Socket:
        """Return a fresh DEALER that connects, and reconnects, to the verifier.

        It is watched until `close_dealer`. While the verifier's number is unknown it does not
        connect.
        Raise ConfigError as `check` does, OSError if there are too many sockets.
        """
        identity = self.check()
        socket = open_socket(self._context, zmq.DEALER, _DEALER_OPTIONS)
        if identity is not None and self._known is not None:
            protect_client(socket, identity, self._known)
        try:
            with zmq_errors():
                watch(socket)
        except OSError:
            socket.close(linger=0)
            raise
        number = self.numbers.number
        if number is None:
            return socket
        try:
            with zmq_errors():
                socket.connect(f"tcp://{bracketed(number)}:{self._port}")
        except OSError as error:
            close_dealer(socket)
            raise ConfigError(f"cannot connect to {self.address}: {error.strerror}") from None
        return socket

    def changed(self) -> bool:
        """Return True if the known key is another than when it was opened.

        A damaged list of keys changes nothing.
        """
        if self._keys is None:
            return False
        stamp = self._keys.stamp(Listing.VERIFIERS)
        if stamp == self._stamp:
            return False
        try:
            changed = self._keys.verifier_at(self.address) != self._known
        except (ConfigError, OSError):
            return False  # looked at again next time
        self._stamp = stamp
        return changed


def close_dealer(socket: Socket, linger: int = 0) -> None:
    """Close a DEALER and its monitor; frames in its queue have `linger` milliseconds to leave."""
    unwatch(socket)
    socket.close(linger=linger)


class ConnectionState(Enum):
    """The state of a drafter's connection to its verifier.

    - HELD: libzmq has it, or begins it.
    - CUT: it had ended at the last look, and libzmq makes another; or it had no room for a CLOSE,
      which is never repeated.
    - LEFT: it was ended here. The next look begins another.
    """

    HELD = "held"
    CUT = "cut"
    LEFT = "left"


class ConnectionEvent(Enum):
    """An event that changes the state.

    - SHAKEN: a handshake has ended, well or not. libzmq makes it for each of its connections.
    - BROKEN: the connection has ended.
    - CLOSE_LOST: there was no room for a CLOSE.
    - ENDED_HERE: the verifier, or the keys here, keep this drafter out.
    - RENEWED: a fresh one was begun.
    """

    SHAKEN = "handshake ended"
    BROKEN = "broken"
    CLOSE_LOST = "close lost"
    ENDED_HERE = "ended here"
    RENEWED = "renewed"


CONNECTION_STATES: Mapping[ConnectionState, Mapping[ConnectionEvent, ConnectionState]] = {
    ConnectionState.HELD: {
        ConnectionEvent.SHAKEN: ConnectionState.HELD,
        ConnectionEvent.BROKEN: ConnectionState.CUT,
        ConnectionEvent.CLOSE_LOST: ConnectionState.CUT,
        ConnectionEvent.ENDED_HERE: ConnectionState.LEFT,
        ConnectionEvent.RENEWED: ConnectionState.HELD,
    },
    ConnectionState.CUT: {
        ConnectionEvent.SHAKEN: ConnectionState.HELD,
        ConnectionEvent.BROKEN: ConnectionState.CUT,
        ConnectionEvent.ENDED_HERE: ConnectionState.LEFT,
        ConnectionEvent.RENEWED: ConnectionState.HELD,
    },
    ConnectionState.LEFT: {
        ConnectionEvent.ENDED_HERE: ConnectionState.LEFT,
        ConnectionEvent.RENEWED: ConnectionState.HELD,
    },
}
"""The state that follows each event, in each state.

A connection that was left is no longer looked at: a fresh one follows, or an attempt at it that
keys or the system forbid.
"""


class Dealer:
    """A connected DEALER.

    A fresh one replaces a connection that went silent or was refused.

    traffic: counts of frames. state: changed by `advance` only.
    refusal: why the verifier, or the keys here, keep this drafter out; None if they do not.
    next_look: when `look` does something again.
    """

    def __init__(self, route: Route, traffic: WireSection | None = None) -> None:
        """Connect by a route."""
        self._route = route
        self.socket = route.open()
        self.inlet = Inlet(self.socket)
        self._on_readable: Callable[[], object] | None = None
        self.traffic = traffic or WireSection()
        self.state = ConnectionState.HELD
        self.refusal: str | None = None
        self.next_look = 0.0

    def advance(self, event: ConnectionEvent) -> None:
        """Change its state. Raise InvalidTransition if it has no such event."""
        self.state = state_after(CONNECTION_STATES, "connection", self.state, event)

    @property
    def cut(self) -> bool:
        """Return True if the verifier knows no drafter by this connection."""
        return self.state is not ConnectionState.HELD

    @property
    def encrypted(self) -> bool:
        """Return True if keys are used."""
        return self.socket.getsockopt(zmq.MECHANISM) == zmq.CURVE

    def listen(self, on_readable: Callable[[], object]) -> None:
        """Listen as `Inlet.listen` does, also at fresh connections."""
        self._on_readable = on_readable
        self.inlet.listen(on_readable)

    def look_at(self, time: float) -> None:
        """Have `look` do something from then on."""
        self.next_look = time

    def look(self, now: float) -> str | None:
        """Reconnect after a refusal or a change of keys, and return the reason once.

        `refusal` has the reason of a refusal as long as it lasts. After most refusals libzmq gives
        up for good, after others it tries again without a pause.
        """
        if now < self.next_look:
            return None
        self.next_look = now + CHECK_INTERVAL
        if self._route.changed():
            self.reconnect()
            address = self._route.address
            return f"the key known for the verifier at {address} was changed or revoked here"
        if self.state is ConnectionState.LEFT:
            self.reconnect()
            return None
        ended = self._newest_handshake()
        if ended is None:
            return None
        if ended is Handshake.BROKEN and not self.encrypted:
            return None  # the connection broke, and libzmq connects again
        if ended is Handshake.DONE:
            self.refusal = None
            return None
        self.traffic.handshake_failures[ended] += 1
        self._leave()
        before = self.refusal
        self.refusal = f"no way into the verifier at {self._route.address}: {_MEANINGS[ended]}"
        return self.refusal if self.refusal != before else None

    def send(self, message: m.Message) -> int:
        """Send a message; return its bytes, or 0 if the verifier is away or does not keep up.

        Raise UnfitMessage for a message that no frame can hold.
        """
        frame = encode(message)
        unsent = hand_over(self.socket, self.traffic, frame)
        self.inlet.check()
        if unsent is not None:
            if isinstance(message, m.Close) and self.state is ConnectionState.HELD:
                self.advance(ConnectionEvent.CLOSE_LOST)
            return 0
        return len(frame)

    def receive(self) -> Iterator[tuple[m.Message | None, int]]:
        """Yield message and bytes of a bounded number of frames.

        A malformed frame gives None. It gives an ERROR if it has another protocol version, or is
        one of those that nobody repeats.
        """
        for _ in range(MAX_FRAMES_PER_TURN):
            parts = self.inlet.receive()
            if parts is None:
                return
            if len(parts) != 1:
                self.traffic.rejected["parts"] += 1
                continue
            [frame] = parts
            self.traffic.frames_received += 1
            self.traffic.bytes_received += len(frame)
            try:
                yield decode(frame), len(frame)
            except FrameError as error:
                yield self._undecoded(frame, error), len(frame)
        self.inlet.check()

    def reconnect(self) -> None:
        """Open a fresh connection, which is new to the verifier; later if keys forbid it now."""
        try:
            fresh = self._route.open()
        except (ConfigError, OSError) as error:
            self._leave()
            self.refusal = str(error)
            return
        self.close(linger=0)
        self.socket = fresh
        self.inlet = Inlet(fresh)
        if self._on_readable is not None:
            self.inlet.listen(self._on_readable)
        self.advance(ConnectionEvent.RENEWED)

    def close(self, linger: int = 100) -> None:
        """Close the connection; frames in its queue have `linger` milliseconds to leave."""
        self.inlet.close()
        close_dealer(self.socket, linger)

    def _leave(self) -> None:
        """End the connection, until the next look begins another."""
        self.advance(ConnectionEvent.ENDED_HERE)
        with contextlib.suppress(OSError), zmq_errors():
            self.socket.disconnect(self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        self.inlet.check()

    def _newest_handshake(self) -> Handshake | None:
        """Return the end of the newest handshake since the last call.

        The connection is cut if it has ended after that.
        """
        newest: Handshake | None = None
        monitor = self.socket.get_monitor_socket()
        while (ended := next_handshake(monitor)) is not None:
            if ended is Handshake.DISCONNECTED:
                self.advance(ConnectionEvent.BROKEN)
            else:
                self.advance(ConnectionEvent.SHAKEN)
                newest = ended
        return newest

    def _undecoded(self, frame: bytes, error: FrameError) -> m.Error | None:
        """Count a malformed frame; return an ERROR if the loss matters."""
        self.traffic.rejected[error.reason] += 1
        if error.reason == "version" and frame[3] in (m.Kind.WELCOME, m.Kind.ERROR):
            text = f"it speaks protocol version {error.seen}, this drafter {m.PROTOCOL_VERSION}"
            return m.Error("version", text)
        if may_be_control(frame, error):
            return m.Error("hello", "a frame came damaged")
        return None
