"""POST /ping: PINGs to every peer of a daemon over the wire, each answer told as it comes."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

from specmesh.api.fields import integer_field, number_field
from specmesh.api.requests import Backend, Peer, Pinged, PingPeers, Ponged
from specmesh.errors import DaemonUnreachable, RequestError

PING_TIMEOUT_S = 3.0
"""Seconds after which a PING counts as lost; a peer that says nothing for half a second more counts as gone."""


def parse_ping(body: object) -> tuple[int, float]:
    """Return the number of PINGs to each peer and the seconds between two. Raise RequestError."""
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object")
    for name in body:
        if name not in {"count", "interval_s"}:
            raise RequestError(f"unknown field {name!r}", name)
    return integer_field(body, "count", 10, 1, 100_000), number_field(body, "interval_s", 0.2, 0.01, 60.0)


async def pinged(backend: Backend, count: int, interval: float) -> AsyncGenerator[dict[str, object], None]:
    """Yield what became of each PING as soon as it is known: time_ms is None for a lost one.

    A peer that is no longer there has lost its PING. Raise DaemonUnreachable if there is nobody to be pinged, or the
    daemon does not even send.
    """
    told: asyncio.Queue[Pinged | Ponged] = asyncio.Queue()
    begun, due = 0, time.monotonic()
    deadlines: dict[tuple[int, Peer | None], float] = {}  # no peer: not yet known to whom it went
    known: dict[Peer, None] = {}
    while begun < count or deadlines:
        now = time.monotonic()
        if begun < count and now >= due:
            begun, due = begun + 1, now + interval
            deadlines[begun, None] = now + PING_TIMEOUT_S
            backend.submit(PingPeers(begun, told.put_nowait))
            continue
        event: Pinged | Ponged | None = None
        with suppress(TimeoutError):
            until = min([*deadlines.values(), *([due] if begun < count else [])])
            event = await asyncio.wait_for(told.get(), max(until - now, 0.0))
        match event:
            case Pinged(number, peers) if (number, None) in deadlines:
                for peer in known.keys() - set(peers):
                    yield _result(number, peer, None)
                known |= dict.fromkeys(peers)
                deadline = deadlines.pop((number, None))
                deadlines |= {(number, peer): deadline for peer in peers}
            case Ponged(number, peer, seconds) if deadlines.pop((number, peer), None) is not None:
                yield _result(number, peer, seconds)
        now = time.monotonic()
        for number, late in [sent for sent, deadline in deadlines.items() if now >= deadline]:
            del deadlines[number, late]
            if late is None and not known:
                raise DaemonUnreachable("the daemon's loop does not get on: see its log")
            for peer in known if late is None else [late]:
                yield _result(number, peer, None)
        if event is not None and not known:
            raise DaemonUnreachable(_NOBODY[backend.role])


def _result(number: int, peer: Peer, seconds: float | None) -> dict[str, object]:
    time_ms = None if seconds is None else round(seconds * 1e3, 4)
    return {"number": number, "peer": peer.name, "address": peer.address, "time_ms": time_ms}


_NOBODY = {
    "verifier": "no drafter is attached to this verifier: start one (specmesh drafter --connect ...)",
    "drafter": "the verifier went away: see the drafter's log",
}
