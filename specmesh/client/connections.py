"""The open connections of a client, or of one of its streams, which another thread may end."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from specmesh.errors import RequestError

Connection = TypeVar("Connection")


class Connections(Generic[Connection]):
    """The open connections of an owner.

    owner: "client" or "stream", for the error.
    cut: ends a connection at once; whoever reads from it sees the end.
    is_closed: no connection follows.

    Every member is safe from any thread.
    """

    def __init__(self, owner: str, cut: Callable[[Connection], object]) -> None:
        self._owner = owner
        self._cut = cut
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self.is_closed = False

    def check(self) -> None:
        """Raise RequestError if the owner is closed."""
        if self.is_closed:
            raise RequestError(f"this {self._owner} is closed", remedy="make another")

    def add(self, connection: Connection) -> None:
        """Add a connection. Raises RequestError if the owner is closed."""
        with self._lock:
            self.check()
            self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        """Remove a connection that ends."""
        with self._lock:
            self._open.discard(connection)

    def close(self) -> None:
        """Cut all connections; no other follows."""
        with self._lock:
            self.is_closed = True
            opened = list(self._open)
        for connection in opened:
            self._cut(connection)
