"""The local HTTP API both daemons serve on their Unix socket: OpenAI's shapes, specmesh's numbers beside them.

It runs on a thread of its own, reads immutable snapshots and hands orders to the daemon's loop, so that it answers
while a step runs. Fields and events of ours stand under the key `specmesh`.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from specmesh.api_ping import parse_ping, pinged
from specmesh.api_request import parse_completion
from specmesh.core.vocabulary import TextStream, Vocabulary
from specmesh.errors import Busy, DaemonUnreachable, PromptTooLong, RequestError, SpecmeshError
from specmesh.requests import Backend, Cancel, Failed, Finished, LocalClient, Request, Started, Submit, Tokens

Event = Started | Tokens | Finished

SCHEMA_VERSION = 1
PACE = 0.004
"""Seconds between two looks at a session's events. Rounds faster than that are sent together: each costs this thread as
much time of the interpreter as the loop needs for a round."""

MAX_HTTP_BODY = 2 * 1024 * 1024


def create_app(backend: Backend) -> Starlette:
    """The ASGI application over a daemon."""
    api = _Api(backend)
    return Starlette(
        routes=[
            Route("/health", api.health),
            Route("/stats", api.stats),
            Route("/v1/models", api.models),
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/ping", api.ping, methods=["POST"]),
        ],
        exception_handlers={SpecmeshError: _specmesh_error, ClientDisconnect: _gone},
    )


class _Api:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def health(self, _: HttpRequest) -> Response:
        reason = self._backend.not_ready()
        if reason is None:
            return JSONResponse({"status": "ok", "role": self._backend.role})
        return JSONResponse({"status": "unavailable", "role": self._backend.role, "reason": str(reason)}, 503)

    async def stats(self, _: HttpRequest) -> Response:
        return JSONResponse(self._backend.stats())

    async def models(self, _: HttpRequest) -> Response:
        entry = {"id": self._backend.model, "object": "model", "created": 0, "owned_by": "specmesh"}
        return JSONResponse({"object": "list", "data": [entry] if self._backend.model else []})

    async def completions(self, http: HttpRequest) -> Response:
        body = parse_completion(await _body(http))
        reason = self._backend.not_ready()
        if reason is not None:
            raise reason
        request = await self._encoded(body.request)
        answer = _Answer(f"cmpl-{secrets.token_hex(12)}", int(time.time()), self._backend.model)
        if body.stream:
            batches = self._events(request)
            first = await anext(batches)  # a refusal becomes a status code, not a broken stream
            stream = _Stream(answer, self._backend.vocabulary())
            return StreamingResponse(stream.events(first, batches), media_type="text/event-stream")
        return JSONResponse(await self._whole(http, request, answer))

    async def ping(self, http: HttpRequest) -> Response:
        wanted = parse_ping(await _body(http))
        reason = self._backend.not_ready()
        if reason is not None:
            raise reason
        told = pinged(self._backend, wanted)
        first = await anext(told)  # likewise
        return StreamingResponse(_told(first, told), media_type="text/event-stream")

    async def _encoded(self, request: Request) -> Request:
        """The request with ids in place of text, where this daemon can: seconds of work for a long one, done here so
        that the loop and its sessions need not wait."""
        encode = self._backend.encoder()
        if encode is None or request.prompt is None:
            return request
        ids = await asyncio.to_thread(encode, request.prompt)
        return replace(request, prompt=None, prompt_ids=tuple(ids))

    async def _whole(self, http: HttpRequest, request: Request, answer: "_Answer") -> dict[str, object]:
        text, ids = "", list[int]()
        end: Finished | None = None
        stream = TextStream(self._backend.vocabulary())
        async with aclosing(self._events(request)) as batches:
            async for batch in batches:
                if await http.is_disconnected():
                    raise ClientDisconnect
                for event in batch:
                    if isinstance(event, Tokens):
                        ids += event.ids
                        text += stream.feed(event.ids)
                    elif isinstance(event, Finished):
                        end = event
        if end is None:
            raise DaemonUnreachable("the session ended without a result")
        return answer.whole(text + stream.finish(), ids, end)

    async def _events(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """A session's events, as many as came together; leaving early cancels it. Raises the daemon's refusal."""
        client = LocalClient()
        self._backend.submit(Submit(request, client))
        over = False
        try:
            while not over:
                batch: list[Event] = []
                error: SpecmeshError | None = None
                for event in await client.batch():
                    over = isinstance(event, Finished | Failed)
                    if isinstance(event, Failed):
                        error = event.error
                        break
                    _append(batch, event, request.rounds)
                if batch:
                    yield batch
                if error is not None:
                    raise error
                await asyncio.sleep(0 if over else PACE)
        finally:
            if not over:
                self._backend.submit(Cancel(client))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The constant part of a completion's JSON."""

    id: str
    created: int
    model: str

    def chunk(self, text: str, finish: str | None, extra: dict[str, object]) -> dict[str, object]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return head | {"choices": [choice], "specmesh": extra}

    def whole(self, text: str, ids: list[int], end: Finished) -> dict[str, object]:
        extra = _result(end) | {"token_ids": ids}
        return self.chunk(text, end.reason, extra) | {"usage": _usage(end, len(ids))}


def _usage(end: Finished, generated: int) -> dict[str, int]:
    prompt = len(end.prompt_ids)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _result(end: Finished) -> dict[str, object]:
    return {"schema_version": SCHEMA_VERSION, "prompt_token_ids": list(end.prompt_ids), "report": end.report}


class _Stream:
    """Server-sent events: a chunk at the start, one per round or batch of rounds, one with finish_reason, [DONE]."""

    def __init__(self, answer: _Answer, vocabulary: Vocabulary) -> None:
        self._answer, self._vocabulary = answer, vocabulary
        self._text, self._generated = TextStream(vocabulary), 0

    async def events(self, first: list[Event], batches: AsyncGenerator[list[Event], None]) -> AsyncIterator[str]:
        """The body; an error in mid-stream ends it as an event of its own."""
        try:
            async with aclosing(batches):
                yield self._chunks(first)
                async for batch in batches:
                    yield self._chunks(batch)
        except SpecmeshError as error:
            yield _event(_error_body(error))
            return
        yield "data: [DONE]\n\n"

    def _chunks(self, batch: list[Event]) -> str:
        return "".join(_event(self._chunk(event)) for event in batch)

    def _chunk(self, event: Event) -> dict[str, object]:
        described = _describe(event, self._vocabulary)
        match event:
            case Started():
                return self._answer.chunk("", None, described)
            case Tokens(ids, accepted, drafts):
                self._generated += len(ids)
                drafted, own = self._text.feed(ids[:accepted]), self._text.feed(ids[accepted:])
                if drafts is not None:
                    described["accepted_text"] = drafted
                return self._answer.chunk(drafted + own, None, described)
            case Finished(reason, _, _):
                last = self._answer.chunk(self._text.finish(), reason, described)
                return last | {"usage": _usage(event, self._generated)}


async def _told(first: dict[str, object], others: AsyncGenerator[dict[str, object], None]) -> AsyncGenerator[str, None]:
    """Values as server-sent events, then [DONE]."""
    async with aclosing(others):
        yield _event(first)
        async for value in others:
            yield _event(value)
    yield "data: [DONE]\n\n"


def _append(batch: list[Event], event: Event, rounds: bool) -> None:
    """Add an event; where nobody asked for rounds their drafts are left out, and ids that follow ids join them."""
    if not rounds and isinstance(event, Tokens):
        event = Tokens(event.ids, event.accepted, None)
    if not rounds and batch and isinstance(event, Tokens) and isinstance(batch[-1], Tokens):
        batch[-1] = batch[-1].joined(event)
    else:
        batch.append(event)


def _describe(event: Event, vocabulary: Vocabulary) -> dict[str, object]:
    """What a chunk says beyond its text: ids, how many of them were drafted, and the round where it was asked for."""
    match event:
        case Started(session, prompt_tokens):
            return {"session": session, "prompt_tokens": prompt_tokens}
        case Tokens(ids, accepted, drafts):
            told: dict[str, object] = {"token_ids": list(ids), "accepted": accepted}
            if drafts is not None:
                told["drafts"] = list(drafts)
                told["drafted_text"] = vocabulary.text(drafts)
                told["pieces"] = [vocabulary.text([token]) for token in ids]
            return told
        case Finished():
            return _result(event)


def _event(value: dict[str, object]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def _body(http: HttpRequest) -> object:
    """The request's JSON; raises RequestError for anything else or too much of it."""
    raw = b""
    async for chunk in http.stream():
        raw += chunk
        if len(raw) > MAX_HTTP_BODY:
            raise RequestError(f"the request body exceeds {MAX_HTTP_BODY} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestError("the request body is not JSON") from None


async def _specmesh_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, SpecmeshError)
    status = {RequestError: 400, PromptTooLong: 400, Busy: 503, DaemonUnreachable: 502}.get(type(error), 500)
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse(_error_body(error), status, headers)


async def _gone(_: HttpRequest, __: Exception) -> Response:
    return Response(status_code=499)


def _error_body(error: SpecmeshError) -> dict[str, object]:
    """OpenAI's error object; `code` lets our own client raise the same class again."""
    kind = "invalid_request_error" if isinstance(error, RequestError) else "server_error"
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "param": None,
            "code": type(error).__name__,
            "exit_code": error.exit_code,
        }
    }
