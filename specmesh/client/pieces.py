"""The parts of an answer as they come, and the whole of it."""

from dataclasses import dataclass, field

from specmesh.core.fields import (
    Json,
    at,
    ids_at,
    number_at,
    object_at,
    objects_at,
    sources_at,
)

Source = tuple[str, int]
"""The name of a source of drafts, or `target`, and how many tokens in a row are its."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, from the target's softmax.

    text: of the token; a part of a character has U+FFFD.
    logprob: at most 0; -9999 stands for anything less.
    """

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token that was chosen, and the likeliest in its place, the likeliest first."""

    chosen: TokenLogprob
    likeliest: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool that a chat's answer calls. arguments: JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """A part of a text: the tokens that came together.

    text: empty while a character or a stop text is not complete.
    reasoning: a part of a chat's thoughts.
    token_ids: of the target's vocabulary.
    accepted: how many of them were drafts.
    sources: runs of (source, tokens), in the order of `token_ids`, with the option `sources`.
    logprobs: one for each token, with the option `logprobs`.
    """

    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    accepted: int = 0
    sources: tuple[Source, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProgress:
    """How far a long prompt is read.

    total: tokens of the prompt.
    cached: those that the prefix cache had.
    processed: those that are read, the cached ones with them.
    time_ms: milliseconds since the reading began.
    """

    total: int
    cached: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A text, and what the daemon reports about it.

    id: the text's name at its daemon.
    text, reasoning, token_ids, sources, logprobs: of all pieces; sources are joined runs.
    prompt_token_ids: known at the end.
    tool_calls: of a chat's answer.
    finish_reason: "stop", "length" or "tool_calls"; "" while the text has not ended.
    seed: that it was sampled with; None until the daemon names it.
    report: the counts and times of `specmesh generate --json`; empty until the end.
    """

    id: str = ""
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    tool_calls: tuple[FunctionCall, ...] = ()
    finish_reason: str = ""
    seed: int | None = None
    report: Json = field(default_factory=dict)


class Collector:
    """Reads the chunks of one answer."""

    def __init__(self) -> None:
        self._id = ""
        self._pieces: list[TextPiece] = []
        self._prompt_ids: tuple[int, ...] = ()
        self._calls: dict[int, FunctionCall] = {}
        self._finish = ""
        self._seed: int | None = None
        self._report: Json = {}

    def take(self, chunk: Json) -> TextPiece | ReadingProgress | None:
        """Return what a chunk has for its reader, None if that is nothing."""
        self._id = _text(chunk, "id")
        extra = object_at(chunk, "specmesh")
        self._report = object_at(extra, "report") or self._report
        self._prompt_ids = tuple(ids_at(extra, "prompt_token_ids")) or self._prompt_ids
        seed = at(extra, "request.seed")
        if isinstance(seed, int):
            self._seed = seed
        progress = object_at(chunk, "prompt_progress")
        if progress:
            return _progress(progress)
        choice: Json = {}
        for choice in objects_at(chunk, "choices"):
            self._finish = _text(choice, "finish_reason") or self._finish
            self._take_calls(choice)
        piece = _piece(choice, extra)
        if piece == TextPiece():
            return None
        self._pieces.append(piece)
        return piece

    def completion(self) -> Completion:
        """Return the text so far."""
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        sources: list[Source] = []
        for piece in self._pieces:
            token_ids += piece.token_ids
            logprobs += piece.logprobs
            for name, count in piece.sources:
                if sources and sources[-1][0] == name:
                    _, earlier = sources.pop()
                    sources.append((name, earlier + count))
                else:
                    sources.append((name, count))
        return Completion(
            id=self._id,
            text="".join(piece.text for piece in self._pieces),
            reasoning="".join(piece.reasoning for piece in self._pieces),
            token_ids=tuple(token_ids),
            prompt_token_ids=self._prompt_ids,
            sources=tuple(sources),
            logprobs=tuple(logprobs),
            tool_calls=tuple(call for _, call in sorted(self._calls.items())),
            finish_reason=self._finish,
            seed=self._seed,
            report=self._report,
        )

    def _take_calls(self, choice: Json) -> None:
        """Add the parts of calls; each part has the number of its call."""
        for part in objects_at(choice, "delta.tool_calls"):
            number = int(number_at(part, "index"))
            call = self._calls.get(number, FunctionCall("", "", ""))
            self._calls[number] = FunctionCall(
                id=call.id + _text(part, "id"),
                name=call.name + _text(part, "function.name"),
                arguments=call.arguments + _text(part, "function.arguments"),
            )


def _piece(choice: Json, extra: Json) -> TextPiece:
    scores = objects_at(extra, "logprobs") or objects_at(choice, "logprobs.content")
    return TextPiece(
        text=_text(choice, "text") or _text(choice, "delta.content"),
        reasoning=_text(choice, "delta.reasoning_content"),
        token_ids=tuple(ids_at(extra, "token_ids")),
        accepted=int(number_at(extra, "accepted", 0)),
        sources=tuple(sources_at(extra, "source")),
        logprobs=tuple(map(_token_logprobs, scores)),
    )


def _token_logprobs(entry: Json) -> TokenLogprobs:
    likeliest = tuple(map(_logprob, objects_at(entry, "top_logprobs")))
    return TokenLogprobs(_logprob(entry), likeliest)


def _logprob(entry: Json) -> TokenLogprob:
    return TokenLogprob(
        int(number_at(entry, "id")), _text(entry, "token"), number_at(entry, "logprob")
    )


def _progress(found: Json) -> ReadingProgress:
    return ReadingProgress(
        total=int(number_at(found, "total")),
        cached=int(number_at(found, "cache", 0)),
        processed=int(number_at(found, "processed")),
        time_ms=number_at(found, "time_ms", 0),
    )


def _text(value: Json, path: str) -> str:
    """Return the text at a path, empty if there is none."""
    found = at(value, path)
    return found if isinstance(found, str) else ""
