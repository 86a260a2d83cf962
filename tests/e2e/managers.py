"""A service manager, as a daemon sees it."""

import socket
from contextlib import suppress

from harness import PATIENCE


class Manager(socket.socket):
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, path):
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.settimeout(PATIENCE)
        self.bind(str(path))
        self.heard = []

    def until(self, key):
        """Read on to a message with this key."""
        while True:
            self.heard.append(
                dict(line.split("=", 1) for line in self.recv(4096).decode().splitlines())
            )
            if key in self.heard[-1]:
                return self.heard[-1]

    def drain(self):
        """Read the notifications so far."""
        self.setblocking(False)
        with suppress(BlockingIOError):
            self.until("no such key")
        self.settimeout(PATIENCE)
