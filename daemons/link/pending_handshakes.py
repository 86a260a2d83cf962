"""Connections to a verifier whose other end has not introduced itself, and for how long it may wait with that."""

from collections.abc import Collection

from specmesh.daemons.link.curve import Connection

PATIENCE = 10.0
"""Seconds without a HELLO after which a connection is cut. A handshake ends within half of it; a drafter says HELLO as
soon as it is connected."""


class Lobby:
    """All connections, each with the time from which on it has not been a drafter's."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Connection, float]] = {}

    def __len__(self) -> int:
        return len(self._since)

    def came(self, descriptor: int, now: float) -> None:
        connection = Connection.at(descriptor)
        if connection is not None:
            self._since[descriptor] = connection, now

    def left(self, descriptor: int) -> None:
        self._since.pop(descriptor, None)

    def clear_out(self, introduced: Collection[Connection] | None, now: float) -> int:
        """Cut those that are no drafter's and have waited too long; how many. None: whose they are is not known."""
        overdue: list[Connection] = []
        for descriptor, (connection, since) in self._since.items():
            if introduced is None or connection in introduced:
                self._since[descriptor] = connection, now
            elif now - since > PATIENCE:
                overdue.append(connection)
        for connection in overdue:
            connection.cut()
            self.left(connection.descriptor)
        return len(overdue)
