"""A session's events as an answer: all at once, or as server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

from starlette.requests import ClientDisconnect

from specmesh.api import shapes
from specmesh.api.shapes import Json, Shape
from specmesh.core.stop import StoppedText
from specmesh.core.verifier_session import SessionParams
from specmesh.core.vocabulary import Vocabulary
from specmesh.errors import DaemonUnreachable, SpecmeshError
from specmesh.requests import Finished, Request, Started, Tokens

LOOK = 0.25
"""Seconds between two looks whether a client that waits for a whole answer is still there."""

Event = Started | Tokens | Finished
Batches = AsyncGenerator[list[Event], None]


class Telling:
    """What is told of a request's events: the text after what its client knows, up to a stop string.

    resumable: also what is needed to go on with the text.
    """

    def __init__(self, vocabulary: Vocabulary, request: Request, *, resumable: bool) -> None:
        self._vocabulary, self._request, self._resumable = vocabulary, request, resumable
        self._shown = self._text(request.params.stop)
        self.known = request.known

    def _text(self, stops: Sequence[str]) -> StoppedText:
        shown = StoppedText(self._vocabulary, stops)
        shown.feed(self._request.generated)
        return shown

    def started(self, event: Started) -> Json:
        """What is said as it begins; who asked by a name alone learns what the text may end with."""
        if event.params is not None:
            self._shown = self._text(event.params.stop)
        described: Json = {"session": event.session, "prompt_tokens": event.prompt_tokens}
        if self.known:
            described["known_tokens"] = self.known
        if self._resumable and event.params is not None:
            described |= {"prompt_token_ids": list(event.prompt_ids), "request": _params(event.params)}
        return described

    def feed(self, ids: Iterable[int]) -> str:
        """Text that can be shown since these ids."""
        return self._shown.feed(ids)

    def finish(self) -> str:
        """What is left when the text ends."""
        return self._shown.finish()

    def tokens(self, event: Tokens) -> Json:
        """What is said of ids: which, how many of them were drafted, and the round where it was asked for."""
        described: Json = {"token_ids": list(event.ids), "accepted": event.accepted}
        if event.drafts is not None:
            described["drafts"] = list(event.drafts)
            described["drafted_text"] = self._vocabulary.text(event.drafts)
            described["pieces"] = [self._vocabulary.text([token]) for token in event.ids]
        return described


def _params(params: SessionParams) -> Json:
    """The fields of a body that decide how a text goes on."""
    sampling = params.sampling
    return {
        "max_tokens": params.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.penalties.repeat,
        "repeat_last_n": sampling.penalties.window,
        "frequency_penalty": sampling.penalties.frequency,
        "presence_penalty": sampling.penalties.presence,
        "logit_bias": [list(pair) for pair in sampling.logit_bias],
        "stop": list(params.stop),
    }


async def whole(batches: Batches, shape: Shape, telling: Telling, gone: Callable[[], Awaitable[bool]]) -> Json:
    """The whole answer; raises the daemon's error, and ClientDisconnect once `gone()` says that nobody waits."""
    text, ids = "", list[int]()
    end: Finished | None = None
    async with aclosing(batches), aclosing(_while_heard(batches, gone)) as heard:
        async for batch in heard:
            for event in batch:
                match event:
                    case Started():
                        telling.started(event)
                    case Tokens():
                        ids += event.ids
                        text += telling.feed(event.ids)
                    case Finished():
                        end = event
    if end is None:
        raise DaemonUnreachable("the session ended without a result")
    extra = shapes.result(end) | {"token_ids": ids}
    usage = shapes.usage(end, telling.known + len(ids))
    return shape.whole(text + telling.finish(), end.reason, extra) | {"usage": usage}


async def beginning(batches: Batches, gone: Callable[[], Awaitable[bool]]) -> list[Event]:
    """The first batch, which may take as long as a queue; raises as `whole` does, and then leaves the session."""
    async with aclosing(_while_heard(batches, gone)) as heard:
        try:
            return await anext(heard)
        except BaseException:
            await batches.aclose()
            raise


async def _while_heard(batches: Batches, gone: Callable[[], Awaitable[bool]]) -> Batches:
    """The batches; raises ClientDisconnect soon after the client left, also while none comes."""
    left, fresh = asyncio.ensure_future(_until(gone)), None
    try:
        while True:
            fresh = asyncio.ensure_future(_next(batches))
            await asyncio.wait({fresh, left}, return_when=asyncio.FIRST_COMPLETED)
            if not fresh.done():
                raise ClientDisconnect
            batch = fresh.result()
            if batch is None:
                return
            yield batch
    finally:
        left.cancel()
        if fresh is not None and not fresh.done():  # also where the server ends: what runs cannot be closed
            fresh.cancel()
            await asyncio.wait({fresh})


async def _next(batches: Batches) -> list[Event] | None:
    return await anext(batches, None)


async def _until(gone: Callable[[], Awaitable[bool]]) -> None:
    while not await gone():
        await asyncio.sleep(LOOK)


class Stream:
    """Server-sent events: a chunk at the start, one per round or batch of rounds, one with finish_reason, [DONE].

    With `usage_apart` the usage comes in a chunk of its own before [DONE] (`stream_options.include_usage`).
    """

    def __init__(self, shape: Shape, telling: Telling, usage_apart: bool) -> None:
        self._shape, self._telling, self._usage_apart = shape, telling, usage_apart
        self._generated = telling.known

    async def events(self, first: list[Event], batches: Batches) -> AsyncIterator[str]:
        """The body; an error in mid-stream ends it as an event of its own."""
        try:
            async with aclosing(batches):
                yield self._chunks(first)
                async for batch in batches:
                    yield self._chunks(batch)
        except SpecmeshError as error:
            yield server_sent(error_body(error))
            return
        yield "data: [DONE]\n\n"

    def _chunks(self, batch: list[Event]) -> str:
        return "".join(server_sent(chunk) for event in batch for chunk in self._chunk(event))

    def _chunk(self, event: Event) -> list[Json]:
        match event:
            case Started():
                return [self._shape.chunk("", None, self._telling.started(event))]
            case Tokens(ids, accepted, drafts):
                described = self._telling.tokens(event)
                self._generated += len(ids)
                drafted, own = self._telling.feed(ids[:accepted]), self._telling.feed(ids[accepted:])
                if drafts is not None:
                    described["accepted_text"] = drafted
                return [self._shape.chunk(drafted + own, None, described)]
            case Finished(reason, _, _):
                usage = shapes.usage(event, self._generated)
                last = self._shape.chunk(self._telling.finish(), reason, shapes.result(event))
                if not self._usage_apart:
                    return [last | {"usage": usage}]
                return [last, self._shape.chunk("", None, {}) | {"choices": [], "usage": usage}]


async def told(first: Json, others: AsyncGenerator[Json, None]) -> AsyncIterator[str]:
    """Values as server-sent events, then [DONE]."""
    async with aclosing(others):
        yield server_sent(first)
        async for value in others:
            yield server_sent(value)
    yield "data: [DONE]\n\n"


def append(batch: list[Event], event: Event, rounds: bool) -> None:
    """Add an event; where nobody asked for rounds their drafts are left out, and ids that follow ids join them."""
    if not rounds and isinstance(event, Tokens):
        event = Tokens(event.ids, event.accepted, None)
    if not rounds and batch and isinstance(event, Tokens) and isinstance(batch[-1], Tokens):
        batch[-1] = batch[-1].joined(event)
    else:
        batch.append(event)


def error_body(error: SpecmeshError) -> Json:
    """An error of ours as OpenAI writes errors."""
    kind = "invalid_request_error" if error.exit_code == 2 else "server_error"
    return shapes.error(str(error), kind, type(error).__name__, getattr(error, "param", None), error.exit_code)


def server_sent(value: Json) -> str:
    """A value as a server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
