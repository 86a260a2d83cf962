"""Loopback addresses for a test's own daemons."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A loopback TCP port that nobody listens on, below those that systems give to outgoing
    connections.
    """
    while True:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def free_address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def is_open(port: int) -> bool:
    """Whether somebody listens on a loopback TCP port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
