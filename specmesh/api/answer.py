"""A session's events as an answer: all at once, or as server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from starlette.requests import ClientDisconnect

from specmesh.api import shapes
from specmesh.api.shapes import Json, Shape
from specmesh.core.stop import StoppedText
from specmesh.core.vocabulary import Vocabulary
from specmesh.errors import DaemonUnreachable, SpecmeshError
from specmesh.requests import Finished, Started, Tokens

LOOK = 0.25
"""Seconds between two looks whether a client that waits for a whole answer is still there."""

Event = Started | Tokens | Finished
Batches = AsyncGenerator[list[Event], None]


async def whole(
    batches: Batches, shape: Shape, vocabulary: Vocabulary, stops: Sequence[str], gone: Callable[[], Awaitable[bool]]
) -> Json:
    """The whole answer; raises the daemon's error, and ClientDisconnect once `gone()` says that nobody waits."""
    text, ids = "", list[int]()
    end: Finished | None = None
    shown = StoppedText(vocabulary, stops)
    async with aclosing(batches), aclosing(_while_heard(batches, gone)) as heard:
        async for batch in heard:
            for event in batch:
                if isinstance(event, Tokens):
                    ids += event.ids
                    text += shown.feed(event.ids)
                elif isinstance(event, Finished):
                    end = event
    if end is None:
        raise DaemonUnreachable("the session ended without a result")
    extra = shapes.result(end) | {"token_ids": ids}
    return shape.whole(text + shown.finish(), end.reason, extra) | {"usage": shapes.usage(end, len(ids))}


async def _while_heard(batches: Batches, gone: Callable[[], Awaitable[bool]]) -> Batches:
    """The batches; raises ClientDisconnect soon after the client left, also while none comes."""
    left = asyncio.ensure_future(_until(gone))
    try:
        while True:
            fresh = asyncio.ensure_future(_next(batches))
            await asyncio.wait({fresh, left}, return_when=asyncio.FIRST_COMPLETED)
            if not fresh.done():
                fresh.cancel()
                await asyncio.wait({fresh})
                raise ClientDisconnect
            batch = fresh.result()
            if batch is None:
                return
            yield batch
    finally:
        left.cancel()


async def _next(batches: Batches) -> list[Event] | None:
    return await anext(batches, None)


async def _until(gone: Callable[[], Awaitable[bool]]) -> None:
    while not await gone():
        await asyncio.sleep(LOOK)


class Stream:
    """Server-sent events: a chunk at the start, one per round or batch of rounds, one with finish_reason, [DONE].

    With `usage_apart` the usage comes in a chunk of its own before [DONE] (`stream_options.include_usage`).
    """

    def __init__(self, shape: Shape, vocabulary: Vocabulary, stops: Sequence[str], usage_apart: bool) -> None:
        self._shape, self._vocabulary, self._usage_apart = shape, vocabulary, usage_apart
        self._shown, self._generated = StoppedText(vocabulary, stops), 0

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
        described = _describe(event, self._vocabulary)
        match event:
            case Started():
                return [self._shape.chunk("", None, described)]
            case Tokens(ids, accepted, drafts):
                self._generated += len(ids)
                drafted, own = self._shown.feed(ids[:accepted]), self._shown.feed(ids[accepted:])
                if drafts is not None:
                    described["accepted_text"] = drafted
                return [self._shape.chunk(drafted + own, None, described)]
            case Finished(reason, _, _):
                usage = shapes.usage(event, self._generated)
                last = self._shape.chunk(self._shown.finish(), reason, described)
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


def _describe(event: Event, vocabulary: Vocabulary) -> Json:
    """What a chunk says beyond its text: ids, how many of them were drafted, and the round where it was asked for."""
    match event:
        case Started(session, prompt_tokens):
            return {"session": session, "prompt_tokens": prompt_tokens}
        case Tokens(ids, accepted, drafts):
            told: Json = {"token_ids": list(ids), "accepted": accepted}
            if drafts is not None:
                told["drafts"] = list(drafts)
                told["drafted_text"] = vocabulary.text(drafts)
                told["pieces"] = [vocabulary.text([token]) for token in ids]
            return told
        case Finished():
            return shapes.result(event)


def server_sent(value: Json) -> str:
    """A value as a server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
