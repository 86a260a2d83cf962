"""The HTTP application over a daemon, the same on its Unix socket and on its TCP port, and who may use it there.

It reads immutable snapshots and hands orders to the daemon, so that it answers while a step runs. Fields and events of
ours stand under the key `specmesh`.
"""

import asyncio
import hmac
import json
import time
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specmesh import errors
from specmesh.api.answer import Answer
from specmesh.api.backend import Backend, ModelInfo, Peer, PingPeers
from specmesh.api.body import Body, as_header, parse_body
from specmesh.api.choices import Choice, numbered
from specmesh.api.fair_workers import FairWorker
from specmesh.api.json_text import TOO_DEEP, collector_paused, parse_json, write_json
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.metrics import exposition
from specmesh.api.responses import ResponseAnswer, ResponseOrder, parse_response
from specmesh.api.shapes import Shape, error_body, new_id, refusal
from specmesh.api.tokens import (
    apply_template,
    detokenize,
    model_entry,
    props,
    tokenize,
    tokenizer_info,
)
from specmesh.config import Port
from specmesh.core.fair_queue import Tenant
from specmesh.core.fields import Json
from specmesh.core.requests import ID_BYTES
from specmesh.core.session_params import endless
from specmesh.core.statistics.snapshot import as_json
from specmesh.core.text.chat import Tokenizer, unknown_variables
from specmesh.security.addresses import is_own_host, is_own_page

log = structlog.get_logger("specmesh.api")

MAX_HTTP_BODY = 2 * 1024 * 1024
SHORT_BODY = 16 * 1024
"""Bytes of a body that is read and checked on the event loop: a longer one waits for a thread."""

FEW_IDS, FEW_TEXTS = 4096, 8
"""Ids of a resumed text, and texts of an answer, of which the same is true."""

Result = TypeVar("Result")
PING_TIMEOUT_S = 3.0  # seconds after which a PING counts as lost


def create_app(
    backend: Backend, kept: KeptResponses, ping_timeout: float = PING_TIMEOUT_S
) -> Starlette:
    api = _Api(backend, kept, ping_timeout)
    routes = [
        Route("/health", api.health),
        Route("/stats", api.stats),
        Route("/metrics", api.metrics),
        Route("/ping", api.ping, methods=["POST"]),
        Route("/props", api.props),
        Route("/tokenize", api.tokenize, methods=["POST"]),
        Route("/tokenizer_info", api.tokenizer_info),
        Route("/detokenize", api.detokenize, methods=["POST"]),
        Route("/apply-template", partial(api.work, apply_template), methods=["POST"]),
    ]
    for base in ("/v1", ""):  # llama-server, too, serves clients whose base URL lacks it
        routes += [
            Route(f"{base}/models", api.models),
            Route(f"{base}/models/{{model:path}}", api.models),
            Route(f"{base}/completions", partial(api.answer, chat=False), methods=["POST"]),
            Route(f"{base}/chat/completions", partial(api.answer, chat=True), methods=["POST"]),
            Route(f"{base}/embeddings", api.embeddings, methods=["POST"]),
            Route(f"{base}/responses", api.respond, methods=["POST"]),
            Route(f"{base}/responses/{{id}}", api.response, methods=["GET", "DELETE"]),
        ]
    return Starlette(
        routes=routes,
        exception_handlers=dict.fromkeys(
            (errors.SpecmeshError, ClientDisconnect, HTTPException, Exception), _failed
        ),
    )


class _Api:
    def __init__(self, backend: Backend, kept: KeptResponses, ping_timeout: float) -> None:
        self._backend, self._kept, self._ping_timeout = backend, kept, ping_timeout
        self._bodies, self._short = FairWorker("bodies"), FairWorker("short bodies")

    async def health(self, _: HttpRequest) -> Response:
        reason, role = self._backend.not_ready(), self._backend.role
        if reason is None:
            return JSONResponse({"status": "ok", "role": role})
        return JSONResponse({"status": "unavailable", "role": role, "reason": str(reason)}, 503)

    async def stats(self, _: HttpRequest) -> Response:
        return JSONResponse(as_json(await self._backend.stats()))

    async def metrics(self, http: HttpRequest) -> Response:
        healthy, accept = self._backend.not_ready() is None, http.headers.get("accept", "")
        body, content_type = exposition(await self._backend.stats(), accept, healthy=healthy)
        return Response(body, media_type=content_type)

    async def models(self, http: HttpRequest) -> Response:
        """All models, or one; raises Starting while none is known, for whatever reason."""
        name, known = http.path_params.get("model"), self._backend.models
        if not known:
            raise errors.Starting(
                str(self._backend.not_ready() or "no model is known yet: try again in a moment")
            )
        if name is None:
            return JSONResponse({"object": "list", "data": [self._entry(one) for one in known]})
        if name not in known:
            raise errors.NoSuchModel.of(name)
        return JSONResponse(self._entry(name))

    def _entry(self, name: str) -> Json:
        """Return a model as a list of models has it."""
        info: ModelInfo | None = None
        with suppress(errors.SpecmeshError):  # a drafter may not know all of it yet
            info = self._backend.served(name)
        return model_entry(name, info)

    async def ping(self, _: HttpRequest) -> Response:
        self._served()
        return JSONResponse({"peers": await round_trips(self._backend, self._ping_timeout)})

    async def embeddings(self, _: HttpRequest) -> Response:
        raise errors.NotOffered(
            "embeddings are not offered: start a server of an embedding model for them"
        )

    async def props(self, _: HttpRequest) -> Response:
        return JSONResponse(props(self._served()))

    async def tokenize(self, http: HttpRequest) -> Response:
        return await self.work(partial(tokenize, n_ctx=self._served().n_ctx), http)

    async def tokenizer_info(self, _: HttpRequest) -> Response:
        info = self._served()
        return JSONResponse(tokenizer_info(self._backend.tokenizer.texts, info.n_ctx))

    async def detokenize(self, http: HttpRequest) -> Response:
        vocabulary = self._served().vocabulary
        text = await self._read(http, lambda body: write_json(detokenize(body, vocabulary)))
        return Response(text, media_type="application/json")

    async def work(self, work: Callable[[object, Tokenizer], Json], http: HttpRequest) -> Response:
        """Answer what takes so long that a thread does it, whatever the body's length."""
        raw = await _body(http)
        self._served()
        tokenizer = self._backend.tokenizer
        worker = self._short if len(raw) <= SHORT_BODY else self._bodies
        text = await worker.run(
            tenant_of(http), len(raw), lambda: write_json(work(parse_json(raw), tokenizer))
        )
        return Response(text, media_type="application/json")

    async def _read(self, http: HttpRequest, read: Callable[[object], Result]) -> Result:
        """Return what `read` makes of a request's JSON; that of a long one on a thread, its tenants
        in turn."""
        raw = await _body(http)
        if len(raw) <= SHORT_BODY:
            return _checked(read, raw)

        connection: object = http.scope["state"].get("connection")

        def read_long() -> Result:
            if getattr(connection, "gone", False):
                raise ClientDisconnect  # while it waited
            with collector_paused():
                return _checked(read, raw)

        return await self._bodies.run(tenant_of(http), len(raw), read_long)

    def _served(self, name: str = "") -> ModelInfo:
        """The model of this name; raises why it, or any request, cannot be served now."""
        reason = self._backend.not_ready()
        if reason is not None:
            raise reason
        return self._backend.served(name)

    async def answer(self, http: HttpRequest, *, chat: bool) -> Response:
        body = await self._read(http, partial(parse_body, chat=chat))
        resumed, texts = len(body.requests[0].generated), len(body.requests) * body.choices
        work = partial(self._answer, http, body, Answer, chat=chat)
        if resumed <= FEW_IDS and texts <= FEW_TEXTS:
            return work()
        _check_lengths(body, self._served(body.model or body.began).n_ctx)
        return await self._bodies.run(tenant_of(http), ID_BYTES * resumed, work)

    async def respond(self, http: HttpRequest) -> Response:
        def read(value: object) -> tuple[Body, ResponseOrder]:
            chat, order = parse_response(value, self._kept)
            body = parse_body(chat, chat=True)
            if body.schema_field:
                body = replace(body, schema_field="text.format.schema")
            return body, order

        body, order = await self._read(http, read)
        kind = partial(ResponseAnswer, order, self._kept)
        return self._answer(http, body, kind, chat=True)

    async def response(self, http: HttpRequest) -> Response:
        """A response that is kept, or that it no longer is."""
        name, forget = http.path_params["id"], http.method == "DELETE"
        try:
            response = self._kept.get(name).response
        except errors.RequestError as error:
            raise HTTPException(404, str(error)) from None
        if forget:
            self._kept.forget(name)
            response = json.dumps({"id": name, "object": "response", "deleted": True})
        return Response(response, media_type="application/json")

    def _answer(
        self, http: HttpRequest, body: Body, kind: Callable[..., Answer], *, chat: bool
    ) -> Response:
        served = self._served(body.model or body.began)
        if body.began not in ("", served.model):
            raise errors.RequestError(
                f"{body.began} began this text, and {served.model} answers here", "resume"
            )
        first, params = body.requests[0], body.requests[0].params
        _check_lengths(body, served.n_ctx)
        if body.ignore_eos:
            params = endless(params, served.vocabulary.end_ids)
        name = first.id or new_id(chat)
        requests = [
            replace(one, params=params, id=name, target=served.target) for one in body.requests
        ]
        shape = Shape(chat, name, int(time.time()), served.model)
        choices = [
            Choice(
                replace(shape, index=index),
                one,
                served.vocabulary,
                resumable=body.resumable,
                splits=body.splits,
                schema_field=body.schema_field,
            )
            for index, one in enumerate(numbered(requests, body.choices, chat=chat))
        ]
        headers = {"X-Request-Id": name}
        if ignored := as_header((*body.ignored, *unknown_variables(first, served.texts))):
            headers["X-Specmesh-Ignored"] = ignored
        return kind(
            self._backend,
            choices,
            headers=headers,
            stream=body.stream,
            tells_usage=body.tells_usage,
            tenant=tenant_of(http),
        )


async def round_trips(backend: Backend, timeout: float) -> list[dict[str, object]]:
    """PING each peer of a daemon over the wire; time_ms is None for a PING without an answer. Raise DaemonUnreachable
    if there is nobody to be pinged."""
    times: dict[Peer, float | None] = {}
    complete = asyncio.Event()

    def note(given: dict[Peer, float | None]) -> None:
        times.update(given)
        if None not in times.values():
            complete.set()

    def answered(peer: Peer, seconds: float) -> None:
        note({peer: round(seconds * 1e3, 4)})

    backend.submit(PingPeers(lambda peers: note(dict.fromkeys(peers)), answered))
    with suppress(TimeoutError):
        await asyncio.wait_for(complete.wait(), timeout)
    if not times:
        other = "drafter" if backend.role == "verifier" else "verifier"
        raise errors.DaemonUnreachable(
            f"no {other} is attached to this {backend.role}", "start one, or see its log"
        )
    return [
        {"peer": peer.name, "address": peer.address, "time_ms": time_ms}
        for peer, time_ms in times.items()
    ]


def _check_lengths(body: Body, n_ctx: int | None) -> None:
    """Raise RequestError for ids that cannot fit into the context, before anything is made of
    them."""
    if n_ctx is None:
        return
    for request in body.requests:
        n_prompt = len(request.prompt_ids or ())
        if n_prompt >= n_ctx:
            raise errors.PromptTooLong.of(n_prompt, n_ctx)
        if n_prompt + len(request.generated) > n_ctx:
            count = n_prompt + len(request.generated)
            why = f"{count} ids are no text that has {n_ctx} at most"
            raise errors.RequestError(why, "resume")


def _checked(read: Callable[[object], Result], raw: bytearray) -> Result:
    """Return what `read` makes of a body's JSON. Raises RequestError also where lists can be read,
    but what is made of them is nested too deeply for it."""
    try:
        return read(parse_json(raw))
    except RecursionError:
        raise errors.RequestError(TOO_DEEP) from None


_INFLATED = ("gzip", "x-gzip", "deflate")


async def _body(http: HttpRequest) -> bytearray:
    """Return the request's body, inflated where it is compressed, of at most MAX_HTTP_BODY bytes.
    Raise HTTPException where it is longer, or compressed in another way, and RequestError where it
    is damaged. Nothing is inflated beyond that length."""
    encoding = ", ".join(http.headers.getlist("content-encoding")).strip().lower() or "identity"
    if encoding not in ("identity", *_INFLATED):
        why = f"Content-Encoding {encoding[:80]} is not supported: send gzip, deflate or none"
        raise HTTPException(415, why, {"Accept-Encoding": "gzip, deflate"})
    inflating = _Inflating(encoding) if encoding in _INFLATED else None
    raw, received = bytearray(), 0
    async for chunk in http.stream():
        received += len(chunk)
        raw += chunk if inflating is None else inflating.feed(chunk, MAX_HTTP_BODY + 1 - len(raw))
        if max(len(raw), received) > MAX_HTTP_BODY:
            raise HTTPException(413, f"the request body exceeds {MAX_HTTP_BODY} bytes")
    if inflating is not None:
        inflating.end()
    return raw


class _Inflating:
    """Inflates a body of one of these encodings as it comes."""

    def __init__(self, encoding: str) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: gzip's form or zlib's
        self._damaged = errors.RequestError(f"the request body is no {encoding}, or damaged")

    def feed(self, chunk: bytes, most: int) -> bytes:
        """Return at most `most` bytes more, which is above 0. Raise RequestError."""
        try:
            inflated = self._inflater.decompress(chunk, most)
        except zlib.error:
            raise self._damaged from None
        if self._inflater.unused_data:
            raise self._damaged  # something follows the end
        return inflated

    def end(self) -> None:
        """Raise RequestError where the body was cut off."""
        if not self._inflater.eof:
            raise self._damaged


def tenant_of(http: HttpRequest) -> Tenant:
    """Return whom a request counts for where clients share something: its key, if there are
    several, and its connection."""
    tenant: Tenant = http.scope.get("state", {}).get("tenant", ())
    return tenant


_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_encoding",
}


async def _failed(_: HttpRequest, error: Exception) -> Response:
    match error:
        case errors.SpecmeshError():
            return refusal(error)
        case ClientDisconnect():
            return Response(status_code=499)  # the client has closed the request, as nginx logs it
        case HTTPException(status_code=status):
            code = _CODES.get(status, "http_error")
            return JSONResponse(
                error_body(errors.RequestError(error.detail), code=code), status, error.headers
            )
        case _:
            log.error("api_failed", error=f"{type(error).__name__}: {error}")  # a defect of ours
            return refusal(errors.InternalError())


class ApiGuard:
    """Middleware before the application. With keys every resource but /health needs one of them as
    bearer. Without, no web page of elsewhere may use the API through its visitor's browser, neither
    under a name of its own that points here (DNS rebinding) nor across origins. Pages that this
    machine serves may, and those of `origins`."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], origins: Collection[str] = ()) -> None:
        self._app, self._keys, self._origins = app, keys, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refused = (
                self._unknown(headers, scope["path"]) if self._keys else self._foreign(headers)
            )
            if refused is None and len(self._keys) > 1:
                _count_by_key(scope, self._keys)
        await (self._app if refused is None else refused)(scope, receive, send)

    def _unknown(self, headers: Headers, path: str) -> JSONResponse | None:
        """Return what refuses a request without a key."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        bears = scheme.lower() == "bearer" and _is_key(given.strip(), self._keys)
        if bears or path == "/health":
            return None
        error = errors.Refused("no valid API key", "send Authorization: Bearer KEY")
        body = error_body(error, "authentication_error", "invalid_api_key")
        return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})

    def _foreign(self, headers: Headers) -> JSONResponse | None:
        """Return what refuses a request that comes by another host's name, or from its page."""
        origin = headers.get("origin")
        allowed = origin is None or origin in self._origins or is_own_page(origin)
        if allowed and is_own_host(headers.get("host", "")):
            return None
        error = errors.Refused(
            "without an API key only programs on this machine may ask, and pages of --allow-origin"
        )
        return JSONResponse(error_body(error, "permission_error", "forbidden"), 403)


class PageAccess(CORSMiddleware):
    """Lets browsers give answers to pages of `origins`, and to those that this machine serves."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            origins,
            ("GET", "POST", "DELETE"),
            ("*",),
            allow_private_network=True,  # a page of a public network asks for that besides
            expose_headers=(
                "X-Request-Id",
                "X-Specmesh-Ignored",
                "X-Specmesh-Merged",
                "Retry-After",
            ),
        )

    def is_allowed_origin(self, origin: str) -> bool:
        """Return whether a page of this origin may have the answer."""
        return super().is_allowed_origin(origin) or is_own_page(origin)


def guarded(app: ASGIApp, port: Port) -> ASGIApp:
    """Return the application as a port has it. Where pages of elsewhere may come, browsers ask
    first, without a key, whether theirs may; else they get no word."""
    if port.keys or port.origins:
        return PageAccess(ApiGuard(app, port.keys, port.origins), port.origins)
    return ApiGuard(PageAccess(app, ()), ())


def _is_key(given: str, keys: tuple[str, ...]) -> bool:
    """Compares with every key, so that the time it takes tells nothing."""
    raw = given.encode("utf-8", "replace")
    return True in [hmac.compare_digest(raw, key.encode()) for key in keys]


def _count_by_key(scope: Scope, keys: tuple[str, ...]) -> None:
    """Let a request count for its key before its connection: one alone would tell no clients
    apart."""
    given = Headers(scope=scope).get("authorization", "").partition(" ")[2].strip()
    number = [key for key in range(len(keys)) if _is_key(given, keys[key : key + 1])]
    state = scope["state"]
    state["tenant"] = (("key", *number), *state.get("tenant", ()))
