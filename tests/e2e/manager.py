"""A service manager as its services see it."""

import socket
from contextlib import suppress
from pathlib import Path

from processes import PATIENCE


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(PATIENCE)
        self.socket.bind(str(path))
        self.heard: list[dict[str, str]] = []

    def until(self, key: str) -> dict[str, str]:
        """Read on to a message with this key."""
        while True:
            self.heard.append(dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines()))
            if key in self.heard[-1]:
                return self.heard[-1]

    def drain(self) -> None:
        """Read what has come."""
        self.socket.setblocking(False)
        with suppress(BlockingIOError):
            self.until("no such key")
        self.socket.settimeout(PATIENCE)

    def close(self) -> None:
        self.socket.close()
