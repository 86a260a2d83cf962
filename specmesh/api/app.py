"""The HTTP application over a daemon, the same on its Unix socket and on its TCP port.

It reads immutable snapshots and submits orders to the daemon, so it answers while a step runs. In
the answers of other APIs, fields of ours stand under the key `specmesh`.
"""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specmesh import errors
from specmesh.api.answer import Answer, log_failure
from specmesh.api.backend import Backend, ModelInfo
from specmesh.api.choice import Choice
from specmesh.api.counting import count_at_drafter, count_at_verifier
from specmesh.api.dialects.anthropic import COUNT_PATH, MESSAGES
from specmesh.api.dialects.base import AnswerHead, Dialect, Order
from specmesh.api.dialects.chat import chat_order
from specmesh.api.dialects.completions import completion_order
from specmesh.api.dialects.message_body import parse_count
from specmesh.api.dialects.message_errors import ID_HEADER, is_for_messages, message_refusal
from specmesh.api.dialects.responses import response_order
from specmesh.api.error_body import error_body, refusal
from specmesh.api.fair_workers import FairWorker
from specmesh.api.generation import check_lengths, new_digits, requests_of
from specmesh.api.json_text import TOO_DEEP, collector_paused, parse_json, write_json
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.llama_server import (
    apply_template,
    detokenize,
    model_entry,
    model_list,
    props,
    tokenize,
    tokenizer_info,
)
from specmesh.api.page import page_routes
from specmesh.api.request_body import receive_body
from specmesh.api.round_trips import round_trips
from specmesh.api.unread_fields import as_header
from specmesh.core.fair_queue import Tenant
from specmesh.core.fields import Json
from specmesh.core.requests import ID_BYTES, Account
from specmesh.core.statistics.snapshot import as_json
from specmesh.core.text.chat import Tokenizer, unknown_variables

SHORT_BODY = 16 * 1024
"""Bytes of a body that the event loop parses; a longer one waits for a thread."""

FEW_IDS = 4096
"""Ids of a resumed text that the event loop reads."""

FEW_TEXTS = 8
"""Texts of an answer that the event loop begins."""

PING_TIMEOUT_S = 3.0
"""Seconds after which a PING counts as lost."""

Result = TypeVar("Result")


def create_app(
    backend: Backend, kept: KeptResponses, ping_timeout: float = PING_TIMEOUT_S
) -> Starlette:
    """Return the application over a daemon; kept: the responses that requests go on from."""
    api = _Api(backend, kept, ping_timeout)
    dialects = [
        Dialect("completions", completion_order),
        Dialect("chat/completions", chat_order),
        Dialect("responses", partial(response_order, kept)),
        MESSAGES,
    ]
    routes = [
        *page_routes(),
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
    # like llama-server, serve clients whose base URL lacks /v1
    for base in ("/v1", ""):
        routes += [
            Route(f"{base}/models", api.models),
            Route(f"{base}/models/{{model:path}}", api.models),
            Route(f"{base}/embeddings", api.embeddings, methods=["POST"]),
            Route(f"{base}/responses/{{id}}", api.response, methods=["GET", "DELETE"]),
            Route(f"{base}/{COUNT_PATH}", api.count_tokens, methods=["POST"]),
        ]
        for dialect in dialects:
            endpoint = partial(api.answer, dialect)
            routes.append(Route(f"{base}/{dialect.path}", endpoint, methods=["POST"]))
    failures = (errors.SpecmeshError, ClientDisconnect, HTTPException, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(failures, _failed))


class _Api:
    """The resources. Short bodies are parsed on the event loop, long ones on a thread."""

    def __init__(self, backend: Backend, kept: KeptResponses, ping_timeout: float) -> None:
        self._backend = backend
        self._kept = kept
        self._ping_timeout = ping_timeout
        self._bodies = FairWorker("bodies")
        self._short = FairWorker("short bodies")

    async def health(self, _: HttpRequest) -> Response:
        reason = self._backend.not_ready()
        role = self._backend.role
        if reason is None:
            return JSONResponse({"status": "ok", "role": role})
        return JSONResponse({"status": "unavailable", "role": role, "reason": str(reason)}, 503)

    async def stats(self, _: HttpRequest) -> Response:
        return JSONResponse(as_json(await self._backend.stats()))

    async def metrics(self, http: HttpRequest) -> Response:
        from specmesh.api.metrics import exposition

        healthy = self._backend.not_ready() is None
        accept = http.headers.get("accept", "")
        body, content_type = exposition(await self._backend.stats(), accept, healthy=healthy)
        return Response(body, media_type=content_type)

    async def models(self, http: HttpRequest) -> Response:
        """Return all models, or one. Raises Starting while none is known."""
        models = self._backend.models
        if not models:
            reason = self._backend.not_ready() or "no model is known yet: try again in a moment"
            raise errors.Starting(str(reason))
        name = http.path_params.get("model")
        if name is None:
            entries = [self._model_entry(model) for model in models]
            return JSONResponse(model_list(entries))
        if name not in models:
            raise errors.NoSuchModel.of(name)
        return JSONResponse(self._model_entry(name))

    def _model_entry(self, name: str) -> Json:
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
        return _json_response(
            await self._parsed(http, lambda body: write_json(detokenize(body, vocabulary)))
        )

    async def work(self, work: Callable[[object, Tokenizer], Json], http: HttpRequest) -> Response:
        """Answer a request that needs a thread, whatever its length."""
        self._served()
        tokenizer = self._backend.tokenizer
        return _json_response(
            await self._parsed(http, lambda body: write_json(work(body, tokenizer)), slow=True)
        )

    async def _parsed(
        self, http: HttpRequest, parse: Callable[[object], Result], *, slow: bool = False
    ) -> Result:
        """Return the result of `parse` for a request's JSON.

        A long body is parsed on a thread, where tenants take turns, and so is a short one if that
        is slow. Raises ClientDisconnect if its client has left meanwhile, and RequestError also if
        JSON can be read, but is nested too deeply for `parse`.
        """
        raw = await receive_body(http)
        connection: object = http.scope["state"].get("connection")

        def parse_raw() -> Result:
            if getattr(connection, "gone", False):
                raise ClientDisconnect
            try:
                with collector_paused():
                    return parse(parse_json(raw))
            except RecursionError:
                raise errors.RequestError(TOO_DEEP) from None

        worker = self._bodies
        if len(raw) <= SHORT_BODY:
            if not slow:
                return parse_raw()
            worker = self._short
        return await worker.run(tenant_of(http), len(raw), parse_raw)

    def _served(self, name: str = "") -> ModelInfo:
        """Return the model of this name, or the default. Raises the reason if it is not served."""
        reason = self._backend.not_ready()
        if reason is not None:
            raise reason
        return self._backend.served(name)

    async def answer(self, dialect: Dialect, http: HttpRequest) -> Response:
        """Answer a request for texts."""
        try:
            order = await self._parsed(http, dialect.parse)
            generation = order.generation
            served = self._served(generation.model or generation.began.model)
            check_lengths(generation, served.n_ctx)
            begin = partial(self._begin, http, dialect, order, served)
            resumed = len(generation.requests[0].generated)
            texts = len(generation.requests) * generation.choices
            if resumed <= FEW_IDS and texts <= FEW_TEXTS:
                return begin()
            return await self._bodies.run(tenant_of(http), ID_BYTES * resumed, begin)
        except errors.SpecmeshError as error:
            return dialect.refuse(error)

    def _begin(
        self, http: HttpRequest, dialect: Dialect, order: Order, served: ModelInfo
    ) -> Response:
        """Return the answer to an order, before its requests are submitted."""
        generation = order.generation
        began = generation.began
        if began.model not in ("", served.model):
            why = f"{began.model} began this text, and {served.model} answers here"
            raise errors.RequestError(why, "resume")
        if served.model_hash and began.model_hash not in ("", served.model_hash):
            why = f"another {served.model} began this text: its file, adapters or options differ"
            raise errors.RequestError(why, "resume")
        requests = requests_of(generation, served)
        choices = [
            Choice(index, request, generation, served.vocabulary)
            for index, request in enumerate(requests)
        ]
        name = requests[0].id
        headers = {"X-Request-Id": name, dialect.id_header: name}
        unknown = unknown_variables(requests[0], served.texts)
        features = ",".join(http.headers.getlist(dialect.ignored_header)).replace(" ", "")
        named = filter(None, features.split(","))
        headers |= _ignored_header([*generation.ignored, *unknown, *named])
        head = AnswerHead(name, int(time.time()), served.model, served.model_hash)
        return Answer(
            self._backend,
            generation,
            choices,
            renderer=order.renderer(head),
            refuse=dialect.refuse,
            headers=headers,
            tenant=tenant_of(http),
            account=account_of(http),
        )

    async def count_tokens(self, http: HttpRequest) -> Response:
        """Return the number of tokens of a chat's prompt, as Anthropic does."""
        self._served()
        if self._backend.role == "verifier":
            count = partial(count_at_verifier, tokenizer=self._backend.tokenizer)
            generation, tokens = await self._parsed(http, count, slow=True)
        else:
            generation = await self._parsed(http, parse_count)
            [request] = requests_of(generation, self._served(generation.model))
            tokens = await count_at_drafter(request, self._backend, tenant_of(http))
        headers = _ignored_header(generation.ignored) | {ID_HEADER: f"req_{new_digits()}"}
        return JSONResponse({"input_tokens": tokens}, headers=headers)

    async def response(self, http: HttpRequest) -> Response:
        """Return a kept response, or forget it."""
        name = http.path_params["id"]
        try:
            response = self._kept.get(name).response
        except errors.RequestError as error:
            raise HTTPException(404, str(error)) from None
        if http.method == "DELETE":
            self._kept.forget(name)
            response = json.dumps({"id": name, "object": "response", "deleted": True})
        return _json_response(response)


def _ignored_header(names: Iterable[str]) -> dict[str, str]:
    """Return the header with the names of what has no effect; none without names."""
    ignored = as_header(names)
    return {"X-Specmesh-Ignored": ignored} if ignored else {}


def _json_response(text: str) -> Response:
    return Response(text, media_type="application/json")


def tenant_of(http: HttpRequest) -> Tenant:
    """Return the tenant of a request: its key, if there are several, and its connection."""
    tenant: Tenant = http.scope.get("state", {}).get("tenant", ())
    return tenant


def account_of(http: HttpRequest) -> Account | None:
    """Return the account of a request: its API key, or the user at the Unix socket."""
    account: Account | None = http.scope.get("state", {}).get("account")
    return account


_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_encoding",
}


async def _failed(http: HttpRequest, error: Exception) -> Response:
    """Return the response to a request that failed."""
    for_messages = is_for_messages(http.url.path, http.headers)
    refuse = message_refusal if for_messages else refusal
    match error:
        case errors.SpecmeshError():
            return refuse(error)
        case ClientDisconnect():
            return Response(status_code=499)  # as nginx logs it
        case HTTPException(status_code=status) if for_messages:
            response = message_refusal(errors.RequestError(error.detail), status)
            response.headers.update(error.headers or {})
            return response
        case HTTPException(status_code=status):
            code = _CODES.get(status, "http_error")
            body = error_body(errors.RequestError(error.detail), code=code)
            return JSONResponse(body, status, error.headers)
        case _:
            log_failure(error)
            return refuse(errors.InternalError())
