"""The other end of the wire, as this side knows it: liveness, round trip, traffic."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from specmesh.api.requests import Peer
from specmesh.core.peer_limits import PeerLimits
from specmesh.core.statistics import RecentSamples, milliseconds
from specmesh.daemons.link.curve import TcpConnection
from specmesh.daemons.link.transport import Backlog
from specmesh.wire.messages import Hello, Pong

PING_INTERVAL = 1.0  # seconds between PINGs
FIRST_INTERVAL, FIRST_PINGS = 0.1, 5  # one alone may meet a peer that is still getting ready
U32 = 0xFFFFFFFF  # counters wrap around on the wire
SILENCE = 3.5  # seconds without a frame after which a peer counts as gone


@dataclass(slots=True)
class Link:
    """Liveness and round trip of one connection.

    progress: the peer's own loop counter, as last told, which changed at `progressed`.
    stuck: the peer answers, perhaps by a thread of its own, but its loop has not turned for SILENCE.

    A probe is a PING that somebody asked for. It counts nowhere: measuring must not move what drafting is decided by.
    """

    last_heard: float
    round_trips: RecentSamples = field(default_factory=RecentSamples)
    progress: int = 0
    busy: float = 0.0
    stuck: bool = False
    progressed: float | None = None
    next_ping: float = 0.0
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _sent: dict[int, tuple[float, Callable[[float], None] | None]] = field(default_factory=dict)

    def told(self, progress: int, busy: float, now: float) -> None:
        if progress != self.progress or self.progressed is None:
            self.progressed = now
        self.progress, self.busy = progress, min(max(0.0, busy), 1.0)  # its own word
        self.stuck = now - self.progressed > SILENCE

    def ping(self, now: float, answer: Callable[[float], None] | None = None) -> int:
        """Return the number of a PING to be sent now; `answer`, of a probe, gets the seconds until its PONG."""
        if answer is None:
            self.next_ping = now + PING_INTERVAL
            self._sent = {number: one for number, one in self._sent.items() if one[1] and now - one[0] <= SILENCE}
        number = next(self._numbers)
        self._sent[number] = now, answer
        return number

    def pong(self, message: Pong, now: float) -> float | None:
        """Return the round trip in seconds; None for a PONG that answers no PING of ours, or a probe."""
        self.told(message.progress, message.busy, now)
        if message.number not in self._sent:
            return None
        sent, answer = self._sent.pop(message.number)
        round_trip = now - sent
        if answer is not None:
            answer(round_trip)
            return None
        self.round_trips.record(round_trip)
        if message.number < FIRST_PINGS:
            self.next_ping = min(self.next_ping, now + FIRST_INTERVAL)
        return round_trip

    def silent(self, now: float) -> bool:
        return now - self.last_heard > SILENCE

    def round_trip_ms(self) -> dict[str, float | None]:
        """Median and 99th percentile of the recent round trips, in milliseconds."""
        return {name: milliseconds(self.round_trips.percentile(share)) for name, share in (("p50", 0.5), ("p99", 0.99))}


@dataclass(slots=True)
class DrafterPeer:
    """A drafter attached to this verifier, the `number`-th to come.

    key: that it has proved, where keys are used; key_name: what that is called here. connection: where libzmq tells it.
    stuck: it drafts for nobody until its loop turns again.
    """

    identity: bytes
    hello: Hello
    link: Link
    number: int = 0
    address: str = ""
    key: str = ""
    key_name: str = ""
    connection: TcpConnection | None = None
    limits: PeerLimits = field(default_factory=PeerLimits)
    backlog: Backlog = field(default_factory=Backlog)
    stuck: bool = False

    @property
    def end(self) -> Peer:
        return Peer(self.hello.drafter, self.address)

    def hang_up(self) -> None:
        """End its connection: its own end may never."""
        if self.connection is not None:
            self.connection.cut()

    def describe(self) -> dict[str, object]:
        """Return its part of `stats --json`, but for what the core has measured."""
        return {
            "number": self.number,
            "drafter": self.hello.drafter,
            "address": self.address,
            "key": self.key_name or None,
            "engine": self.hello.engine,
            "model": self.hello.model,
            "round_trip_ms": self.link.round_trip_ms(),
            "busy": round(self.link.busy, 3),
            "stuck": self.stuck,
        }
