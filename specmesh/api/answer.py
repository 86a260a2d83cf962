"""A session's events as an answer: all at once, or as server-sent events."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from specmesh.api import shapes, structure
from specmesh.api.logprobs import Said
from specmesh.api.requests import Finished, Request, Started, Tokens
from specmesh.api.shapes import Json, Shape
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.stop import ShownText, StopTextFilter
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import DaemonUnreachable, SpecmeshError

LOOK = 0.25
"""Seconds between two looks whether a client that waits for a whole answer is still there."""

Event = Started | Tokens | Finished
Batches = AsyncGenerator[list[Event], None]
Merged = AsyncGenerator[tuple[int, list[Event]], None]
"""Batches of one or more answers, each with the number of its own."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is told at once: text, its ids, and specmesh's words about it."""

    text: str
    said: tuple[Said, ...]
    described: Json


class Telling:
    """What is told of a request's events: the text after what its client knows, up to a stop string, and its ids.

    chat: by which API it was asked. resumable: also what is needed to go on with the text. echo: the prompt's text
    first. generated: how many ids the client knows by now.
    """

    def __init__(
        self, vocabulary: Vocabulary, request: Request, *, chat: bool = False, resumable: bool, echo: bool = False
    ) -> None:
        self._vocabulary, self._request, self._chat, self._resumable = vocabulary, request, chat, resumable
        self._echo, self._offset = echo, 0
        self.generated = request.known
        self._begin(request.params)

    def _begin(self, params: SessionParams) -> None:
        """Begin with the ids that came before; who asked by a name alone learns only now what the text may end with."""
        self.logprobs = params.logprobs is not None
        self._text = StopTextFilter(self._vocabulary, params.stop)
        self._untold = deque[tuple[int, Logprob | None]]()
        before = self._request.generated
        self._skipped = len(before) - len(self._text.feed(before).begins)

    def part(self, event: Event) -> Part:
        match event:
            case Started():
                return self._started(event)
            case Tokens():
                return self._tokens(event)
            case Finished():
                part = self._next_part(self._text.finish())
                return part if part.said else Part(part.text, (), {})

    def _started(self, event: Started) -> Part:
        if event.params is not None:
            self._begin(event.params)
        described: Json = {"session": event.session, "prompt_tokens": event.prompt_tokens}
        if self._request.known:
            described["known_tokens"] = self._request.known
        if self._resumable and event.params is not None:
            described |= {"prompt_token_ids": list(event.prompt_ids), "request": _params(event.params, chat=self._chat)}
        return self._echoed(event.prompt_ids, described) if self._echo else Part("", (), described)

    def _echoed(self, ids: tuple[int, ...], described: Json) -> Part:
        """The prompt as it was given, or the text of its ids; how likely they were is not known."""
        asked = self._request.prompt
        text = self._vocabulary.text(ids) if asked is None else asked
        self._offset = len(text)
        begins = StopTextFilter(self._vocabulary, ()).feed(ids).begins
        said = [
            Said(token, min(begin, len(text)), None, self._vocabulary, echoed=True)
            for token, begin in zip(ids, begins, strict=True)
        ]
        return Part(text, tuple(said), described)

    def _tokens(self, event: Tokens) -> Part:
        """What is said of ids: which, how many of them were drafted, and the round where it was asked for.

        What may be the beginning of a stop string waits, ids and text; a round is told as it was.
        """
        found = event.logprobs or (None,) * len(event.ids)
        self._untold += zip(event.ids, found, strict=True)
        accepted = self._text.feed(event.ids[: event.accepted])
        own = self._text.feed(event.ids[event.accepted :])
        part = self._next_part(ShownText(accepted.text + own.text, accepted.begins + own.begins))
        part.described["accepted"] = event.accepted
        if event.drafts is not None:
            part.described["drafts"] = list(event.drafts)
            part.described["drafted_text"] = self._vocabulary.text(event.drafts)
            part.described["pieces"] = [self._vocabulary.text([token]) for token in event.ids]
            part.described["accepted_text"] = accepted.text
        return part

    def usage(self, end: Finished) -> shapes.Usage:
        """Its usage; of several answers to one prompt the first has that."""
        return shapes.usage(end, self.generated, repeats=self._request.choice > 0)

    def _next_part(self, passage: ShownText) -> Part:
        said = []
        for begin in passage.begins:
            if self._skipped:
                self._skipped -= 1  # its client knows the id, but not yet all of its text
            else:
                token, logprob = self._untold.popleft()
                said.append(Said(token, self._offset + begin, logprob, self._vocabulary))
        self.generated += len(said)
        return Part(passage.text, tuple(said), {"token_ids": [one.id for one in said]})


def _params(params: SessionParams, *, chat: bool) -> Json:
    """The fields of a body that decide how a text goes on."""
    return {
        "max_tokens": params.max_tokens,
        **params.sampling.named(),
        "logit_bias": [list(pair) for pair in params.sampling.logit_bias],
        "stop": list(params.stop),
        **_logprob_fields(params.logprobs, chat=chat),
        **structure.fields_of(params.grammar),
        "cache_prompt": params.cache_prompt,
    }


def _logprob_fields(top: int | None, *, chat: bool) -> Json:
    if top is None:
        return {}
    return {"logprobs": True, "top_logprobs": top} if chat else {"logprobs": top}


@dataclass(slots=True)
class _Whole:
    """An answer that is told at its end."""

    telling: Telling
    parts: list[Part] = field(default_factory=list)
    end: Finished | None = None

    def take(self, event: Event) -> None:
        self.parts.append(self.telling.part(event))
        if isinstance(event, Finished):
            self.end = event

    def answer(self, shape: Shape, index: int) -> tuple[Json, shapes.Usage]:
        if self.end is None:
            raise DaemonUnreachable("the session ended without a result")
        said = [one for part in self.parts for one in part.said]
        extra = shapes.result(self.end, self.telling.generated)
        extra |= {"token_ids": [one.id for one in said if not one.echoed]}
        text = "".join(part.text for part in self.parts)
        answer = shape.whole(text, self.end.reason, extra, said if self.telling.logprobs else None, index)
        return answer, self.telling.usage(self.end)


async def whole(
    batches: Merged, shape: Shape, tellings: Sequence[Telling], gone: Callable[[], Awaitable[bool]]
) -> Json:
    """The whole answer; raises the daemon's error, and ClientDisconnect once `gone()` says that nobody waits."""
    choices = [_Whole(telling) for telling in tellings]
    async with aclosing(batches), aclosing(_while_heard(batches, gone)) as heard:
        async for number, batch in heard:
            for event in batch:
                choices[number].take(event)
    answers = [choice.answer(shape, number) for number, choice in enumerate(choices)]
    answer, usage = answers[0]
    for other, more in answers[1:]:
        usage += more
        answer["choices"] += other["choices"]  # type: ignore[operator]
    if len(answers) > 1:
        answer["specmesh"] = {"choices": [one["specmesh"] for one, _ in answers]}
    return answer | {"usage": usage.as_json()}


async def beginning(batches: Merged, gone: Callable[[], Awaitable[bool]]) -> tuple[int, list[Event]]:
    """The first batch, which may take as long as a queue; raises as `whole` does, and then leaves the session."""
    async with aclosing(_while_heard(batches, gone)) as heard:
        try:
            return await anext(heard)
        except BaseException:
            await batches.aclose()
            raise


async def _while_heard(batches: Merged, gone: Callable[[], Awaitable[bool]]) -> Merged:
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


async def _next(batches: Merged) -> tuple[int, list[Event]] | None:
    return await anext(batches, None)


async def _until(gone: Callable[[], Awaitable[bool]]) -> None:
    while not await gone():
        await asyncio.sleep(LOOK)


class Stream:
    """Server-sent events: a chunk at the start, one per round or batch of rounds, one with finish_reason, [DONE].

    The usage is in the last chunk of the answer that ends last; with `usage_apart` it comes in one of its own before
    [DONE] (`stream_options.include_usage`).
    """

    def __init__(self, shape: Shape, tellings: Sequence[Telling], usage_apart: bool) -> None:
        self._shape, self._tellings, self._usage_apart = shape, tellings, usage_apart
        self._running, self._usage = len(tellings), shapes.NO_USAGE

    async def events(self, first: tuple[int, list[Event]], batches: Merged) -> AsyncIterator[str]:
        """The body; an error in mid-stream ends it as an event of its own."""
        try:
            async with aclosing(batches):
                yield self._chunks(*first)
                async for number, batch in batches:
                    yield self._chunks(number, batch)
        except SpecmeshError as error:
            yield server_sent(error_body(error))
            return
        yield "data: [DONE]\n\n"

    def _chunks(self, number: int, batch: list[Event]) -> str:
        return "".join(server_sent(chunk) for event in batch for chunk in self._chunk(number, event))

    def _chunk(self, number: int, event: Event) -> list[Json]:
        telling = self._tellings[number]
        part = telling.part(event)
        said = part.said if telling.logprobs else ()
        if not isinstance(event, Finished):
            return [self._shape.chunk(part.text, None, part.described, said, number)]
        described = part.described | shapes.result(event, telling.generated)
        self._running -= 1
        self._usage += telling.usage(event)
        return self._last(self._shape.chunk(part.text, event.reason, described, said, number))

    def _last(self, chunk: Json) -> list[Json]:
        """The last chunk of an answer, and the usage after that of the last."""
        if self._running:
            return [chunk]
        usage = {"usage": self._usage.as_json()}
        if not self._usage_apart:
            return [chunk | usage]
        return [chunk, self._shape.chunk("", None, {}) | {"choices": []} | usage]


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
        event = Tokens(event.ids, event.accepted, None, event.logprobs)
    if not rounds and batch and isinstance(event, Tokens) and isinstance(batch[-1], Tokens):
        batch[-1] = batch[-1].joined(event)
    else:
        batch.append(event)


def error_body(error: SpecmeshError) -> Json:
    """An error of ours as OpenAI writes errors."""
    kind = "invalid_request_error" if error.exit_code == 2 else "server_error"
    return shapes.error(str(error), kind, error.code, getattr(error, "param", None), error)


def server_sent(value: Json) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
