"""Connections to a daemon that take and do not give."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from processes import PATIENCE

from specmesh.client import Json

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def asking(request: Json) -> bytes:
    """What a client sends that asks for a completion."""
    raw = json.dumps(request).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(raw), raw)


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
