"""A session's events as an answer: all at once or as server-sent events, with one choice or several."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from starlette.requests import ClientDisconnect

from specmesh.api import fields, shapes
from specmesh.api.fields import Prompt
from specmesh.api.requests import Finished, Request, Started, Tokens
from specmesh.api.shapes import AnswerToken, Json, Shape, new_id, server_sent
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.stop import ShownText, StopTextFilter
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import DaemonUnreachable, SpecmeshError

DISCONNECT_POLL_S = 0.25
Event = Started | Tokens | Finished
Batches = AsyncGenerator[tuple[int, list[Event]], None]
"""Events that came together, with the number of their choice."""
T = TypeVar("T")

_SEEDS = 2**32


def choices(request: Request, count: int, prompts: Sequence[Prompt] = (), *, chat: bool) -> list[Request]:
    """Return `count` requests for each prompt, with consecutive seeds and names of their own; the first is `request`'s
    own."""
    each = [replace(request, prompt=text, prompt_ids=ids) for text, ids in prompts[1:]]
    numbered = [_numbered(one, number) for one in (request, *each) for number in range(count)]
    return [numbered[0], *(replace(one, id=new_id(chat)) for one in numbered[1:])]


def _numbered(request: Request, number: int) -> Request:
    sampling = request.params.sampling
    sampling = replace(sampling, seed=(sampling.seed + number) % _SEEDS)
    return replace(request, params=replace(request.params, sampling=sampling), choice=number)


class Part(NamedTuple):
    """ids: told with the text. tokens: the same, and those of an echoed prompt, where log-probabilities are wanted."""

    text: str
    ids: Sequence[int]
    tokens: Sequence[AnswerToken]
    extra: Json


class ChoiceStream:
    """Turns one request's events into parts of its answer: the text after what its client knows, up to a stop string.

    resumable: also say what is needed to go on with the text. echo: begin with the prompt's text. generated: how many
    ids the client knows by now. end: the last event, once it came.
    """

    def __init__(
        self, vocabulary: Vocabulary, request: Request, *, chat: bool = False, resumable: bool, echo: bool = False
    ) -> None:
        self._vocabulary, self._request, self._chat, self._resumable = vocabulary, request, chat, resumable
        self._echo, self._offset = echo, 0
        self.generated = request.known
        self.end: Finished | None = None
        self._begin(request.params)

    def _begin(self, params: SessionParams) -> None:
        """Begin with the ids that came before; who asked by a name alone learns only now what the text may end with."""
        self.logprobs = params.logprobs is not None
        self._text = StopTextFilter(self._vocabulary, params.stop)
        self._pending: list[int] = []
        self._logprobs: list[Logprob | None] = []  # of those pending
        before = self._request.generated
        self._skipped = len(before) - len(self._text.feed(before).begins)

    def part(self, event: Event) -> Part:
        match event:
            case Started():
                return self._started(event)
            case Tokens():
                return self._tokens(event)
            case Finished():
                self.end = event
                part = self._next_part(self._text.finish())
                return part if part.ids else part._replace(extra={})

    def _started(self, event: Started) -> Part:
        if event.params is not None:
            self._begin(event.params)
        extra: Json = {"session": event.session, "prompt_tokens": event.prompt_tokens}
        if self._request.known:
            extra["known_tokens"] = self._request.known
        if self._resumable and event.params is not None:
            extra |= {"prompt_token_ids": list(event.prompt_ids), "request": _params(event.params, chat=self._chat)}
        return self._echoed(event.prompt_ids, extra) if self._echo else Part("", (), (), extra)

    def _echoed(self, ids: tuple[int, ...], extra: Json) -> Part:
        """The prompt as it was given, or the text of its ids; their log-probabilities are not known."""
        prompt = self._request.prompt
        text = self._vocabulary.text(ids) if prompt is None else prompt
        self._offset = len(text)
        begins = StopTextFilter(self._vocabulary, ()).feed(ids).begins
        tokens = [
            AnswerToken(token, min(begin, len(text)), None, self._vocabulary, echoed=True)
            for token, begin in zip(ids, begins, strict=True)
        ]
        return Part(text, (), tokens if self.logprobs else (), extra)

    def _tokens(self, event: Tokens) -> Part:
        """What may be the beginning of a stop string waits, ids and text; a round is told as it was."""
        self._pending += event.ids
        if self.logprobs:
            self._logprobs += event.logprobs or (None,) * len(event.ids)
        if event.drafts is None or not self._request.rounds:
            part = self._next_part(self._text.feed(event.ids))
            part.extra["accepted"] = event.accepted
            return part
        accepted = self._text.feed(event.ids[: event.accepted])
        own = self._text.feed(event.ids[event.accepted :])
        part = self._next_part(ShownText(accepted.text + own.text, [*accepted.begins, *own.begins]))
        part.extra["accepted"] = event.accepted
        part.extra["drafts"] = list(event.drafts)
        part.extra["drafted_text"] = self._vocabulary.text(event.drafts)
        part.extra["pieces"] = [self._vocabulary.text([token]) for token in event.ids]
        part.extra["accepted_text"] = accepted.text
        return part

    def _next_part(self, shown: ShownText) -> Part:
        begins = shown.begins
        if self._skipped:  # its client knows these ids, but not yet all of their text
            known = min(self._skipped, len(begins))
            self._skipped -= known
            begins = begins[known:]
        count = len(begins)
        self.generated += count
        ids, tokens = self._pending[:count], list[AnswerToken]()
        del self._pending[:count]
        if self.logprobs:
            places = zip(ids, begins, self._logprobs, strict=False)
            tokens = [AnswerToken(token, self._offset + at, one, self._vocabulary) for token, at, one in places]
            del self._logprobs[:count]
        return Part(shown.text, ids, tokens, {"token_ids": ids})

    def result(self) -> Json:
        assert self.end is not None
        return shapes.result(self.end, self.generated)

    def counts(self) -> tuple[int, int, int, int, int]:
        """(prompt, cached, generated, drafted, accepted) tokens; of several answers to one prompt the first has it."""
        assert self.end is not None
        found = (self.end.report.get(name) for name in ("cached_tokens", "drafted", "accepted"))
        cached, drafted, accepted = (value if isinstance(value, int) else 0 for value in found)
        prompt, cached = (0, 0) if self._request.choice else (len(self.end.prompt_ids), cached)
        return prompt, cached, self.generated, drafted, accepted


def _params(params: SessionParams, *, chat: bool) -> Json:
    top = params.logprobs
    logprobs: Json = {"logprobs": True, "top_logprobs": top} if chat else {"logprobs": top}
    return {
        "max_tokens": params.max_tokens,
        **params.sampling.named(),
        "logit_bias": [list(pair) for pair in params.sampling.logit_bias],
        "stop": list(params.stop),
        **(logprobs if top is not None else {}),
        **fields.fields_of(params.grammar),
        "cache_prompt": params.cache_prompt,
    }


def _usage(streams: Sequence[ChoiceStream]) -> Json:
    """The usage of all; drafts count as OpenAI's predicted tokens."""
    found = zip(*(one.counts() for one in streams), strict=True)
    prompt, cached, generated, drafted, accepted = map(sum, found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


async def whole(
    batches: Batches, shape: Shape, streams: Sequence[ChoiceStream], gone: Callable[[], Awaitable[bool]]
) -> Json:
    """Return the whole answer. Raise the daemon's error, and ClientDisconnect once `gone()` says that nobody waits."""
    parts: list[list[Part]] = [[] for _ in streams]

    async def collect() -> None:
        async with aclosing(batches):
            async for number, batch in batches:
                parts[number] += map(streams[number].part, batch)

    await _while_heard(collect(), gone)
    answers = [_whole(shape, stream, parts[number], number) for number, stream in enumerate(streams)]
    answer = answers[0]
    if len(answers) > 1:
        answer["choices"] = [choice for one in answers for choice in one["choices"]]  # type: ignore[attr-defined]
        answer["specmesh"] = {"choices": [one["specmesh"] for one in answers]}
    return answer | {"usage": _usage(streams)}


def _whole(shape: Shape, stream: ChoiceStream, parts: list[Part], number: int) -> Json:
    if stream.end is None:
        raise DaemonUnreachable("the session ended without a result")
    tokens = [one for part in parts for one in part.tokens]
    extra = stream.result() | {"token_ids": [token for part in parts for token in part.ids]}
    text = "".join(part.text for part in parts)
    return shape.whole(text, stream.end.reason, extra, tokens if stream.logprobs else None, number)


async def beginning(batches: Batches, gone: Callable[[], Awaitable[bool]]) -> tuple[int, list[Event]]:
    """Return the first batch, which may take as long as a queue. Raise as `whole` does, and then leave the session."""
    try:
        return await _while_heard(anext(batches), gone)
    except BaseException:
        await batches.aclose()
        raise


async def _while_heard(work: Coroutine[Any, Any, T], gone: Callable[[], Awaitable[bool]]) -> T:
    """Return what `work` does; cancel it and raise ClientDisconnect soon after the client left."""
    working, left = asyncio.ensure_future(work), asyncio.ensure_future(_until(gone))
    try:
        await asyncio.wait({working, left}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        left.cancel()
        working.cancel()
        await asyncio.wait({working})  # also where the server ends: what runs cannot be closed


async def _until(gone: Callable[[], Awaitable[bool]]) -> None:
    while not await gone():
        await asyncio.sleep(DISCONNECT_POLL_S)


async def streamed(
    first: tuple[int, list[Event]],
    batches: Batches,
    shape: Shape,
    streams: Sequence[ChoiceStream],
    *,
    usage_apart: bool,
) -> AsyncIterator[str]:
    """Server-sent events: a chunk at the start, one per round or batch of rounds, one with finish_reason, [DONE].

    The usage is in the last chunk of the answer that ends last; with `usage_apart` it comes in one of its own before
    [DONE] (`stream_options.include_usage`). An error in mid-stream ends it as an event of its own.
    """
    writers = [shape.writer(number) for number in range(len(streams))]

    def chunks(number: int, batch: list[Event]) -> str:
        stream, write, written = streams[number], writers[number], ""
        for event in batch:
            part = stream.part(event)
            if isinstance(event, Finished):
                written += last(number, event, part)
            elif part.text and not part.tokens:
                written += write(part.text, part.extra)
            else:
                written += server_sent(shape.chunk(part.text, None, part.extra, part.tokens, number))
        return written

    def last(number: int, event: Finished, part: Part) -> str:
        extra = part.extra | streams[number].result()
        chunk = shape.chunk(part.text, event.reason, extra, part.tokens, number)
        if any(one.end is None for one in streams):
            return server_sent(chunk)
        usage = {"usage": _usage(streams)}
        if not usage_apart:
            return server_sent(chunk | usage)
        return server_sent(chunk) + server_sent(shape.chunk("", None, {}) | {"choices": []} | usage)

    try:
        async with aclosing(batches):
            yield chunks(*first)
            async for number, batch in batches:
                yield chunks(number, batch)
    except SpecmeshError as error:
        yield server_sent(error_body(error))
        return
    yield "data: [DONE]\n\n"


async def as_events(first: Json, others: AsyncGenerator[Json, None]) -> AsyncIterator[str]:
    """Values as server-sent events, then [DONE]."""
    async with aclosing(others):
        yield server_sent(first)
        async for value in others:
            yield server_sent(value)
    yield "data: [DONE]\n\n"


def append(batch: list[Event], event: Event, rounds: bool) -> None:
    """Add an event; where nobody asked for rounds, ids that follow ids join them."""
    if not rounds and batch and isinstance(event, Tokens) and isinstance(batch[-1], Tokens):
        batch[-1] = batch[-1].joined(event)
    else:
        batch.append(event)


def error_body(error: SpecmeshError) -> Json:
    kind = "invalid_request_error" if error.exit_code == 2 else "server_error"
    return shapes.error(str(error), kind, error.code, getattr(error, "param", None), error)


def merged(sources: Sequence[Batches]) -> Batches:
    """The batches of all. Raises what one of them raises; the others are left then, as all are by whoever closes
    this."""
    return _several(sources) if len(sources) > 1 else sources[0]


async def _several(sources: Sequence[Batches]) -> Batches:
    come: asyncio.Queue[tuple[int, list[Event]] | Exception | None] = asyncio.Queue(len(sources))

    async def pass_on(batches: Batches) -> None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    await come.put(batch)
            await come.put(None)
        except Exception as error:  # noqa: BLE001  (raised again where the batches are merged)
            await come.put(error)

    tasks = [asyncio.ensure_future(pass_on(batches)) for batches in sources]
    left = len(sources)
    try:
        while left:
            what = await come.get()
            if isinstance(what, Exception):
                raise what
            if what is None:
                left -= 1
            else:
                yield what
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
