"""Who may use the API over TCP: whoever has a key or, where none is set, programs on this machine."""

import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specmesh.api import shapes
from specmesh.config import Keys, Port
from specmesh.errors import Refused
from specmesh.security.addresses import Way, way

_OPEN = frozenset({"/health"})


class ApiGuard:
    """Middleware before the application.

    With keys: every resource but /health needs one of them as bearer. Without: no web page may use the API through
    its visitor's browser, neither under a name of its own that points here (DNS rebinding) nor across origins, but for
    those of `origins`.
    """

    def __init__(self, app: ASGIApp, keys: Keys, origins: Collection[str] = ()) -> None:
        self._app, self._keys, self._origins = app, keys, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> JSONResponse | None:
        keys = self._keys.current
        if not keys:
            origin = headers.get("origin")
            if _is_here(f"//{headers.get('host', '')}") and (
                origin is None or origin in self._origins or _is_here(origin)
            ):
                return None
            message = "without an API key only programs on this machine may ask, and pages of --allow-origin"
            return _refused(403, message, "permission_error", "forbidden", {})
        scheme, _, told = headers.get("authorization", "").partition(" ")
        if path in _OPEN or (scheme.lower() == "bearer" and _is_key(told.strip(), keys)):
            return None
        message = "no valid API key: send Authorization: Bearer KEY"
        return _refused(401, message, "authentication_error", "invalid_api_key", {"WWW-Authenticate": "Bearer"})


def guarded(app: ASGIApp, port: Port) -> ASGIApp:
    """The application as a port has it. A browser asks without a key whether it may ask, so CORS comes first."""
    shown = ("X-Request-Id", "X-Specmesh-Ignored", "Retry-After")
    app = ApiGuard(app, port.keys, port.origins)
    return CORSMiddleware(app, port.origins, ("GET", "POST"), ("*",), expose_headers=shown) if port.origins else app


def _is_key(told: str, keys: tuple[str, ...]) -> bool:
    """Compares with every key, so that the time it takes tells nothing."""
    raw = told.encode("utf-8", "replace")
    return True in [hmac.compare_digest(raw, key.encode()) for key in keys]


def _is_here(url: str) -> bool:
    """Whether a URL's host is this machine under a name that nobody else can give it."""
    try:
        return way(urlsplit(url).hostname or "") is Way.SAME_MACHINE
    except ValueError:
        return False


def _refused(status: int, message: str, kind: str, code: str, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse(shapes.error(message, kind, code, None, Refused()), status, headers)
