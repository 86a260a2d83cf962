"""OpenAI's /v1/responses as an adapter: a body becomes a chat's, and what the chat says the items of a response."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from specmesh.api.answer import Answer
from specmesh.api.backend import Backend
from specmesh.api.body import text_of_part
from specmesh.api.choices import Choice, usage_of, whole
from specmesh.api.json_text import write_gently
from specmesh.api.kept_responses import GrowingChat, KeptResponses, memory_of
from specmesh.api.shapes import Shape, written
from specmesh.core.fair_queue import Tenant
from specmesh.core.fields import Fields, Json, is_list, is_object, list_at, object_at, objects_at
from specmesh.core.session_params import LARGEST_MAX_TOKENS, text_of_arguments
from specmesh.errors import MissingField, RequestError, SpecmeshError

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
"""Fields of OpenAI's, and of a chat, that change what an answer is."""

_ECHOED: Json = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "previous_response_id": None,
}
_ECHOED.update(
    {"parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "top_logprobs": 0}
)
_ECHOED.update({"tools": [], "top_p": 1.0})
"""What a response repeats of its request, where nothing is said."""

_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ResponseOrder:
    """What a body for /v1/responses asks for besides its chat. conversation: the chat's messages,
    without instructions. size: bytes of those that the body brought. echoed: what the response
    repeats, as JSON. store: whether it is to be kept."""

    conversation: GrowingChat
    size: int
    echoed: str
    store: bool


def parse_response(value: object, kept: KeptResponses) -> tuple[Json, ResponseOrder]:
    """Return of a body for /v1/responses that of its chat, still to be checked, and what else it
    asks for. Raise RequestError that names the field."""
    fields = Fields(value)
    for name in _REFUSED:
        if fields.get(name, False) is not False:
            raise RequestError(f"{name} is not supported in /v1/responses", name)
    instructions, previous = fields.text("instructions"), fields.text("previous_response_id")
    conversation = GrowingChat(kept.get(previous).part if previous else None)
    messages = conversation.messages
    said = fields.get("input", [])
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if not is_list(items):
        raise RequestError("input must be a text, or a list of items", "input")
    if not (items or previous):
        raise MissingField("there is nothing to answer: give input or previous_response_id")
    for index, item in enumerate(items):
        where = f"input[{index}]"
        reference = _reference(item)
        _add(messages, item if reference is None else kept.item(reference, where), where)
    chat: Json = {"messages": _instructed(instructions, messages)}
    if fields.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = fields.integer(
            "max_output_tokens", -1, -1, LARGEST_MAX_TOKENS
        )
    text, reasoning, metadata = (fields.mapping(name) for name in ("text", "reasoning", "metadata"))
    form, effort = text.pop("format", None), reasoning.pop("effort", None)
    chat |= {"response_format": _format(form), "reasoning_effort": effort, **_tools(fields)}
    for name, others in (
        ("text", text),
        ("reasoning", reasoning),
    ):  # a chat does not know them, so the header says it
        chat |= {f"{name}.{key}": one for key, one in others.items()}
    include = fields.listed("include")
    chat["include"] = [one for one in include if one != _LOGPROBS] or None
    chat["logprobs"] = True if _LOGPROBS in include or fields.given.get("top_logprobs") else None
    if fields.given.get("truncation") == "disabled":
        fields.get("truncation")
    echoed = _ECHOED | {name: fields.given[name] for name in _ECHOED.keys() & fields.given.keys()}
    echoed |= {
        "reasoning": {"effort": effort, "summary": None},
        "text": {"format": form or {"type": "text"}},
    }
    store = fields.flag("store", True) and kept.most > 0
    echoed |= {"metadata": metadata, "store": store, "truncation": "disabled"}
    chat = {name: fields.given[name] for name in fields.unread()} | chat
    size = conversation.size if store else 0
    return chat, ResponseOrder(conversation, size, write_gently(echoed), store)


def _reference(item: object) -> str | None:
    """Return the id of the item that an item stands for, None where it stands for itself."""
    if not is_object(item):
        return None
    name = item.get("id")
    refers = item.get("type") == "item_reference" or item.keys() == {"id"}
    return name if refers and isinstance(name, str) else None


def _add(messages: list[Json], item: object, where: str) -> None:
    """Add an item to a chat, where all that an assistant thinks, says and calls in one turn is one message. The last
    message may change."""
    message = _message(item if is_object(item) else Json(), where)
    last: Json = messages[-1] if messages else {}
    same_turn = message["role"] == last.get("role") == "assistant"
    again = "reasoning_content" in message or ("content" in message and "content" in last)
    if again or not same_turn:
        messages.append(message)
    elif "tool_calls" in message and "tool_calls" in last:
        list_at(last, "tool_calls").extend(list_at(message, "tool_calls"))
    else:
        last.update(message)


def _message(item: Json, where: str) -> Json:
    """Return an item as a message of a chat. Raises RequestError."""
    match item:
        case {
            "type": "function_call",
            "call_id": str(name),
            "name": str(function),
        }:
            arguments = text_of_arguments(item.get("arguments"))
            called = {"name": function, "arguments": arguments}
            call = {"id": name, "type": "function", "function": called}
            return Json(role="assistant", tool_calls=[call])
        case {"type": "function_call_output", "call_id": str(name), "output": output}:
            text = _text("" if output is None else output, f"{where}.output")
            return Json(role="tool", tool_call_id=name, content=text)
        case {"type": "reasoning"}:
            thought = item.get("content") or item.get("summary") or ""
            return Json(role="assistant", reasoning_content=_text(thought, where))
        case {"role": str(role), "content": content} if (
            item.get("type") or "message"
        ) == "message":
            role = "system" if role == "developer" else role
            return Json(role=role, content=_text(content, f"{where}.content"))
        case {"type": str(kind)} if kind not in _READ:
            return Json(role=_speaker(item, kind), content=_in_words(item, kind))
        case _:
            why = "must be a message, a function_call, a function_call_output or a reasoning, with all of its fields"
            raise RequestError(f"{where} {why}", where)


_READ = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
"""Types of items whose fields are read here: without them they are wrong."""

_SILENT = ("type", "role", "id", "call_id", "status", "encrypted_content")
"""Fields that say nothing to a model."""

_BLOB = re.compile(r"(data:[^,]*,)?[A-Za-z0-9+/=_-]{257,}")
"""A text that is an image or the like in base64."""


def _speaker(item: Json, kind: str) -> str:
    """Return whose turn an item of another tool belongs to: calls are the assistant's, what came of them the user's."""
    role = item.get("role")
    if role in ("system", "developer"):
        return "system"
    if isinstance(role, str):
        return role
    return "user" if kind.endswith(("_output", "_response")) else "assistant"


def _in_words(item: Json, kind: str) -> str:
    """Return an item that no template knows, such as a web_search_call, as a line of text for the model."""
    fields = {name: _readable(value) for name, value in item.items() if name not in _SILENT}
    given = {name: value for name, value in fields.items() if value is not None}
    return f"[{kind}] {json.dumps(given, ensure_ascii=False)}" if given else f"[{kind}]"


def _readable(value: object) -> object:
    """Return JSON with a word in the place of each text that only a program can read."""
    if isinstance(value, str):
        return "(binary data)" if _BLOB.fullmatch(value) else value
    if is_object(value):
        return {name: _readable(one) for name, one in value.items()}
    if is_list(value):
        return [_readable(one) for one in value]
    return value


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if not is_list(value):
        raise RequestError(f"{where} must be a text, or a list of text parts", where)
    return "".join(text_of_part(part, f"{where}[{index}]") for index, part in enumerate(value))


def _instructed(instructions: str, messages: list[Json]) -> list[Json]:
    """Return the chat with the instructions and the first system messages in one at its beginning."""
    first = list(takewhile(lambda one: one["role"] == "system", messages))
    texts = [str(one["content"]) for one in first]
    if instructions:
        texts.insert(0, instructions)
    others = messages[len(first) :]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others] if texts else others


def _format(value: object) -> object:
    """OpenAI's `text.format` as a chat's response_format."""
    match value:
        case None | {"type": "text" | "json_object"}:
            return value
        case {"type": "json_schema", "schema": dict()}:
            return {"type": "json_schema", "json_schema": value}
        case _:
            why = "must have type text, json_object, or json_schema with a schema"
            raise RequestError(f"text.format {why}", "text.format")


def _tools(fields: Fields) -> Json:
    """Return the tools as a chat has them, functions nested, and the choice among them, which a chat checks."""
    tools = list[object]()
    for index, tool in enumerate(fields.listed("tools")):
        if not is_object(tool):
            raise RequestError(f"tools[{index}] must be an object with a type", "tools")
        if tool.get("type") == "function":
            function = {
                name: one for name, one in tool.items() if name != "type" and one is not None
            }
            tools.append({"type": "function", "function": function})
        else:
            tools.append(tool)
    return {"tools": tools, "tool_choice": fields.get("tool_choice")}


_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_TEXTS = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
}
"""How names of items begin, and of the events of their texts."""
_UNCOUNTED = {
    "input_tokens_details": {"cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


class ResponseBuilder:
    """A response as far as its chat has come, and the events that tell of it. output: its items.
    echoed: what it repeats of its request, as JSON."""

    def __init__(self, shape: Shape, echoed: str) -> None:
        self._id = shape.id.rpartition("-")[2]
        self.id, self.output = f"resp_{self._id}", list[Json]()
        self.response: Json = {
            "id": self.id,
            "object": "response",
            "created_at": shape.created,
            "model": shape.model,
        }
        self.response |= {
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": self.output,
        }
        self.response |= {"usage": None}
        self._echoed = echoed
        self._events: list[str] = []
        self._said = 0
        self._kind = ""  # of the last item
        self._open: object = None  # what that is, while it is not over
        self._pieces: list[str] = []  # of its text
        self._logprobs: list[object] = []
        self._finish: object = None

    def text(self) -> str:
        """Return the response as JSON."""
        return _joined(written(self.response), self._echoed)

    def events(self) -> str:
        """Those that have not been written yet, as server-sent ones."""
        events, self._events = self._events, []
        return "".join(events)

    def hear(self, chat: Json) -> None:
        """Take a chunk of a chat, or a whole one."""
        if not self._said:
            self._tell("created")
            self._tell("in_progress")
        for choice in objects_at(chat, "choices"):  # one, or none
            said = object_at(choice, "delta") or object_at(choice, "message")
            if thought := said.get("reasoning_content"):
                self._write("reasoning", str(thought), summary=[], content=[])
            if text := said.get("content"):
                logprobs = list_at(choice, "logprobs.content")
                self._write("message", str(text), logprobs, role="assistant", content=[])
            for place, call in enumerate(objects_at(said, "tool_calls")):
                function = object_at(call, "function")
                own = {"call_id": call.get("id"), "name": function.get("name"), "arguments": ""}
                arguments = str(function.get("arguments") or "")
                self._write("function_call", arguments, (), call.get("index", place), **own)
            self._finish = choice["finish_reason"] or self._finish
            if "report" in (ours := object_at(chat, "specmesh")):
                names = ("schema_version", "prompt_token_ids", "report")
                self.response["specmesh"] = {name: ours[name] for name in names}

    def end(self, usage: Json) -> None:
        """The chat is over."""
        if not self.output:
            self._write("message", "", role="assistant", content=[])
        details = {"reason": "max_output_tokens"} if self._finish == "length" else None
        status = "incomplete" if details else "completed"
        self._close(status)
        used: Json = {}
        for name, one in usage.items():
            count = name.replace("prompt", "input").replace("completion", "output")
            used[count] = _UNCOUNTED[count] | one if isinstance(one, dict) else one
        self.response |= {"status": status, "usage": used, "incomplete_details": details}
        self._tell(status)

    def fail(self, error: SpecmeshError) -> None:
        self._close("incomplete")
        self.response |= {
            "status": "failed",
            "error": {"code": "server_error", "message": str(error)},
        }
        self._tell("failed")

    def _write(
        self,
        kind: str,
        text: str,
        logprobs: Sequence[object] = (),
        index: object = 0,
        **own: object,
    ) -> None:
        """Add to the text of an item, which begins where the last one is of another kind, or another call."""
        if self._open != (kind, index):
            self._close("completed")
            self._kind, self._open, self._pieces, self._logprobs = kind, (kind, index), [], []
            name = f"{_PREFIXES[kind]}_{self._id}{len(self.output)}"
            self.output.append({"id": name, "type": kind, "status": "in_progress", **own})
            self._say("output_item.added", item=self.output[-1])
            if kind != "function_call":
                self._say("content_part.added", part=self._part(""))
        if text:
            self._pieces.append(text)
            self._logprobs += logprobs
            self._say(f"{_TEXTS[kind]}.delta", delta=text, **self._extra(logprobs))

    def _close(self, status: str) -> None:
        if self._open is None:
            return
        item, text = self.output[-1], "".join(self._pieces)
        if self._kind == "function_call":
            item["arguments"] = text
            self._say("function_call_arguments.done", name=item["name"], arguments=text)
        else:
            part = self._part(text)
            item["content"] = [part]
            self._say(f"{part['type']}.done", text=text, **self._extra(self._logprobs))
            self._say("content_part.done", part=part)
        item["status"] = status
        self._say("output_item.done", item=item)
        self._open = None

    def _part(self, text: str) -> Json:
        extra = self._extra(self._logprobs)
        return (
            {"type": _TEXTS[self._kind], "text": text}
            | extra
            | (Json(annotations=[]) if extra else {})
        )

    def _extra(self, logprobs: Sequence[object]) -> Json:
        """What a message's text has besides."""
        return {"logprobs": logprobs} if self._kind == "message" else {}

    def _say(self, kind: str, **fields: object) -> None:
        """Add an event."""
        event = self._event(kind)
        if self._open is not None:
            event["output_index"], item = len(self.output) - 1, self.output[-1]
            if "item" not in fields:
                event |= {"item_id": item["id"]} | (
                    {"content_index": 0} if "content" in item else {}
                )
        self._add(kind, written(event | fields))

    def _tell(self, kind: str) -> None:
        """Add an event that has the whole response."""
        self._add(kind, _joined(written(self._event(kind)), f'{{"response": {self.text()}}}'))

    def _event(self, kind: str) -> Json:
        return {"type": f"response.{kind}", "sequence_number": self._said}

    def _add(self, kind: str, data: str) -> None:
        self._events.append(f"event: response.{kind}\ndata: {data}\n\n")
        self._said += 1


def _joined(one: str, other: str) -> str:
    """Return the JSON of an object with the fields of two, none of them empty."""
    return f"{one[:-1]}, {other[1:]}"


class ResponseAnswer(Answer):
    """The answer to a chat in the form of a response, which is kept where that is wanted."""

    def __init__(
        self,
        order: ResponseOrder,
        kept: KeptResponses,
        backend: Backend,
        choices: Sequence[Choice],
        headers: dict[str, str],
        *,
        stream: bool,
        tells_usage: bool,
        tenant: Tenant = (),
    ) -> None:
        super().__init__(
            backend, choices, headers, stream=stream, tells_usage=tells_usage, tenant=tenant
        )
        self._order, self._kept = order, kept
        self._builder = ResponseBuilder(choices[0].shape, order.echoed)

    def part(self, choice: Choice) -> str:
        for event in choice.chunk().split("\n\n")[:-1]:
            self._builder.hear(json.loads(event.removeprefix("data: ")))
        return self._builder.events()

    def end(self) -> str:
        builder, order = self._builder, self._order
        if not self._stream:
            builder.hear(whole(self._choices))
        builder.end(usage_of(self._choices))
        response = builder.text()
        if order.store:
            for item in builder.output:
                _add(order.conversation.messages, item, "output")
            part = order.conversation.part(order.size + memory_of(builder.output))
            self._kept.keep(builder.id, response, part, builder.output)
        return builder.events() if self._stream else response

    def failed(self, error: SpecmeshError) -> str:
        self._builder.fail(error)
        return self._builder.events()
