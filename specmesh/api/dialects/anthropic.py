"""Anthropic's /v1/messages: the next turn of a chat, as blocks of content.

message_body.py parses the requests, message_errors.py has the refusals.
"""

import json
from collections.abc import Mapping, Sequence

from specmesh.api.dialects.base import AnswerHead, Dialect, Order, Renderer
from specmesh.api.dialects.message_body import parse_messages_body
from specmesh.api.dialects.message_errors import ID_HEADER, PATH, message_error, message_refusal
from specmesh.api.dialects.openai import SCHEMA_VERSION, progress_json
from specmesh.api.json_text import to_json
from specmesh.api.stream import TOOL_CALLS, Call, Event, Text, Thought, Usage
from specmesh.core.fields import Json, is_object
from specmesh.core.requests import Finished, PromptRead, Started
from specmesh.errors import SpecmeshError
from specmesh.wire.messages import FinishReason

COUNT_PATH = f"{PATH}/count_tokens"
BETA_HEADER = "anthropic-beta"

_SIGNATURE = "c3BlY21lc2g="
"""The signature of every thought: clients keep no thought without one, and nothing checks it."""

_EMPTY: Mapping[str, Json] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
"""Blocks that begin, by their types."""

_REASONS: Mapping[str, str] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    TOOL_CALLS: "tool_use",
}
"""Anthropic's reasons by ours."""


class MessageRenderer(Renderer):
    """Writes a message, whole or as a stream of its blocks; our report is under `specmesh`."""

    def __init__(self, head: AnswerHead) -> None:
        self._message: Json = {
            "id": f"msg_{head.id.rpartition('-')[2]}",
            "type": "message",
            "role": "assistant",
            "model": head.model,
        }
        self._written: list[str] = []  # events that were not returned yet
        self._content: list[str] = []  # complete blocks as JSON
        self._block: Json | None = None  # the one that may grow
        self._pieces: list[str] = []  # of that block
        self._finished = Finished("", (), {})

    def part(self, index: int, events: Sequence[Event]) -> str:  # noqa: ARG002  (always 0)
        """Return events that came together; a message has one choice."""
        for event in events:
            self._read(event)
        return self._taken()

    def ping(self) -> str:
        """Return an event that shows a client that its message is still written."""
        return _event("ping", {"type": "ping"})

    def end(self, usage: Usage) -> str:
        """Return the events that end the message. Its usage takes the place of the first one."""
        self._close()
        self._send(
            "message_delta", delta=self._ending(), usage=_usage_json(usage), specmesh=self._extra()
        )
        self._send("message_stop")
        return self._taken()

    def error(self, error: SpecmeshError) -> str:
        """Return an error as the last event of a stream."""
        return _event("error", message_error(error))

    def whole(self, choices: Sequence[Sequence[Event]], usage: Usage) -> str:
        """Return the whole message, with the blocks that a stream would have."""
        [events] = choices
        for event in events:
            self._read(event)
        self._close()
        begin = to_json(self._message).removesuffix("}")
        rest = self._ending() | {"usage": _usage_json(usage), "specmesh": self._extra()}
        end = to_json(rest).removeprefix("{")
        return f'{begin}, "content": [{", ".join(self._content)}], {end}'

    def _taken(self) -> str:
        """Return the events since the last call."""
        text = "".join(self._written)
        self._written.clear()
        return text

    def _read(self, event: Event) -> None:
        match event:
            case Started():
                self._start(event.prompt_tokens)
            case PromptRead():
                # clients ignore the fields that a ping has beside its type
                self._send("ping", prompt_progress=progress_json(event))
            case Text(text) if text:
                self._grow("text", text)
            case Thought(text) if text:
                self._grow("thinking", text)
            case Call():
                self._read_call(event)
            case Finished():
                self._finished = event
            case Text() | Thought():
                pass

    def _start(self, prompt_tokens: int) -> None:
        """Begin the message. How many tokens the prefix cache had is known at the end."""
        usage = Usage(prompt=prompt_tokens, cached=0, generated=0, accepted=0, rejected=0)
        rest: Json = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage_json(usage),
        }
        self._send("message_start", message=self._message | rest)
        self._written.append(self.ping())

    def _read_call(self, call: Call) -> None:
        if call.id:
            self._begin({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        if call.arguments:
            self._pieces.append(call.arguments)
            self._send_delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _grow(self, kind: str, text: str) -> None:
        """Add to a block of text or thinking; another block before it is complete."""
        if self._block is None or self._block["type"] != kind:
            self._begin(dict(_EMPTY[kind]))
        self._pieces.append(text)
        self._send_delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: Json) -> None:
        """Begin a block; the one before it is complete."""
        self._close()
        self._block = block
        self._send("content_block_start", index=len(self._content), content_block=block)

    def _close(self) -> None:
        """Complete the last block."""
        block = self._block
        if block is None:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        match block["type"]:
            case "tool_use":
                # as the model wrote them: no reader of JSON has changed them
                written = to_json(block).removesuffix("{}}") + _arguments_of(text) + "}"
            case "thinking":
                self._send_delta({"type": "signature_delta", "signature": _SIGNATURE})
                written = to_json(block | {"thinking": text, "signature": _SIGNATURE})
            case _:
                written = to_json(block | {"text": text})
        self._send("content_block_stop", index=len(self._content))
        self._block = None
        self._content.append(written)

    def _ending(self) -> Json:
        """Return the reason of the end; a verifier's own word for one stays as it is."""
        stop = self._finished.stop
        if stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = self._finished.reason
        return {"stop_reason": _REASONS.get(reason, reason), "stop_sequence": None}

    def _extra(self) -> Json:
        """Return our fields."""
        return {"schema_version": SCHEMA_VERSION, "report": self._finished.report}

    def _send_delta(self, delta: Json) -> None:
        self._send("content_block_delta", index=len(self._content), delta=delta)

    def _send(self, kind: str, **fields: object) -> None:
        self._written.append(_event(kind, {"type": kind} | fields))


def _event(kind: str, data: Json) -> str:
    return f"event: {kind}\ndata: {to_json(data)}\n\n"


def _arguments_of(text: str) -> str:
    """Return the arguments of a call as JSON; of one that was cut, none.

    They may have what Python cannot write again as it was, such as 1e999 and half a surrogate pair.
    """
    try:
        arguments: object = json.loads(
            text, parse_int=str, parse_float=str, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        return "{}"
    return text if is_object(arguments) else "{}"


def _no_constant(name: str) -> None:
    """Raise ValueError: NaN and Infinity are no JSON."""
    raise ValueError(name)


def _usage_json(usage: Usage) -> Json:
    """Return Anthropic's usage: tokens from the prefix cache are no input tokens."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
    }


def message_order(body: object) -> Order:
    """Return the order of a body for /v1/messages. Raises RequestError."""
    generation = parse_messages_body(body)
    return Order(generation, MessageRenderer)


MESSAGES = Dialect(
    PATH,
    message_order,
    refuse=message_refusal,
    id_header=ID_HEADER,
    ignored_header=BETA_HEADER,
)
