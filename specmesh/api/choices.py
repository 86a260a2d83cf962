"""The choices of an answer: the events of each one's request as parts of its text, and these as what is written."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from specmesh.api import fields
from specmesh.api.fields import Prompt
from specmesh.api.shapes import SCHEMA_VERSION, AnswerToken, Json, Shape, new_id, server_sent, written
from specmesh.core.requests import Finished, Request, Started, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.stop import ShownText, StopTextFilter
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary

Event = Started | Tokens | Finished

_SEEDS = 2**32


def choices(request: Request, count: int, prompts: Sequence[Prompt] = (), *, chat: bool) -> list[Request]:
    """Return `count` requests for each prompt, with consecutive seeds and names of their own; the first is `request`'s
    own."""
    sampling = request.params.sampling
    seeded = (replace(sampling, seed=(sampling.seed + number) % _SEEDS) for number in range(count))
    params = [replace(request.params, sampling=one) for one in seeded]
    each = [request, *(replace(request, prompt=text, prompt_ids=ids) for text, ids in prompts[1:])]
    numbered = [replace(one, params=own, choice=number) for one in each for number, own in enumerate(params)]
    return [numbered[0], *(replace(one, id=new_id(chat)) for one in numbered[1:])]


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
        report, prompt_ids = self.end.report, list(self.end.prompt_ids)
        if "generated_tokens" in report:  # ids of a stop string are none of them
            report = {**report, "generated_tokens": self.generated}
        return {"schema_version": SCHEMA_VERSION, "prompt_token_ids": prompt_ids, "report": report}

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


class Chunks:
    """An answer as server-sent events: a chunk at the start, one per round or for what came together, and one with
    finish_reason. The usage is in the last chunk of the choice that ends last; with `usage_apart` it comes in one of
    its own after that (`stream_options.include_usage`)."""

    media_type = "text/event-stream"

    def __init__(self, shape: Shape, streams: Sequence[ChoiceStream], *, usage_apart: bool) -> None:
        self._shape, self._streams, self._usage_apart = shape, streams, usage_apart
        self._frames = [shape.frame(number) for number in range(len(streams))]

    def add(self, number: int, event: Event) -> str:
        part = self._streams[number].part(event)
        if isinstance(event, Finished):
            return self._last(number, event, part)
        if part.text and not part.tokens:
            before, between = self._frames[number]
            return f"data: {before}{written(part.text)}{between}{written(part.extra)}}}\n\n"
        return server_sent(self._shape.chunk(part.text, None, part.extra, part.tokens, number))

    def end(self) -> str:
        return "data: [DONE]\n\n"

    def _last(self, number: int, event: Finished, part: Part) -> str:
        extra = part.extra | self._streams[number].result()
        chunk = self._shape.chunk(part.text, event.reason, extra, part.tokens, number)
        if any(one.end is None for one in self._streams):
            return server_sent(chunk)
        usage = {"usage": _usage(self._streams)}
        if not self._usage_apart:
            return server_sent(chunk | usage)
        return server_sent(chunk) + server_sent(self._shape.chunk("", None, {}) | {"choices": []} | usage)


class Whole:
    """An answer at once, as JSON."""

    media_type = "application/json"

    def __init__(self, shape: Shape, streams: Sequence[ChoiceStream]) -> None:
        self._shape, self._streams = shape, streams
        self._parts: list[list[Part]] = [[] for _ in streams]

    def add(self, number: int, event: Event) -> str:
        self._parts[number].append(self._streams[number].part(event))
        return ""

    def end(self) -> str:
        answers = [self._one(number) for number in range(len(self._streams))]
        answer = answers[0]
        if len(answers) > 1:
            answer["choices"] = [choice for one in answers for choice in one["choices"]]  # type: ignore[attr-defined]
            answer["specmesh"] = {"choices": [one["specmesh"] for one in answers]}
        return written(answer | {"usage": _usage(self._streams)})

    def _one(self, number: int) -> Json:
        stream, parts = self._streams[number], self._parts[number]
        tokens = [one for part in parts for one in part.tokens]
        extra = stream.result() | {"token_ids": [token for part in parts for token in part.ids]}
        text = "".join(part.text for part in parts)
        assert stream.end is not None
        return self._shape.whole(text, stream.end.reason, extra, tokens if stream.logprobs else None, number)
