"""POST /ping: PINGs to every peer of a daemon over the wire, each answer told as it comes."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from specmesh.api.fields import integer_field, number_field
from specmesh.api.requests import Backend, EventBridge, Peer, Pinged, PingPeers, Ponged
from specmesh.errors import DaemonUnreachable, RequestError

PING_TIMEOUT_S = 3.0
"""Seconds after which a PING counts as lost; a peer that says nothing for half a second more counts as gone."""


@dataclass(frozen=True, slots=True)
class PingBody:
    """A parsed body: how many PINGs to each peer, and the seconds between two."""

    count: int
    interval: float


@dataclass(frozen=True, slots=True)
class PingResult:
    """What became of the PING `number` to a peer: the seconds until its answer, None where it was lost."""

    number: int
    peer: Peer
    seconds: float | None

    def as_json(self) -> dict[str, object]:
        time_ms = None if self.seconds is None else round(self.seconds * 1e3, 4)
        return {"number": self.number, "peer": self.peer.name, "address": self.peer.address, "time_ms": time_ms}


def parse_ping(body: object) -> PingBody:
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object")
    for name in body:
        if name not in {"count", "interval_s"}:
            raise RequestError(f"unknown field {name!r}", name)
    return PingBody(integer_field(body, "count", 10, 1, 100_000), number_field(body, "interval_s", 0.2, 0.01, 60.0))


class PingRun:
    """The PINGs of one request: which are due, on their way, lost. Times are seconds of one clock."""

    def __init__(self, wanted: PingBody, now: float) -> None:
        self._wanted, self._due = wanted, now
        self._begun = 0
        self._deadlines: dict[int, float] = {}
        self._missing: dict[int, set[Peer]] = {}  # by number, once it is known to whom it went
        self._known: dict[Peer, None] = {}

    @property
    def anybody(self) -> bool:
        return bool(self._known)

    def begin(self, now: float) -> int | None:
        """The number of the PINGs to send now; None where none are due."""
        if self._begun == self._wanted.count or now < self._due:
            return None
        self._begun += 1
        self._due = now + self._wanted.interval
        self._deadlines[self._begun] = now + PING_TIMEOUT_S
        return self._begun

    def on_event(self, event: Pinged | Ponged) -> list[PingResult]:
        """What an event of the loop settles. A peer that is no longer there has lost its PING."""
        if event.number not in self._deadlines:
            return []
        match event:
            case Pinged(number, peers):
                gone = [PingResult(number, peer, None) for peer in self._known if peer not in peers]
                self._known |= dict.fromkeys(peers)
                self._missing[number] = set(peers)
                self._settle(number)
                return gone
            case Ponged(number, peer, seconds):
                self._missing[number].discard(peer)
                self._settle(number)
                return [PingResult(number, peer, seconds)]

    def expire(self, now: float) -> list[PingResult]:
        """The PINGs that are lost by now. Raises DaemonUnreachable where the daemon's loop has not even sent any."""
        late = [number for number, deadline in self._deadlines.items() if now >= deadline]
        if late and not self._known:
            raise DaemonUnreachable("the daemon's loop does not get on: see its log")
        lost: list[PingResult] = []
        for number in late:
            missing = self._missing.pop(number, set(self._known))
            lost += [PingResult(number, peer, None) for peer in self._known if peer in missing]
            del self._deadlines[number]
        return lost

    def wait(self, now: float) -> float | None:
        """Seconds until something is due; None when all is over."""
        due = [] if self._begun == self._wanted.count else [self._due]
        due += self._deadlines.values()
        return max(min(due) - now, 0.0) if due else None

    def _settle(self, number: int) -> None:
        if not self._missing[number]:
            del self._missing[number], self._deadlines[number]


async def pinged(backend: Backend, wanted: PingBody) -> AsyncGenerator[dict[str, object], None]:
    """An event for each PING's result, as it is known; raises DaemonUnreachable where there is nobody to be pinged."""
    crossing = EventBridge[Pinged | Ponged]()
    run = PingRun(wanted, time.monotonic())
    while (wait := run.wait(time.monotonic())) is not None:
        number = run.begin(time.monotonic())
        if number is not None:
            backend.submit(PingPeers(number, crossing.on_event))
            continue
        events: list[Pinged | Ponged] = []
        with suppress(TimeoutError):
            events = await asyncio.wait_for(crossing.batch(), wait)
        results = [result for event in events for result in run.on_event(event)]
        results += run.expire(time.monotonic())
        for result in results:
            yield result.as_json()
        if events and not run.anybody:
            raise DaemonUnreachable(_NOBODY[backend.role])


_NOBODY = {
    "verifier": "no drafter is attached to this verifier: start one (specmesh drafter --connect ...)",
    "drafter": "the verifier went away: see the drafter's log",
}
