"""A message of a chat, as a client has it and as OPEN carries it."""

import json
import sys
from dataclasses import dataclass, field

from specmesh.core.fields import Fields, Json, at, is_list, object_at
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import RequestError

MESSAGE_BYTES = 256  # memory of a message or a call without its long texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message of a chat.

    role: system, user, assistant, tool, or any other that the template has.
    name: of its author.
    tool_calls: an assistant's calls.
    tool_call_id: the id of the call that a tool answers.
    reasoning: the thought before an assistant's content.
    """

    role: str = field(kw_only=False)
    content: str = field(kw_only=False)
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""

    @property
    def size(self) -> int:
        """Return the approximate bytes of memory that it takes."""
        size = MESSAGE_BYTES + sys.getsizeof(self.content) + sys.getsizeof(self.reasoning)
        for call in self.tool_calls:
            size += MESSAGE_BYTES + sys.getsizeof(call.arguments)
        return size

    def fields(self) -> Json:
        """Return the message as OPEN has it, without empty fields.

        A chat template takes it so, but for `arguments`, which are objects there.
        """
        fields: Json = {"role": self.role, "content": self.content}
        if self.name:
            fields["name"] = self.name
        if self.tool_calls:
            fields["tool_calls"] = list(map(_fields_of_call, self.tool_calls))
        if self.tool_call_id:
            fields["tool_call_id"] = self.tool_call_id
        if self.reasoning:
            fields["reasoning_content"] = self.reasoning
        return fields


def _fields_of_call(call: ToolCall) -> Json:
    """Return a call as OpenAI's API has it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def message_of(value: object, place: str = "messages") -> ChatMessage:
    """Return a message of OPEN, or of a body once its content is a text.

    place: names the message in the RequestError that this raises.
    """
    fields = Fields(value)
    texts = list[str]()
    for name in ("role", "content", "name", "tool_call_id", "reasoning_content"):
        text = fields.get(name, "")
        if not isinstance(text, str):
            raise RequestError(f"{place}.{name} must be a text", place)
        texts.append(text)
    calls = fields.get("tool_calls", [])
    if not is_list(calls):
        raise RequestError(f"{place}.tool_calls must be a list", place)
    places = [f"{place}.tool_calls[{index}]" for index in range(len(calls))]
    role, content, name, answered, thought = texts
    return ChatMessage(
        role,
        content,
        name=name,
        tool_calls=tuple(map(_call_of, calls, places)),
        tool_call_id=answered,
        reasoning=thought,
    )


def _call_of(value: object, place: str) -> ToolCall:
    """Return the call of a JSON value. Raises RequestError with its place."""
    function = object_at(value, "function")
    name = function.get("name")
    if not isinstance(name, str):
        raise RequestError(f"{place} must have a function with a name and arguments", place)
    arguments = text_of_arguments(function.get("arguments"))
    return ToolCall(str(at(value, "id") or ""), name, arguments)


def text_of_arguments(arguments: object) -> str:
    """Return a call's arguments as text, "" for none.

    Some clients send them as JSON, or nothing for a call without any.
    """
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)
