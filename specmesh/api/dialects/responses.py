"""OpenAI's /v1/responses: the next turn of a chat, as a list of items."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from specmesh.api.dialects.base import AnswerHead, Dialect, Order, Renderer
from specmesh.api.dialects.chat import chat_max_tokens
from specmesh.api.dialects.openai import drafts_json, finished_json, scored_json
from specmesh.api.formats import (
    ANY_TEXT,
    TextFormat,
    json_object_format,
    named_format,
    parse_format,
)
from specmesh.api.generation import Generation, parse_generation, parse_max_tokens, parse_request
from specmesh.api.json_text import to_json, write_gently
from specmesh.api.kept_responses import GrowingChat, KeptResponses, memory_of
from specmesh.api.messages import chat_request, text_of
from specmesh.api.stream import (
    Call,
    Content,
    Event,
    Text,
    Thought,
    Usage,
    whole_turn,
)
from specmesh.api.tools import answer_grammar, parse_tools
from specmesh.core.fields import Fields, Json, is_list, is_object
from specmesh.core.requests import Finished, Started
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.core.session_params import ChatMessage, text_of_arguments
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import MissingField, RequestError, SpecmeshError
from specmesh.wire.messages import FinishReason

_REFUSED = (
    "background",
    "conversation",
    "messages",
    "n",
    "prompt",
    "response_format",
    "resumable",
    "resume",
    "rounds",
)
"""Fields of OpenAI's, and of a chat, that would change the answer."""

_ECHOED: Json = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "previous_response_id": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "tools": [],
    "top_p": 1.0,
}
"""The fields of a request that its response repeats, with their defaults."""

_LOGPROBS = "message.output_text.logprobs"

_PARSED = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
"""Types of items whose fields are parsed here, so that missing ones are an error."""

_ROLES = {"developer": "system", "function": "tool"}
"""The roles of templates, by OpenAI's other names for them."""

_HIDDEN = ("type", "role", "id", "call_id", "status", "encrypted_content")
"""Fields of other items that mean nothing to a model."""

_BLOB = re.compile(r"(data:[^,]*,)?[A-Za-z0-9+/=_-]{257,}")
"""A text that is an image or the like in base64."""


@dataclass(frozen=True, slots=True)
class ResponseOrder:
    """The part of a body for /v1/responses that is not about the generation.

    conversation: the chat, without instructions.
    size: bytes of the messages that the body brought, where they are to be kept.
    echoed: the fields that the response repeats, as JSON.
    store: keep the response.
    """

    conversation: GrowingChat
    size: int
    echoed: str
    store: bool


def parse_response(body: object, kept: KeptResponses) -> tuple[Generation, ResponseOrder]:
    """Return the generation of a body for /v1/responses, and the rest of its order.

    Raises RequestError that names the field.
    """
    fields = Fields(body)
    for name in _REFUSED:
        if fields.given.pop(name, False) is not False:
            raise RequestError(f"{name} is not supported in /v1/responses", name)
    conversation = _parse_conversation(fields, kept)
    instructions = fields.text("instructions")
    text = fields.mapping("text")
    reasoning = fields.mapping("reasoning")
    text_format = text.pop("format", None)
    effort = reasoning.pop("effort", None)
    form = parse_format(fields, _parse_format(text_format))
    tools = parse_tools(fields)
    include = fields.listed("include")
    request = parse_request(
        fields,
        max_tokens=parse_max_tokens(fields, "max_output_tokens", chat_max_tokens(fields)),
        logprobs=_parse_logprobs(fields, include),
        grammar=answer_grammar(tools, form.grammar),
    )
    messages = _with_instructions(instructions, conversation.messages)
    request = chat_request(fields, request, messages, _parse_effort(effort))
    store = fields.flag("store", True) and kept.most > 0
    echoed = _ECHOED | {name: fields.given[name] for name in _ECHOED.keys() & fields.given.keys()}
    echoed |= {
        "reasoning": {"effort": effort, "summary": None},
        "text": {"format": text_format or {"type": "text"}},
        "metadata": fields.mapping("metadata"),
        "store": store,
        "truncation": "disabled",
    }
    if fields.given.get("truncation") == "disabled":
        fields.get("truncation")
    skipped = _unread("text", text) + _unread("reasoning", reasoning)
    if any(name != _LOGPROBS for name in include):
        skipped.append("include")
    generation = parse_generation(
        fields,
        [request],
        chat=True,
        schema_field=form.schema_field,
        skipped=(*skipped, *tools.skipped),
    )
    size = conversation.size if store else 0
    return generation, ResponseOrder(conversation, size, write_gently(echoed), store)


def _parse_logprobs(fields: Fields, include: Sequence[object]) -> int | None:
    """Return the number of likeliest tokens that are shown with each one; None for no scores."""
    top = fields.integer("top_logprobs", 0, 0, MAX_ALTERNATIVES)
    if top or _LOGPROBS in include:
        return top
    return None


def _parse_effort(effort: object) -> str:
    if effort is None:
        return ""
    if not isinstance(effort, str):
        raise RequestError("reasoning.effort must be a text", "reasoning")
    return effort


def _parse_format(value: object) -> TextFormat:
    """Return the format of `text.format`. Raises RequestError."""
    match value:
        case None | {"type": "text"}:
            return ANY_TEXT
        case {"type": "json_object"} if is_object(value):
            return json_object_format(value, "text.format")
        case {"type": "json_schema"} if is_object(value):
            return named_format(value, "text.format")
        case _:
            kinds = "text, json_object, or json_schema"
            raise RequestError(f"text.format must have type {kinds}", "text.format")


def _unread(name: str, fields: Json) -> list[str]:
    """Return the names of the fields of an object that nothing has read."""
    return [f"{name}.{key}" for key, value in fields.items() if value is not None]


def _parse_conversation(fields: Fields, kept: KeptResponses) -> GrowingChat:
    """Return the chat of the previous response with the items of the input. Raises RequestError."""
    previous = fields.text("previous_response_id")
    conversation = GrowingChat(kept.get(previous).part if previous else None)
    items = fields.get("input", [])
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not is_list(items):
        raise RequestError("input must be a text, or a list of items", "input")
    if not items and not previous:
        raise MissingField("there is nothing to answer: give input or previous_response_id")
    for index, item in enumerate(items):
        where = f"input[{index}]"
        reference = _reference(item)
        if reference is not None:
            item = kept.item(reference, where)  # noqa: PLW2901
        _add_item(conversation, item, where)
    return conversation


def _reference(item: object) -> str | None:
    """Return the id of the item that an item refers to; None for an item with fields of its own."""
    if not is_object(item):
        return None
    name = item.get("id")
    refers = item.get("type") == "item_reference" or item.keys() == {"id"}
    if refers and isinstance(name, str):
        return name
    return None


def _add_item(chat: GrowingChat, given: object, where: str) -> None:
    """Add an item to a chat. Raises RequestError."""
    item = given if is_object(given) else Json()
    match item:
        case {
            "type": "function_call",
            "call_id": str(name),
            "name": str(function),
        }:
            arguments = text_of_arguments(item.get("arguments"))
            chat.add_call(ToolCall(name, function, arguments))
        case {"type": "function_call_output", "call_id": str(name), "output": output}:
            text = text_of("" if output is None else output, f"{where}.output")
            chat.add(ChatMessage(role="tool", content=text, tool_call_id=name))
        case {"type": "reasoning"}:
            thought = item.get("content") or item.get("summary") or ""
            chat.add_thought(text_of(thought, where))
        case {"role": str(role), "content": content} if (
            item.get("type") or "message"
        ) == "message":
            text = text_of(content, f"{where}.content")
            chat.add_text(_ROLES.get(role, role), text)
        case {"type": str(kind)} if kind not in _PARSED:
            chat.add_text(_role_of(item, kind), _in_words(item, kind))
        case _:
            kinds = "a message, a function_call, a function_call_output or a reasoning"
            raise RequestError(f"{where} must be {kinds}, with all of its fields", where)


def _role_of(item: Json, kind: str) -> str:
    """Return the role of an item of another tool: the assistant's calls, the user's results."""
    role = item.get("role")
    if isinstance(role, str):
        return _ROLES.get(role, role)
    return "user" if kind.endswith(("_output", "_response")) else "assistant"


def _in_words(item: Json, kind: str) -> str:
    """Return an item that no template knows, such as a web_search_call, as a line of text."""
    shown: Json = {}
    for name, value in item.items():
        if name not in _HIDDEN and value is not None:
            shown[name] = _readable(value)
    if not shown:
        return f"[{kind}]"
    return f"[{kind}] {json.dumps(shown, ensure_ascii=False)}"


def _readable(value: object) -> object:
    """Return JSON with a note in the place of each text that only a program can read."""
    if isinstance(value, str):
        return "(binary data)" if _BLOB.fullmatch(value) else value
    if is_object(value):
        return {name: _readable(inner) for name, inner in value.items()}
    if is_list(value):
        return [_readable(inner) for inner in value]
    return value


def _with_instructions(
    instructions: str, messages: Sequence[ChatMessage]
) -> tuple[ChatMessage, ...]:
    """Return the messages with the instructions and the first system messages joined in one."""
    texts = [instructions] if instructions else []
    count = 0
    for message in messages:
        if message.role != "system":
            break
        texts.append(message.content)
        count += 1
    if not texts:
        return tuple(messages)
    system = ChatMessage(role="system", content="\n\n".join(texts))
    return (system, *messages[count:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemKind:
    """A kind of output item. prefix: of its id. text: the type of its text, in events too."""

    name: str
    prefix: str
    text: str


_MESSAGE = ItemKind(name="message", prefix="msg", text="output_text")
_REASONING = ItemKind(name="reasoning", prefix="rs", text="reasoning_text")
_CALL = ItemKind(name="function_call", prefix="fc", text="function_call_arguments")


@dataclass(slots=True, kw_only=True)
class OutputItem:
    """An item while it grows.

    json: its fields, as in the output.
    index: number of a call in the answer; 0 for other kinds.
    pieces, logprobs: of its text so far.
    """

    kind: ItemKind
    json: Json
    index: int
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[Json] = field(default_factory=list[Json])

    @property
    def text(self) -> str:
        """Return its text so far."""
        return "".join(self.pieces)


class ResponseRenderer(Renderer):
    """Writes a response, and keeps it if the order says so. output: its items as JSON."""

    def __init__(self, order: ResponseOrder, kept: KeptResponses, head: AnswerHead) -> None:
        self._order = order
        self._kept = kept
        self._digits = head.id.rpartition("-")[2]
        self.id = f"resp_{self._digits}"
        self.output: list[Json] = []
        self._response: Json = {
            "id": self.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": self.output,
            "usage": None,
        }
        self._events: list[str] = []  # that were not returned yet
        self._count = 0  # of all events
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._reason = ""

    def part(self, index: int, events: Sequence[Event]) -> str:  # noqa: ARG002  (always 0)
        """Return events that came together; a response has one choice."""
        for event in events:
            self._read(event)
        return self._sent()

    def end(self, usage: Usage) -> str:
        """Return the events that end the response."""
        self._end(usage)
        return self._sent()

    def error(self, error: SpecmeshError) -> str:
        """Return the events that end the response with an error."""
        self._close("incomplete")
        self._response["status"] = "failed"
        self._response["error"] = {"code": "server_error", "message": str(error)}
        self._send_response("failed")
        return self._sent()

    def whole(self, choices: Sequence[Sequence[Event]], usage: Usage) -> str:
        """Return the whole response: a thought, a message, then calls."""
        [events] = choices
        turn = whole_turn(events)
        message = Text(turn.text, turn.tokens)
        ordered: list[Event] = [Thought(turn.thought), message, *turn.calls, events[-1]]
        self.part(0, ordered)
        return self._end(usage)

    def _sent(self) -> str:
        """Return the server-sent events since the last call."""
        events = "".join(self._events)
        self._events.clear()
        return events

    def _json(self) -> str:
        """Return the response as JSON."""
        return _joined(to_json(self._response), self._order.echoed)

    def _read(self, event: Event) -> None:
        """Read an event of the stream."""
        if not self._count:
            self._send_response("created")
            self._send_response("in_progress")
        match event:
            case Finished():
                self._reason = event.reason
                self._response["specmesh"] = finished_json(event)
            case Call():
                self._grow(_CALL, event, event.arguments, index=event.index)
            case Text(text) if text:
                self._grow(_MESSAGE, event, text)
            case Thought(text) if text:
                self._grow(_REASONING, event, text)
            case Started() | Text() | Thought():
                pass

    def _end(self, usage: Usage) -> str:
        """Complete the response, or leave it incomplete if the length ended it; return it."""
        if not self._items:
            self._begin(_MESSAGE, Text(""), 0)
        status = "completed"
        if self._reason == FinishReason.LENGTH:
            status = "incomplete"
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._close(status)
        self._response["status"] = status
        self._response["usage"] = _usage_json(usage)
        self._send_response(status)
        response = self._json()
        if self._order.store:
            self._keep(response)
        return response

    def _keep(self, response: str) -> None:
        """Keep the response, and its items at the end of the chat."""
        conversation = self._order.conversation
        for item in self._items:
            match item.kind.name:
                case "message":
                    conversation.add_text("assistant", item.text)
                case "reasoning":
                    conversation.add_thought(item.text)
                case _:
                    name = str(item.json["name"])
                    call_id = str(item.json["call_id"])
                    conversation.add_call(ToolCall(call_id, name, item.text))
        part = conversation.part(self._order.size + memory_of(self.output))
        self._kept.keep(self.id, response, part, self.output)

    def _grow(self, kind: ItemKind, event: Content, text: str, index: int = 0) -> None:
        """Add to the text of the open item; another kind, or another call, begins a new one."""
        item = self._open
        if item is None or item.kind is not kind or item.index != index:
            item = self._begin(kind, event, index)
        if not text:
            return
        item.pieces.append(text)
        fields: Json = {"delta": text}
        if kind is _MESSAGE:
            scored = event.tokens.scored if event.tokens is not None else None
            logprobs = [scored_json(token) for token in scored or ()]
            item.logprobs += logprobs
            fields["logprobs"] = logprobs
        self._send(f"{kind.text}.delta", **fields)

    def _begin(self, kind: ItemKind, event: Content, index: int) -> OutputItem:
        """Begin an item; the open one is complete."""
        self._close("completed")
        fields: Json = {
            "id": f"{kind.prefix}_{self._digits}{len(self.output)}",
            "type": kind.name,
            "status": "in_progress",
        }
        match event:
            case Call():
                fields |= {"call_id": event.id, "name": event.name, "arguments": ""}
            case Thought():
                fields |= {"summary": [], "content": []}
            case Text():
                fields |= {"role": "assistant", "content": []}
        item = OutputItem(kind=kind, json=fields, index=index)
        self._open = item
        self._items.append(item)
        self.output.append(fields)
        self._send("output_item.added", item=fields)
        if kind is not _CALL:
            self._send("content_part.added", part=_part_json(item))
        return item

    def _close(self, status: str) -> None:
        """Complete the open item, if any."""
        item = self._open
        if item is None:
            return
        text = item.text
        if item.kind is _CALL:
            item.json["arguments"] = text
            self._send("function_call_arguments.done", name=item.json["name"], arguments=text)
        else:
            part = _part_json(item)
            item.json["content"] = [part]
            fields: Json = {"text": text}
            if item.kind is _MESSAGE:
                fields["logprobs"] = item.logprobs
            self._send(f"{item.kind.text}.done", **fields)
            self._send("content_part.done", part=part)
        item.json["status"] = status
        self._send("output_item.done", item=item.json)
        self._open = None

    def _send(self, kind: str, **fields: object) -> None:
        """Send an event about the open item."""
        event = self._event(kind)
        item = self._open
        assert item is not None
        event["output_index"] = len(self.output) - 1
        if "item" not in fields:
            event["item_id"] = item.json["id"]
            if item.kind is not _CALL:
                event["content_index"] = 0
        self._add(kind, to_json(event | fields))

    def _send_response(self, kind: str) -> None:
        """Send an event with the whole response."""
        response = f'{{"response": {self._json()}}}'
        self._add(kind, _joined(to_json(self._event(kind)), response))

    def _event(self, kind: str) -> Json:
        return {"type": f"response.{kind}", "sequence_number": self._count}

    def _add(self, kind: str, data: str) -> None:
        self._events.append(f"event: response.{kind}\ndata: {data}\n\n")
        self._count += 1


def _part_json(item: OutputItem) -> Json:
    """Return the content of a message or a reasoning."""
    part: Json = {"type": item.kind.text, "text": item.text}
    if item.kind is _MESSAGE:
        part |= {"logprobs": item.logprobs, "annotations": []}
    return part


def _usage_json(usage: Usage) -> Json:
    read: Json = {"cache_write_tokens": 0, "cached_tokens": usage.cached}
    written: Json = {"reasoning_tokens": 0} | drafts_json(usage)
    return {
        "input_tokens": usage.prompt,
        "output_tokens": usage.generated,
        "total_tokens": usage.total,
        "input_tokens_details": read,
        "output_tokens_details": written,
    }


def _joined(first: str, second: str) -> str:
    """Return the JSON of an object with the fields of two; neither is empty."""
    return f"{first[:-1]}, {second[1:]}"


class Responses(Dialect):
    """Responses; `kept` has those that requests go on from."""

    path: ClassVar[str] = "responses"

    def __init__(self, kept: KeptResponses) -> None:
        self._kept = kept

    def parse(self, body: object) -> Order:
        """Return the order of a body for /v1/responses. Raises RequestError."""
        generation, order = parse_response(body, self._kept)
        return Order(generation, partial(ResponseRenderer, order, self._kept))
