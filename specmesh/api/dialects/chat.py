"""OpenAI's /v1/chat/completions: the next turn of a chat."""

from collections.abc import Sequence
from functools import partial

from specmesh.api.chat_messages import chat_request, parse_messages
from specmesh.api.dialects.base import Order
from specmesh.api.dialects.openai import OpenAiRenderer, progress_of, reason_of, scored_json
from specmesh.api.formats import parse_format, response_format
from specmesh.api.generation import (
    Generation,
    parse_generation,
    parse_max_tokens,
    parse_request,
    parse_resume,
)
from specmesh.api.prediction_field import with_prediction
from specmesh.api.stream import Call, Content, Event, ScoredToken, Text, Thought, Turn
from specmesh.api.tools import answer_grammar, parse_tools
from specmesh.core.fields import Fields, Json
from specmesh.core.requests import Finished, PromptRead, Started
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.core.session_params import LARGEST_MAX_TOKENS
from specmesh.errors import RequestError


def parse_chat(body: object) -> Generation:
    """Return the generation of a chat's body. Raises RequestError that names the field.

    An answer without a limit ends with the context. docs/http-api.md has the origin of each field.
    """
    fields = Fields(body)
    form = parse_format(fields, response_format(fields))
    tools = parse_tools(fields)
    request = parse_request(
        fields,
        max_tokens=chat_max_tokens(fields),
        logprobs=_parse_logprobs(fields),
        grammar=answer_grammar(tools, form.grammar),
    )
    given = fields.get("messages")
    request = with_prediction(fields, request)
    request, began = parse_resume(fields, request)
    if not request.id:
        effort = fields.text("reasoning_effort")
        request = chat_request(fields, request, parse_messages(given), effort)
    return parse_generation(
        fields,
        [request],
        chat=True,
        began=began,
        schema_field=form.schema_field,
        skipped=tools.skipped,
    )


def chat_max_tokens(fields: Fields) -> int:
    """Return the most tokens of an answer; `max_completion_tokens` goes before `max_tokens`."""
    most = parse_max_tokens(fields, "max_tokens", LARGEST_MAX_TOKENS)
    return parse_max_tokens(fields, "max_completion_tokens", most)


def _parse_logprobs(fields: Fields) -> int | None:
    """Return the number of likeliest tokens that are shown with each one; None for no scores."""
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, 0, MAX_ALTERNATIVES)
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs: set it to true", "top_logprobs")
    return top if wanted else None


def chat_order(body: object) -> Order:
    """Return the order of a chat's body. Raises RequestError."""
    generation = parse_chat(body)
    return Order(generation, partial(ChatRenderer, generation))


class ChatRenderer(OpenAiRenderer):
    """Writes the answer to a chat.

    A chunk has a delta of the assistant's message, the whole answer the message. The last chunk of
    events that came together has their tokens.
    """

    chunk_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def _chunks(self, index: int, events: Sequence[Event]) -> str:
        *others, last = [event for event in events if not isinstance(event, Finished)]
        chunks: list[str] = []
        for event in others:
            choice = self._choice(index, {"delta": self._delta(event)}, None)
            chunks.append(self._chunk(choice, {}))
        scored: Sequence[ScoredToken] | None = None
        if not isinstance(last, Started | PromptRead) and last.tokens is not None:
            scored = last.tokens.scored or None
        content: Json = {"delta": self._delta(last)}
        choice = self._choice(index, content, reason_of(events), scored)
        extra = self._extra(events)
        chunks.append(self._chunk(choice, extra, progress_of(events)))
        return "".join(chunks)

    def _delta(self, event: Started | PromptRead | Content) -> Json:
        """Return what an event adds to the message."""
        match event:
            case Started():
                if self._known:
                    return {}
                return {"role": "assistant", "content": ""}
            case PromptRead() | Text(""):
                return {}
            case Text(text):
                return {"content": text}
            case Thought(text):
                return {"reasoning_content": text}
            case Call():
                call: Json = {"function": {"arguments": event.arguments}}
                if event.id:
                    call = _call_json(event)
                return {"tool_calls": [{"index": event.index} | call]}

    def _content(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def _whole_choice(self, index: int, turn: Turn, finish: str) -> Json:
        message: Json = {"role": "assistant", "refusal": None, "content": turn.text}
        if turn.calls and not turn.text:
            message["content"] = None
        if turn.thought:
            message["reasoning_content"] = turn.thought
        if turn.calls:
            message["tool_calls"] = list(map(_call_json, turn.calls))
        return self._choice(index, {"message": message}, finish, turn.tokens.scored)

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        return {"content": list(map(scored_json, tokens)), "refusal": None}


def _call_json(call: Call) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
