"""Round trips between the two machines, as /ping measures them."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from specmesh.api.backend import Backend, Peer, PingPeers
from specmesh.core.fields import Json
from specmesh.errors import DaemonUnreachable


class RoundTrips:
    """The PINGs of one request, in milliseconds by peer; None until the PONG comes."""

    def __init__(self) -> None:
        self._times: dict[Peer, float | None] = {}
        self._complete = asyncio.Event()

    async def measure(self, backend: Backend, timeout: float) -> list[Json]:
        """PING each peer of a daemon; time_ms is None without an answer in time.

        Raises DaemonUnreachable without peers.
        """
        backend.submit(PingPeers(self._sent, self._answered))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._complete.wait(), timeout)
        if not self._times:
            other = "drafter" if backend.role == "verifier" else "verifier"
            why = f"no {other} is attached to this {backend.role}"
            raise DaemonUnreachable(why, "start one, or see its log")
        return [
            {"peer": peer.name, "address": peer.address, "time_ms": time_ms}
            for peer, time_ms in self._times.items()
        ]

    def _sent(self, peers: Iterable[Peer]) -> None:
        self._times.update(dict.fromkeys(peers))
        self._check()

    def _answered(self, peer: Peer, seconds: float) -> None:
        self._times[peer] = round(seconds * 1e3, 4)
        self._check()

    def _check(self) -> None:
        if None not in self._times.values():
            self._complete.set()
