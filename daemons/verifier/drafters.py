"""The drafters attached to a verifier, and the PINGs between them."""

import itertools
from collections.abc import Callable, Iterator

from specmesh.api.requests import PingPeers
from specmesh.core.draft_length.estimates import RollingAcceptance
from specmesh.core.drafting.drafter_pool import DrafterRecord
from specmesh.core.statistics import Histogram
from specmesh.daemons.link.peers import DrafterPeer, Link
from specmesh.daemons.link.router import Router
from specmesh.errors import Busy
from specmesh.wire import messages as m

MAX_DRAFTERS = 64
MAX_PER_KEY = 8  # most drafters with the same key: one owner must not keep others out

Heartbeat = tuple[int, float, int, int, int, float, float]
"""What PING and PONG tell after their number."""


class Drafters:
    """Attached drafters by identity, the oldest first. acceptance: of all their drafts; state: for PING and PONG."""

    def __init__(self, router: Router, round_trips: Histogram, state: Callable[[float], Heartbeat]) -> None:
        self._router, self._round_trips, self._state = router, round_trips, state
        self._peers: dict[bytes, DrafterPeer] = {}
        self._numbers = itertools.count(1)
        self.acceptance = RollingAcceptance()

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[DrafterPeer]:
        return iter(list(self._peers.values()))

    def get(self, identity: bytes | None) -> DrafterPeer | None:
        return self._peers.get(identity) if identity is not None else None

    def name(self, identity: bytes | None) -> str | None:
        peer = self.get(identity)
        return peer.hello.drafter if peer is not None else None

    def add(self, identity: bytes, hello: m.Hello, now: float) -> None:
        """Attach the drafter whose HELLO was just received; raise Busy where there are too many."""
        if len(self._peers) >= MAX_DRAFTERS or self._router.gate.same_key(identity) >= MAX_PER_KEY:
            raise Busy(f"too many drafters are attached ({len(self._peers)}): stop one")
        key = self._router.gate.attach(identity)
        self._peers[identity] = DrafterPeer(
            identity,
            hello,
            Link(now),
            address=self._router.inlet.sender(),
            key=key,
            number=next(self._numbers),
            record=DrafterRecord(self.acceptance, now),
        )

    def remove(self, identity: bytes) -> DrafterPeer | None:
        self._router.gate.detach(identity)
        self._router.forget(identity)
        return self._peers.pop(identity, None)

    def holding(self, length: int) -> list[bytes]:
        """Return those that are not stuck and can hold more than `length` ids."""
        return [identity for identity, peer in self._peers.items() if peer.hello.n_ctx > length and not peer.stuck]

    def turned(self) -> list[DrafterPeer]:
        turned = [peer for peer in self._peers.values() if peer.stuck != peer.link.stuck]
        for peer in turned:
            peer.stuck = peer.link.stuck
        return turned

    def next_ping(self) -> float | None:
        return min((peer.link.next_ping for peer in self._peers.values()), default=None)

    def ping(self, now: float) -> None:
        for peer in self._peers.values():
            if now >= peer.link.next_ping:
                self._router.send(peer.identity, m.Ping(peer.link.ping(now), *self._state(now)))

    def silent(self, now: float) -> list[bytes]:
        return [identity for identity, peer in self._peers.items() if peer.link.silent(now)]

    def probe(self, order: PingPeers, now: float) -> None:
        order.sent(peer.end for peer in self._peers.values())
        for peer in self._peers.values():
            number = peer.link.ping(now, order.answer(peer.end))
            self._router.send(peer.identity, m.Ping(number, *self._state(now)))

    def pinged(self, peer: DrafterPeer, ping: m.Ping, now: float) -> None:
        peer.link.told(ping.progress, ping.busy, now)
        self._router.send(peer.identity, m.Pong(ping.number, *self._state(now)))

    def ponged(self, peer: DrafterPeer, pong: m.Pong, now: float) -> None:
        round_trip = peer.link.pong(pong, now)
        if round_trip is not None:
            peer.arrivals.record_round_trip(round_trip)
            self._round_trips.record(round_trip)

    def send_all(self, message: m.Welcome | m.Bye) -> None:
        for identity in self._peers:
            self._router.send(identity, message)
