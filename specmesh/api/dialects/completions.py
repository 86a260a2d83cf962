"""OpenAI's /v1/completions: text after a prompt."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from specmesh.api.dialects.base import Order
from specmesh.api.dialects.openai import OpenAiRenderer, progress_of, reason_of, scored_json
from specmesh.api.formats import parse_format, response_format
from specmesh.api.generation import (
    MAX_TEXTS,
    TOO_MANY_TEXTS,
    Generation,
    parse_generation,
    parse_max_tokens,
    parse_request,
    parse_resume,
)
from specmesh.api.prediction_field import with_prediction
from specmesh.api.stream import Event, ScoredToken, Turn, whole_turn
from specmesh.core.fields import Fields, Json, are_ids, is_list
from specmesh.core.requests import Request
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.errors import RequestError

DEFAULT_MAX_TOKENS = 128
"""Of a completion; a chat ends with the context."""


def parse_completion(body: object) -> Generation:
    """Return the generation of a completion's body. Raises RequestError that names the field.

    Defaults are OpenAI's (temperature 1, top_p 1), but for max_tokens. docs/http-api.md has the
    origin of each field.
    """
    fields = Fields(body)
    form = parse_format(fields, response_format(fields))
    request = parse_request(
        fields,
        max_tokens=parse_max_tokens(fields, "max_tokens", DEFAULT_MAX_TOKENS),
        logprobs=_parse_logprobs(fields),
        grammar=form.grammar,
    )
    prompt = fields.get("prompt")
    request = with_prediction(fields, request)
    request, began = parse_resume(fields, request)
    requests = [request]
    if not request.id:
        requests = _prompted(prompt, request)
    return parse_generation(
        fields, requests, chat=False, began=began, schema_field=form.schema_field
    )


def _parse_logprobs(fields: Fields) -> int | None:
    """Return the number of likeliest tokens that are shown with each one; None for no scores."""
    if fields.get("logprobs", False) is False:
        return None
    return fields.integer("logprobs", 0, 0, MAX_ALTERNATIVES)


def _prompted(value: object, request: Request) -> list[Request]:
    """Return a request for each prompt: one text or list of ids, or several in a list."""
    if is_list(value) and value and isinstance(value[0], str | list):
        if len(value) > MAX_TEXTS:
            raise RequestError(TOO_MANY_TEXTS, "prompt")
        return [_after(prompt, request) for prompt in value]
    return [_after(value, request)]


def _after(prompt: object, request: Request) -> Request:
    """Return the request for a text after one prompt, a text or ids."""
    if isinstance(prompt, str):
        return replace(request, prompt=prompt)
    if prompt and are_ids(prompt):
        return replace(request, prompt_ids=tuple(prompt))
    kinds = "a string or a list of token ids, each from 0 to 2147483647, or a list of such"
    raise RequestError(f"prompt must be {kinds}", "prompt")


def completion_order(body: object) -> Order:
    """Return the order of a completion's body. Raises RequestError."""
    generation = parse_completion(body)
    return Order(generation, partial(CompletionRenderer, generation))


class CompletionRenderer(OpenAiRenderer):
    """Writes the answer to a completion: a chunk, and the whole answer, have the text itself.

    Events that came together are one chunk. Log-probabilities are four lists, and under `specmesh`
    those of a chat.
    """

    chunk_kind = whole_kind = "text_completion"

    def _chunks(self, index: int, events: Sequence[Event]) -> str:
        turn = whole_turn(events)
        scored = turn.tokens.scored or None
        content = self._content(turn.text)
        choice = self._choice(index, content, reason_of(events), scored)
        extra = self._extra(events) | self._scores(scored)
        return self._chunk(choice, extra, progress_of(events))

    def _content(self, text: str) -> Json:
        return {"text": text}

    def _whole_choice(self, index: int, turn: Turn, finish: str) -> Json:
        content = self._content(turn.text)
        return self._choice(index, content, finish, turn.tokens.scored)

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        """Return OpenAI's four lists, with an entry for each token."""
        return {
            "tokens": [_spelled(token, token.id) for token in tokens],
            "token_logprobs": [token.chosen for token in tokens],
            "top_logprobs": [_likeliest_by_text(token) for token in tokens],
            "text_offset": [token.begin for token in tokens],
        }

    def _scores(self, scored: Sequence[ScoredToken] | None, /) -> Json:
        if scored is None:
            return {}
        return {"logprobs": list(map(scored_json, scored))}


def _likeliest_by_text(token: ScoredToken) -> dict[str, float] | None:
    """Return the log-probabilities of the likeliest tokens and of the chosen one, by their text.

    Of ids with the same text the likeliest counts.
    """
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for other, value in (*token.likeliest(), (token.id, token.logprob.chosen)):
        by_text.setdefault(_spelled(token, other), value)
    return by_text


def _spelled(token: ScoredToken, id_: int) -> str:
    """Return the text of an id, or its bytes where it is a part of a character, as OpenAI does."""
    piece = token.vocabulary.pieces[id_]
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
