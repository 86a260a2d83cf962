"""The form of answers that completions and chats have in common: OpenAI's."""

from abc import abstractmethod
from collections.abc import Sequence

from specmesh import __version__
from specmesh.api.dialects.base import AnswerHead, Renderer
from specmesh.api.error_body import error_body
from specmesh.api.generation import Generation
from specmesh.api.json_text import to_json
from specmesh.api.stream import (
    Call,
    Event,
    NewTokens,
    ScoredToken,
    Text,
    Thought,
    Turn,
    Usage,
    whole_turn,
)
from specmesh.core.fields import Json
from specmesh.core.requests import Finished, PromptRead, Started
from specmesh.errors import SpecmeshError

SCHEMA_VERSION = 1

_MARK = "\0"


class OpenAiRenderer(Renderer):
    """Writes an answer in chunks, or whole. Fields of ours are under `specmesh`."""

    chunk_kind: str
    whole_kind: str

    def __init__(self, generation: Generation, head: AnswerHead) -> None:
        self._generation = generation
        self._head = head
        self._frames: dict[int, tuple[str, str]] = {}

    def part(self, index: int, events: Sequence[Event]) -> str:
        """Return events of a choice that came together as chunks."""
        first = events[0]
        if len(events) == 1 and isinstance(first, Text):
            tokens = first.tokens
            if first.text and tokens is not None and _are_plain(tokens):
                return self._text_chunk(index, first.text, tokens)
        return self._chunks(index, events)

    def end(self, usage: Usage) -> str:
        """Return the chunk with the usage, where that is wanted, and the end of the stream."""
        done = "data: [DONE]\n\n"
        if not self._generation.include_usage:
            return done
        last = self._answer(self.chunk_kind, [], {})
        return server_sent(last | {"usage": usage_json(usage)}) + done

    def error(self, error: SpecmeshError) -> str:
        """Return an error as the last event of a stream."""
        return server_sent(error_body(error))

    def whole(self, choices: Sequence[Sequence[Event]], usage: Usage) -> str:
        """Return the whole answer; with several choices, `specmesh` has a list of theirs."""
        written: list[Json] = []
        extras: list[Json] = []
        for index, events in enumerate(choices):
            turn = whole_turn(events)
            end = events[-1]
            assert isinstance(end, Finished)
            written.append(self._whole_choice(index, turn, end.reason))
            choice_extra = finished_json(end)
            choice_extra["token_ids"] = turn.tokens.ids
            choice_extra |= sources_json(turn.tokens)
            choice_extra |= self._scores(turn.tokens.scored)
            extras.append(choice_extra)
        extra: Json = {"choices": extras}
        if len(extras) == 1:
            extra = extras[0]
        answer = self._answer(self.whole_kind, written, extra)
        return to_json(answer | {"usage": usage_json(usage)})

    @abstractmethod
    def _content(self, text: str) -> Json:
        """Return the fields of a chunk's choice that have a part of the text."""

    @abstractmethod
    def _chunks(self, index: int, events: Sequence[Event]) -> str:
        """Return events that are more than a text as chunks."""

    @abstractmethod
    def _whole_choice(self, index: int, turn: Turn, finish: str) -> Json:
        """Return a choice of a whole answer. finish: the reason of its end."""

    @abstractmethod
    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        """Return the log-probabilities of a choice's tokens."""

    def _scores(self, _: Sequence[ScoredToken] | None, /) -> Json:
        """Return our fields with log-probabilities, if there are any."""
        return {}

    def _text_chunk(self, index: int, text: str, tokens: NewTokens) -> str:
        """Return a chunk with text and tokens only.

        All the rest is the same in every such chunk, so it is written once.
        """
        frame = self._frames.get(index)
        if frame is None:
            choice = self._choice(index, self._content(_MARK), None)
            chunk = to_json(self._answer(self.chunk_kind, [choice], {}))
            before, _, after = chunk.removesuffix("{}}").partition(to_json(_MARK))
            frame = self._frames[index] = (before, after)
        before, after = frame
        accepted_text = ""
        if tokens.accepted_text is not None:
            accepted_text = f'"accepted_text": {to_json(tokens.accepted_text)}, '
        extra = f'{accepted_text}"token_ids": {tokens.ids}, "accepted": {tokens.accepted}'
        written = to_json(text)
        return f"data: {before}{written}{after}{{{extra}}}}}\n\n"

    def _chunk(self, choice: Json, extra: Json, progress: PromptRead | None = None) -> str:
        chunk = self._answer(self.chunk_kind, [choice], extra)
        if progress is not None:
            chunk["prompt_progress"] = progress_json(progress)
        return server_sent(chunk)

    def _choice(
        self,
        index: int,
        content: Json,
        finish: str | None,
        scored: Sequence[ScoredToken] | None = None,
    ) -> Json:
        """Return a choice with its content.

        finish: the reason of its end.
        scored: its tokens, if their log-probabilities are wanted.
        """
        logprobs: Json | None = None
        if scored is not None:
            logprobs = self._logprobs(scored)
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def _answer(self, kind: str, choices: Sequence[Json], extra: Json) -> Json:
        return {
            "id": self._head.id,
            "object": kind,
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": f"specmesh-{__version__}",
            "choices": choices,
            "specmesh": extra,
        }

    def _extra(self, events: Sequence[Event]) -> Json:
        """Return our fields for events that came together."""
        extra: Json = {}
        for event in events:
            match event:
                case Started():
                    extra |= self._started_json(event)
                case Finished():
                    extra |= finished_json(event)
                case Text() | Thought() | Call():
                    if event.tokens is not None:
                        extra |= _tokens_json(event.tokens)
                case PromptRead():
                    pass  # it is beside our fields, as llama-server has it
        return extra

    def _started_json(self, event: Started) -> Json:
        """Return our fields of the first chunk; a resumable text's has those that resume it."""
        extra: Json = {"session": event.session, "prompt_tokens": event.prompt_tokens}
        if self._known:
            extra["known_tokens"] = self._known
        if self._generation.resumable and event.params is not None:
            extra["model_hash"] = self._head.model_hash
            extra["prompt_token_ids"] = list(event.prompt_ids)
            max_tokens = event.params.max_tokens
            extra["request"] = {"max_tokens": max_tokens, **event.params.sampling.named()}
        return extra

    @property
    def _known(self) -> int:
        """Return the number of generated tokens that the client of a resumed text has."""
        return self._generation.requests[0].known


def _are_plain(tokens: NewTokens) -> bool:
    return bool(tokens.ids) and not tokens.scored and tokens.sources is None


def reason_of(events: Sequence[Event]) -> str | None:
    """Return the reason for which the text ended with these events; None if it did not."""
    last = events[-1]
    if isinstance(last, Finished):
        return last.reason
    return None


def progress_of(events: Sequence[Event]) -> PromptRead | None:
    """Return the progress that came last, if nothing came behind it."""
    last = events[-1]
    if isinstance(last, PromptRead):
        return last
    return None


def server_sent(value: Json) -> str:
    """Return JSON as a server-sent event."""
    return f"data: {to_json(value)}\n\n"


def _tokens_json(tokens: NewTokens) -> Json:
    """Return our fields about tokens that came."""
    extra: Json = {"token_ids": tokens.ids, "accepted": tokens.accepted}
    extra |= sources_json(tokens)
    if tokens.accepted_text is not None:
        return {"accepted_text": tokens.accepted_text} | extra
    return extra if tokens.ids else {}


def progress_json(progress: PromptRead) -> Json:
    """Return llama-server's fields about a prompt that is being read."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": round(progress.seconds * 1e3),
    }


def sources_json(tokens: NewTokens) -> Json:
    """Return the sources of tokens in runs, if they are wanted."""
    if tokens.sources is None:
        return {}
    return {"source": tokens.sources}


def finished_json(end: Finished) -> Json:
    """Return our fields about a text that has ended."""
    return {
        "schema_version": SCHEMA_VERSION,
        "prompt_token_ids": list(end.prompt_ids),
        "report": end.report,
    }


def usage_json(usage: Usage) -> Json:
    """Return OpenAI's usage."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": drafts_json(usage),
    }


def drafts_json(usage: Usage) -> Json:
    """Return the drafts of the prediction in a usage, as OpenAI counts them."""
    return {
        "accepted_prediction_tokens": usage.accepted,
        "rejected_prediction_tokens": usage.rejected,
    }


def scored_json(token: ScoredToken) -> Json:
    """Return a token and the likeliest ones in its place, in OpenAI's form with ids."""
    entry = _scored(token, token.id, token.chosen)
    entry["top_logprobs"] = [_scored(token, other, value) for other, value in token.likeliest()]
    return entry


def _scored(token: ScoredToken, id_: int, logprob: float | None) -> Json:
    piece = token.vocabulary.pieces[id_]
    text = piece.decode("utf-8", "replace")
    return {"id": id_, "token": text, "logprob": logprob, "bytes": list(piece)}
