"""Connections to a daemon that take and do not give."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from processes import PATIENCE


@contextmanager
def many(
    address: "tuple[str, int] | Path", count: int, sent: bytes = b"", seconds: float = PATIENCE
) -> Iterator[list[socket.socket]]:
    """So many connections that send this and no more; one that is not taken in so many seconds says nothing."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with ExitStack() as opened:
        made = [opened.enter_context(closing(socket.socket(family))) for _ in range(count)]
        for one in made:
            one.settimeout(seconds)
            with suppress(ConnectionError, BlockingIOError, TimeoutError):
                one.connect(str(address) if isinstance(address, Path) else address)
                one.sendall(sent)
        yield made
