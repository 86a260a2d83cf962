"""The page of a daemon: a chat that shows each token's source, and curves of its measurements.

The files in page/ are served as they are. There is no build step, and nothing is loaded from
elsewhere: the browser enforces that by the Content-Security-Policy.
"""

from hashlib import sha256
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

FILES = Path(__file__).parent / "page"

FILES_PATH = "/page/"
"""Where the files of the page are, but for the page itself, which is at /."""

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser keeps a file, and asks whether it is still the same
}


def page_routes() -> list[Route]:
    """Return the routes of the page and its files. Raises OSError if one cannot be read."""
    routes: list[Route] = []
    for path in sorted(FILES.iterdir()):
        kind = _KINDS.get(path.suffix)
        if kind is None:
            continue
        address = FILES_PATH + path.name
        if path.name == "index.html":
            address = "/"
        routes.append(Route(address, _File(path.read_bytes(), kind).answer))
    return routes


def is_page(method: str, path: str) -> bool:
    """Return True for a request that can only read the page or one of its files."""
    return method in {"GET", "HEAD"} and (path == "/" or path.startswith(FILES_PATH))


class _File:
    """A file of the page. The tag of its content tells a browser that its copy is the newest."""

    def __init__(self, content: bytes, kind: str) -> None:
        self._content = content
        tag = f'"{sha256(content).hexdigest()[:16]}"'
        self._headers = {**_HEADERS, "ETag": tag, "Content-Type": kind}

    async def answer(self, http: HttpRequest) -> Response:
        """Return the file, or 304 to a browser that has it."""
        known = ", ".join(http.headers.getlist("if-none-match"))
        if known == "*" or self._headers["ETag"] in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)
