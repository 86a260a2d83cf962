"""HTTP/1.1 requests as h11 parses them, with bounds for the parts of a body."""

from urllib.parse import urlsplit

import h11

MOST_SMALL_PARTS = 1024
"""Parts that a body may have, however small.

Each takes the event loop some 10 us (bench/bodies.py).
"""

SMALL_PART = 256
"""Bytes of a part in the mean, from which on a body may have more parts."""


class SmallParts(h11.RemoteProtocolError):
    """A body comes in too many parts that are too small."""

    def __init__(self) -> None:
        super().__init__(
            f"the body comes in more than {MOST_SMALL_PARTS} parts of fewer than {SMALL_PART}"
            " bytes: send larger ones"
        )


class RequestParser(h11.Connection):
    """A server's end of one connection."""

    _parts = 0  # of the body so far
    _size = 0  # bytes of them

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event as h11 does. Raises `SmallParts`, or as h11 does."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._parts = 0
            self._size = 0
            return in_origin_form(event)
        if isinstance(event, h11.Data):
            self._parts += 1
            self._size += len(event.data)
            if self._parts > MOST_SMALL_PARTS and self._size < self._parts * SMALL_PART:
                raise SmallParts
        return event


def in_origin_form(request: h11.Request) -> h11.Request:
    """Return a request whose target begins with its path.

    A target that begins with a host, as clients of proxies send it, names the host of the request
    (RFC 9112, 3.2.2). Raises h11.RemoteProtocolError for a target that is no URI.
    """
    if request.target.startswith(b"/"):
        return request
    target = request.target.decode("ascii")
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise h11.RemoteProtocolError(f"the target is no URI: {error}") from None
    if parts.scheme.lower() not in {"http", "https"} or not parts.netloc:
        return request
    path = target[target.index("//") + 2 + len(parts.netloc) :]
    if not path.startswith("/"):
        path = f"/{path}"
    host = parts.netloc.encode()
    headers: list[tuple[bytes, bytes]] = []
    for name, value in request.headers:
        headers.append((name, host if name == b"host" else value))
    return h11.Request(
        method=request.method,
        target=path,
        headers=headers,
        http_version=request.http_version,
    )
