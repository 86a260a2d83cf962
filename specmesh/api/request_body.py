"""The body of a request, received and inflated within bounds."""

import zlib

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from specmesh.errors import RequestError

MAX_HTTP_BODY = 2 * 1024 * 1024

_INFLATED = ("gzip", "x-gzip", "deflate")

_ANY_FORMAT = zlib.MAX_WBITS | 32
"""Makes zlib take gzip's format or its own."""


async def receive_body(http: HttpRequest) -> bytearray:
    """Return the body of a request, inflated if it is compressed.

    It has at most MAX_HTTP_BODY bytes, and nothing is inflated beyond them. Raises HTTPException
    for a longer body and for another encoding, RequestError for a damaged body.
    """
    encoding = ", ".join(http.headers.getlist("content-encoding")).strip().lower()
    inflater = None
    if encoding in _INFLATED:
        inflater = zlib.decompressobj(_ANY_FORMAT)
    elif encoding not in ("", "identity"):
        why = f"Content-Encoding {encoding[:80]} is not supported: send gzip, deflate or none"
        raise HTTPException(415, why, {"Accept-Encoding": "gzip, deflate"})
    damaged = RequestError(f"the request body is no {encoding}, or damaged")
    body = bytearray()
    received = 0
    try:
        async for chunk in http.stream():
            received += len(chunk)
            if inflater is None:
                body += chunk
            else:
                body += inflater.decompress(chunk, MAX_HTTP_BODY + 1 - len(body))
                if inflater.unused_data:
                    raise damaged  # something follows the end
            if max(len(body), received) > MAX_HTTP_BODY:
                raise HTTPException(413, f"the request body exceeds {MAX_HTTP_BODY} bytes")
    except zlib.error:
        raise damaged from None
    if inflater is not None and not inflater.eof:
        raise damaged
    return body
