"""The guard of a TCP port: who may use the API there."""

import hashlib
import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specmesh import errors
from specmesh.api.dialects.message_errors import is_for_messages, message_refusal
from specmesh.api.error_body import error_body
from specmesh.api.page import is_page
from specmesh.config import Port
from specmesh.security.addresses import is_own_host, is_own_page

_ANSWER_HEADERS = (
    "X-Request-Id",
    "request-id",
    "X-Specmesh-Ignored",
    "X-Specmesh-Merged",
    "Retry-After",
)


def guarded(app: ASGIApp, port: Port) -> ASGIApp:
    """Return the application as a port serves it.

    A browser asks first, without a key, whether a page of another host may use the API. So where
    such pages may come, it is answered before the guard; elsewhere the guard refuses it.
    """
    if port.keys or port.origins:
        return PageAccess(ApiGuard(app, port.keys, port.origins), port.origins)
    return ApiGuard(PageAccess(app, ()), ())


class ApiGuard:
    """Middleware before the application.

    With keys, every resource needs one of them, as bearer or as x-api-key, but for /health and the
    daemon's own page, which asks its visitor for a key. Without keys, no web page of another host
    may use the API through its visitor's browser, neither under a name of its own that points here
    (DNS rebinding) nor across origins. Pages that this machine serves may use it, and those of
    `origins`.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], origins: Collection[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            app = self._refusal(scope) or app
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """Return the response that refuses a request; None for one that may pass."""
        headers = Headers(scope=scope)
        for_messages = is_for_messages(scope["path"], headers)
        if not self._keys:
            return self._refusal_of_page(headers, for_messages=for_messages)
        key = self._key_of(headers)
        if key is None and not _is_open(scope):
            remedy = "send Authorization: Bearer KEY, or x-api-key: KEY"
            error = errors.Refused("no valid API key", remedy)
            body = error_body(error, "authentication_error", "invalid_api_key")
            response = JSONResponse(body, 401)
            if for_messages:
                response = message_refusal(error, 401)
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if key is not None:
            # by the key itself: its number would be another key's once the file has changed
            digest = hashlib.sha256(self._keys[key].encode()).digest()
            scope["state"]["account"] = ("key", digest)
        if len(self._keys) > 1 and key is not None:
            # a request counts for its key before its connection: one key would part no clients
            state = scope["state"]
            state["tenant"] = (("key", key), *state.get("tenant", ()))
        return None

    def _key_of(self, headers: Headers) -> int | None:
        """Return the number of the key of a request, as OpenAI's or Anthropic's clients send it."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key: int | None = None
        if scheme.lower() == "bearer":
            key = _number_of(given.strip(), self._keys)
        if key is None:
            key = _number_of(headers.get("x-api-key", "").strip(), self._keys)
        return key

    def _refusal_of_page(self, headers: Headers, *, for_messages: bool) -> JSONResponse | None:
        """Return the response that refuses a page of another host, or a request to its name."""
        origin = headers.get("origin")
        allowed = origin is None or origin in self._origins or is_own_page(origin)
        if allowed and is_own_host(headers.get("host", "")):
            return None
        error = errors.Refused(
            "without an API key only programs on this machine may ask, and pages of --allow-origin"
        )
        if for_messages:
            return message_refusal(error, 403)
        return JSONResponse(error_body(error, "permission_error", "forbidden"), 403)


class PageAccess(CORSMiddleware):
    """Lets browsers give answers to pages of `origins`, and to those that this machine serves."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            allow_private_network=True,  # needed by a page of a public network
            expose_headers=_ANSWER_HEADERS,
        )

    def is_allowed_origin(self, origin: str) -> bool:
        """Return True if a page of this origin may have the answer."""
        return super().is_allowed_origin(origin) or is_own_page(origin)


def _is_open(scope: Scope) -> bool:
    """Return True for a request that needs no key: of /health, and of the page and its files."""
    path: str = scope["path"]
    return path == "/health" or is_page(scope["method"], path)


def _number_of(given: str, keys: tuple[str, ...]) -> int | None:
    """Return the number of the key that was given; None for no key.

    It compares with every key, so the time it takes shows nothing.
    """
    raw = given.encode("utf-8", "replace")
    found = None
    for number, key in enumerate(keys):
        if hmac.compare_digest(raw, key.encode()):
            found = number
    return found
