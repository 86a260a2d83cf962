"""HTTP/1.1 requests as h11 reads them, with targets in one form and bodies in parts of some size."""

from urllib.parse import urlsplit

import h11

MOST_SMALL_PARTS, SMALL_PART = 1024, 256
"""A body may have as many parts, or more where they have as many bytes in the mean: each part takes
the event loop some 10 us, however short it is (bench/bodies.py)."""


class SmallParts(h11.RemoteProtocolError):
    """A body comes in too many parts that are too small."""

    def __init__(self) -> None:
        super().__init__(
            f"the body comes in more than {MOST_SMALL_PARTS} parts of fewer than {SMALL_PART}"
            " bytes: send larger ones"
        )


class RequestParser(h11.Connection):
    """A server's end of one connection."""

    _parts, _size = 0, 0  # of the body that is read

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event as h11 does. Raises `SmallParts` besides what h11 raises."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._parts = self._size = 0
            return in_origin_form(event)
        if isinstance(event, h11.Data):
            self._parts += 1
            self._size += len(event.data)
            if self._parts > MOST_SMALL_PARTS and self._size < self._parts * SMALL_PART:
                raise SmallParts
        return event


def in_origin_form(request: h11.Request) -> h11.Request:
    """Return a request whose target begins with its path. Where it began with a host, as requests
    of proxies' clients do, that host is the request's (RFC 9112, 3.2.2). Raises
    h11.RemoteProtocolError for a target that is no URI."""
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
    headers = [(name, host if name == b"host" else value) for name, value in request.headers]
    return h11.Request(
        method=request.method,
        target=path,
        headers=headers,
        http_version=request.http_version,
    )
