"""Round trips between the two machines, as /ping measures them."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from specmesh.api.backend import Backend, Peer, PingPeers
from specmesh.core.fields import Json
from specmesh.errors import DaemonUnreachable


async def round_trips(backend: Backend, timeout: float) -> list[Json]:
    """PING each peer of a daemon; return the milliseconds of each, None without a PONG in time.

    Raises DaemonUnreachable without peers.
    """
    times: dict[Peer, float | None] = {}
    complete = asyncio.Event()

    def note(new: dict[Peer, float | None]) -> None:
        times.update(new)
        if None not in times.values():
            complete.set()

    def sent(peers: Iterable[Peer]) -> None:
        note(dict.fromkeys(peers))

    def answered(peer: Peer, seconds: float) -> None:
        note({peer: round(seconds * 1e3, 4)})

    backend.submit(PingPeers(sent, answered))
    with suppress(TimeoutError):
        await asyncio.wait_for(complete.wait(), timeout)
    if not times:
        other = "drafter" if backend.role == "verifier" else "verifier"
        why = f"no {other} is attached to this {backend.role}"
        raise DaemonUnreachable(why, "start one, or see its log")
    return [
        {"peer": peer.name, "address": peer.address, "time_ms": time_ms}
        for peer, time_ms in times.items()
    ]
