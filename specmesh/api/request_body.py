"""The body of a request, received and inflated within bounds."""

import zlib

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from specmesh.errors import RequestError

MAX_HTTP_BODY = 2 * 1024 * 1024

_INFLATED = ("gzip", "x-gzip", "deflate")

_ANY_FORMAT = zlib.MAX_WBITS | 32
"""Makes zlib take gzip's format or its own."""

_GZIP = zlib.MAX_WBITS | 16
"""Makes zlib take gzip's format."""

MOST_MEMBERS = 1024  # of a body in gzip's format: each takes 3 microseconds of the event loop
_AT_ONCE = 2**14  # bytes: zlib copies those behind the end of each member


async def receive_body(http: HttpRequest) -> bytearray:
    """Return the body of a request, inflated if it is compressed.

    It has at most MAX_HTTP_BODY bytes, and nothing is inflated beyond them. Raises HTTPException
    for a longer body and for another encoding, RequestError for a damaged body.
    """
    encoding = ", ".join(http.headers.getlist("content-encoding")).strip().lower()
    inflater: _Inflater | None = None
    if encoding in _INFLATED:
        inflater = _Inflater(encoding)
    elif encoding not in ("", "identity"):
        why = f"Content-Encoding {encoding[:80]} is not supported: send gzip, deflate or none"
        raise HTTPException(415, why, {"Accept-Encoding": "gzip, deflate"})
    body = bytearray()
    received = 0
    async for chunk in http.stream():
        received += len(chunk)
        if inflater is None:
            body += chunk
        else:
            body += inflater.feed(chunk, MAX_HTTP_BODY + 1 - len(body))
        if max(len(body), received) > MAX_HTTP_BODY:
            raise HTTPException(413, f"the request body exceeds {MAX_HTTP_BODY} bytes")
    if inflater is not None:
        inflater.end()
    return body


class _Inflater:
    """Inflates a body of one of these encodings as it comes.

    A body in gzip's format may have several members, one after the other (RFC 1952, 2.2).
    """

    def __init__(self, encoding: str) -> None:
        self._inflater = zlib.decompressobj(_ANY_FORMAT)
        self._damaged = RequestError(f"the request body is no {encoding}, or damaged")
        self._more = 0 if encoding == "deflate" else MOST_MEMBERS - 1  # members that may follow

    def feed(self, chunk: bytes, most: int) -> bytes:
        """Return up to `most` more bytes, at least 1. Raises RequestError."""
        inflated = bytearray()
        for start in range(0, len(chunk), _AT_ONCE):
            rest = chunk[start : start + _AT_ONCE]
            while rest and len(inflated) < most:
                inflated += self._inflate(rest, most - len(inflated))
                rest = self._inflater.unused_data
        return bytes(inflated)

    def _inflate(self, compressed: bytes, most: int) -> bytes:
        """Return up to `most` bytes of a member: of the next one after the end of another."""
        if self._inflater.eof:
            if not self._more:
                raise self._damaged
            self._more -= 1
            self._inflater = zlib.decompressobj(_GZIP)
        try:
            return self._inflater.decompress(compressed, most)
        except zlib.error:
            raise self._damaged from None

    def end(self) -> None:
        """Raise RequestError if the body was cut off."""
        if not self._inflater.eof:
            raise self._damaged
