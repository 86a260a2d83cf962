"""OpenAI's /v1/responses: the next turn of a chat, as a list of items."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from specmesh.api.dialects.base import AnswerHead, Order, Renderer
from specmesh.api.dialects.chat import chat_max_tokens
from specmesh.api.dialects.openai import drafts_json, finished_json, progress_json, scored_json
from specmesh.api.foreign_items import in_words
from specmesh.api.formats import openai_format, parse_format
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
from specmesh.core.requests import Finished, PromptRead, Started
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
    "sources",
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
    text = Fields(fields.mapping("text"))
    reasoning = Fields(fields.mapping("reasoning"))
    text_format = text.get("format")
    effort = reasoning.get("effort", "")
    if not isinstance(effort, str):
        raise RequestError("reasoning.effort must be a text", "reasoning")
    form = parse_format(fields, openai_format(text_format, "text.format", "schema"))
    tools = parse_tools(fields)
    include = fields.listed("include")
    logprobs: int | None = fields.integer("top_logprobs", 0, 0, MAX_ALTERNATIVES)
    if not logprobs and _LOGPROBS not in include:
        logprobs = None
    request = parse_request(
        fields,
        max_tokens=parse_max_tokens(fields, "max_output_tokens", chat_max_tokens(fields)),
        logprobs=logprobs,
        grammar=answer_grammar(tools, form.grammar),
    )
    messages = _with_instructions(instructions, conversation.messages)
    request = chat_request(fields, request, messages, effort)
    store = fields.flag("store", True) and kept.most > 0
    echoed: Json = {}
    for name, default in _ECHOED.items():
        echoed[name] = fields.given.get(name, default)
    echoed |= {
        "reasoning": {"effort": reasoning.given.get("effort"), "summary": None},
        "text": {"format": text_format or {"type": "text"}},
        "metadata": fields.mapping("metadata"),
        "store": store,
        "truncation": "disabled",
    }
    if fields.given.get("truncation") == "disabled":
        fields.get("truncation")
    skipped = _unread("text", text)
    skipped += _unread("reasoning", reasoning)
    if any(name != _LOGPROBS for name in include):
        skipped.append("include")
    skipped += tools.skipped
    generation = parse_generation(
        fields,
        [request],
        chat=True,
        schema_field=form.schema_field,
        skipped=skipped,
    )
    size = conversation.size if store else 0
    return generation, ResponseOrder(conversation, size, write_gently(echoed), store)


def _unread(name: str, fields: Fields) -> list[str]:
    """Return the names of the fields of an object that nothing has read."""
    return [f"{name}.{key}" for key in fields.unread()]


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
    for index, given in enumerate(items):
        where = f"input[{index}]"
        item = given if is_object(given) else Json()
        reference = item.get("id")
        refers = item.get("type") == "item_reference" or item.keys() == {"id"}
        if refers and isinstance(reference, str):
            item = kept.item(reference, where)
        _add_item(conversation, item, where)
    return conversation


def _add_item(chat: GrowingChat, item: Json, where: str) -> None:
    """Add an item to a chat. Raises RequestError."""
    match item:
        case {"type": "function_call", "call_id": str(name), "name": str(function)}:
            arguments = text_of_arguments(item.get("arguments"))
            chat.add_call(ToolCall(name, function, arguments))
        case {"type": "function_call_output", "call_id": str(name), "output": output}:
            text = text_of("" if output is None else output, f"{where}.output")
            chat.add(ChatMessage(role="tool", content=text, tool_call_id=name))
        case {"type": "reasoning"}:
            thought = item.get("content") or item.get("summary") or ""
            chat.add_thought(text_of(thought, where))
        case {"role": str(role), "content": content} if item.get("type") in (None, "", "message"):
            text = text_of(content, f"{where}.content")
            chat.add_text(_ROLES.get(role, role), text)
        case {"type": str(kind)} if kind not in _PARSED:
            chat.add_text(_role_of(item, kind), in_words(item, kind))
        case _:
            kinds = "a message, a function_call, a function_call_output or a reasoning"
            raise RequestError(f"{where} must be {kinds}, with all of its fields", where)


def _role_of(item: Json, kind: str) -> str:
    """Return the role of an item of another tool: the assistant's calls, the user's results."""
    role = item.get("role")
    if isinstance(role, str):
        return _ROLES.get(role, role)
    return "user" if kind.endswith(("_output", "_response")) else "assistant"


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


@dataclass(frozen=True, slots=True)
class ItemKind:
    """A kind of output item.

    prefix: of its id.
    text: the type of its text, in events too.
    fields: of one that begins.
    """

    name: str
    prefix: str
    text: str
    fields: Json


_MESSAGE = ItemKind("message", "msg", "output_text", {"role": "assistant", "content": []})
_REASONING = ItemKind("reasoning", "rs", "reasoning_text", {"summary": [], "content": []})
_CALL = ItemKind("function_call", "fc", "function_call_arguments", {})


@dataclass(slots=True)
class OutputItem:
    """An item while it grows.

    json: its fields, as in the output.
    pieces, logprobs: of its text so far.
    """

    kind: ItemKind
    json: Json
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
        self._text = ""  # of events that were not returned yet
        self._count = 0  # of all events
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
        text = self._text
        self._text = ""
        return text

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
                self._grow(_CALL, event, event.arguments)
            case Text(text) if text:
                self._grow(_MESSAGE, event, text)
            case Thought(text) if text:
                self._grow(_REASONING, event, text)
            case PromptRead():
                progress: Json = {"prompt_progress": progress_json(event)}
                self._send_response("in_progress", progress)
            case Started() | Text() | Thought():
                pass

    def _end(self, usage: Usage) -> str:
        """Complete the response, or leave it incomplete if the length ended it; return it."""
        if not self.output:
            self._begin(_MESSAGE, Text(""))
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
        for item in self.output:
            _add_item(conversation, item, "output")
        part = conversation.part(self._order.size + memory_of(self.output))
        self._kept.keep(self.id, response, part, self.output)

    def _grow(self, kind: ItemKind, event: Content, text: str) -> None:
        """Add to the text of the open item; another kind, or another call, begins a new one."""
        item = self._open
        begins_call = isinstance(event, Call) and event.id
        if item is None or item.kind is not kind or begins_call:
            item = self._begin(kind, event)
        if not text:
            return
        item.pieces.append(text)
        fields: Json = {"delta": text}
        if kind is _MESSAGE:
            logprobs: list[Json] = []
            if event.tokens is not None:
                logprobs += map(scored_json, event.tokens.scored or ())
            item.logprobs += logprobs
            fields["logprobs"] = logprobs
        self._send(f"{kind.text}.delta", **fields)

    def _begin(self, kind: ItemKind, event: Content) -> OutputItem:
        """Begin an item; the open one is complete."""
        self._close("completed")
        fields: Json = {
            "id": f"{kind.prefix}_{self._digits}{len(self.output)}",
            "type": kind.name,
            "status": "in_progress",
        }
        fields |= kind.fields
        if isinstance(event, Call):
            fields |= {"call_id": event.id, "name": event.name, "arguments": ""}
        item = OutputItem(kind, fields)
        self._open = item
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

    def _send_response(self, kind: str, extra: Json | None = None) -> None:
        """Send an event with the whole response; extra: more fields, which clients ignore."""
        event = self._event(kind) | (extra or {})
        response = f'{{"response": {self._json()}}}'
        self._add(kind, _joined(to_json(event), response))

    def _event(self, kind: str) -> Json:
        return {"type": f"response.{kind}", "sequence_number": self._count}

    def _add(self, kind: str, data: str) -> None:
        self._text += f"event: response.{kind}\ndata: {data}\n\n"
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


def response_order(kept: KeptResponses, body: object) -> Order:
    """Return the order of a body for /v1/responses. Raises RequestError.

    kept: the responses that requests go on from.
    """
    generation, order = parse_response(body, kept)
    return Order(generation, partial(ResponseRenderer, order, kept))
