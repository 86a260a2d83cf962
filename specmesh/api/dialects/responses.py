"""OpenAI's /v1/responses: the next turn of a chat, as a list of items.

response_body.py parses the requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from specmesh.api.dialects.base import AnswerHead, Order, Renderer
from specmesh.api.dialects.openai import drafts_json, finished_json, progress_json, scored_json
from specmesh.api.dialects.response_body import ResponseOrder, add_item, parse_response
from specmesh.api.json_text import to_json
from specmesh.api.kept_responses import KeptResponses, memory_of
from specmesh.api.stream import (
    Call,
    Content,
    Event,
    Text,
    Thought,
    Usage,
    whole_turn,
)
from specmesh.core.fields import Json
from specmesh.core.requests import Finished, PromptRead, Started
from specmesh.errors import SpecmeshError
from specmesh.wire.messages import FinishReason


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
            add_item(conversation, item, "output")
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
