"""Connections to the API: so many, each with so long to send a request, and to read what it gets."""

import asyncio
import resource
from dataclasses import dataclass
from typing import ClassVar

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from specmesh.api.answer import error_body
from specmesh.errors import Busy

_FULL = JSONResponse(
    error_body(Busy("the API has as many connections as may be, all with requests: try again")),
    503,
    {"Retry-After": "1", "Connection": "close"},
)


def most_connections() -> int:
    """A third of the descriptors for the port and for the socket each; the rest is for drafters, models, logs. Beyond
    1024 select() takes none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max((min(soft, 1024) if soft > 0 else 1024) // 3, 1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the connections of one listener.

    most: so many at once. patience: seconds for a request to come whole, to the next one after an answer, and for a
    reader to take some of what waits for it. crowded: for a stream's reader while others wait for a session.
    """

    most: int
    patience: float = 30.0
    crowded: float = 2.0


def bounded(bounds: Bounds) -> type[H11Protocol]:
    """Connections with these bounds, as uvicorn makes them."""
    return type("BoundedConnection", (Connection,), {"bounds": bounds})


class Connection(H11Protocol):
    """One connection, closed where its time is over. Where there are too many, the one that has waited longest for a
    request gives way; where all have one, the newest is refused."""

    bounds: ClassVar[Bounds]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.fine, self.left = self.loop.time(), 0
        there = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        beyond = len(there) - self.bounds.most
        if beyond > 0:
            oldest = min((one for one in there if not one.asked), key=lambda one: one.fine)
            if oldest is not self:
                oldest.transport.abort()
                beyond -= 1
            if beyond > 0:
                self.app = _FULL

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.fine = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.fine = self.loop.time()
        super().on_response_complete()

    @property
    def asked(self) -> bool:
        """Whether its request has come whole, and is not answered to the end."""
        return self.conn.their_state in (h11.DONE, h11.MUST_CLOSE) and not self.cycle.response_complete

    def look(self) -> None:
        """Close it where it has neither waited for an answer nor read some of one for too long."""
        left, now = self.transport.get_write_buffer_size(), self.loop.time()
        if left < self.left or (self.asked and not left):
            self.fine = now
        self.left = left
        if now - self.fine >= self.bounds.patience:
            self.transport.abort()
