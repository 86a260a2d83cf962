"""Requests to the API over its sockets, and all that is answered."""

import json
import socket
from contextlib import closing, suppress

from harness import PATIENCE

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def asking(body, path="/v1/completions"):
    raw = json.dumps(body).encode()
    head = HEAD.replace(b"/v1/completions", path.encode())
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(raw), raw)


def dial(at, buffer=None):
    """Connect to a socket's path or a TCP port, perhaps with so many bytes for unread data."""
    tcp = isinstance(at, tuple)
    made = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    if buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.settimeout(PATIENCE)
    made.connect(at if tcp else str(at))
    return made


def all_of(connection):
    """Return the bytes until the other end closes the connection."""
    raw = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            raw += part
    return raw


def answer_to(path, request):
    """Send a request and nothing more; return all that is answered."""
    with closing(dial(path)) as client:
        with suppress(ConnectionError):  # it may be answered before all is sent
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
        return all_of(client)
