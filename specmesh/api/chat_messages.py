"""The messages of a chat, and the text of their contents."""

import re
from collections.abc import Sequence
from dataclasses import replace

from specmesh.api.generation import refuse_echo
from specmesh.core.fields import (
    Fields,
    Json,
    at,
    check_few,
    is_list,
    is_object,
    list_at,
    object_at,
    objects_at,
)
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import compact
from specmesh.core.text.chat_message import ChatMessage, message_of
from specmesh.errors import RequestError

MAX_VARIABLES = 2**14  # values of a template's variables

_MEDIA_FIELDS = ("audio", "images")
"""Fields of a message that hold a part of its content; other unknown fields hold none."""

_MEDIA = re.compile("image|audio|video|file")

_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
"""The field of a content part that has its text, by the part's type."""

_MAY_BE_EMPTY = ("assistant", "tool", "function")
"""Roles whose messages need no content."""


def parse_messages(value: object) -> tuple[ChatMessage, ...]:
    """Return the messages of a chat's body. Raises RequestError that names the wrong one."""
    if not is_list(value) or not value:
        raise RequestError("messages must be a list with at least one message", "messages")
    return tuple(
        _parse_message(message, f"messages[{index}]") for index, message in enumerate(value)
    )


def chat_request(
    fields: Fields, request: Request, messages: tuple[ChatMessage, ...], effort: str
) -> Request:
    """Return the request for an assistant's turn after these messages. Raises RequestError.

    effort: how much the model is to think, a variable of some templates; "" for the default.
    """
    refuse_echo(request)
    continued = _continues(fields, messages)
    variables = fields.mapping("chat_template_kwargs")
    if not continued and not fields.flag("add_generation_prompt", True):
        variables["add_generation_prompt"] = False
    if effort:
        variables = {"reasoning_effort": effort} | variables
    check_few(variables, "chat_template_kwargs", MAX_VARIABLES)
    return replace(request, messages=messages, continued=continued, template=variables)


def _continues(fields: Fields, messages: Sequence[ChatMessage]) -> bool:
    """Return True where the answer continues the last message, an assistant's."""
    if fields.flag("add_generation_prompt") and fields.flag("continue_final_message"):
        why = "add_generation_prompt begins an answer, continue_final_message goes on with one"
        raise RequestError(f"{why}: choose", "continue_final_message")
    last = messages[-1]
    can_continue = last.role == "assistant" and not last.tool_calls
    continues = fields.flag("continue_final_message", can_continue)
    if continues and not can_continue:
        raise RequestError("only an assistant's message at the end can be continued", "messages")
    if not can_continue or fields.flag("add_generation_prompt", not continues):
        return False
    if len(messages) > 1 and messages[-2].role == "assistant":
        why = "two assistant messages at the end cannot be continued: join them"
        raise RequestError(why, "messages")
    return True


def _parse_message(value: object, where: str) -> ChatMessage:
    if not is_object(value) or not isinstance(value.get("role"), str):
        raise RequestError(f"{where} must be an object with a role", where)
    for name in _MEDIA_FIELDS:
        if value.get(name) not in (None, [], ""):
            raise RequestError(f"{where}.{name} is not supported yet", where)
    content = value.get("content")
    if content is None and value["role"] in _MAY_BE_EMPTY:
        content = ""
    thought = ""
    if value["role"] == "assistant" and is_list(content):
        content, thought = _without_thoughts(content)
    text = text_of(content, f"{where}.content", where)
    refusal = value.get("refusal")
    if isinstance(refusal, str):
        text += refusal
    message = _with_tool_calls(value) | {"content": text}
    for reasoning in (value.get("reasoning"), thought):
        if reasoning and isinstance(reasoning, str) and not message.get("reasoning_content"):
            message["reasoning_content"] = reasoning
    return message_of(message, where)


def _without_thoughts(parts: Sequence[object]) -> tuple[list[object], str]:
    """Return content parts with an empty text in the place of each thought, and the thoughts."""
    others = list(parts)
    thoughts: list[str] = []
    for index, part in enumerate(parts):
        thought = _thought_of(part)
        if thought is not None:
            others[index] = {"text": ""}
            thoughts.append(thought)
    return others, "".join(thoughts)


def _thought_of(part: object) -> str | None:
    """Return the thought of a content part, as Mistral, Anthropic and the AI SDK write it.

    None for any other part.
    """
    match part:
        case (
            {"type": "thinking", "thinking": str(thought)}
            | {"type": "reasoning", "text": str(thought)}
            | {"type": "reasoning", "reasoning": str(thought)}
        ):
            return thought
        case {"type": "thinking"} if is_list(parts := at(part, "thinking")):
            texts = [at(inner, "text") for inner in parts]
            return "".join(text for text in texts if isinstance(text, str))
        case _:
            return None


def _with_tool_calls(message: Json) -> Json:
    """Return a message in today's form, where it has OpenAI's old form of a call or a result.

    Calls of custom tools become calls of functions.
    """
    if objects_at(message, "tool_calls"):
        calls = [_as_function(call) for call in list_at(message, "tool_calls")]
        return message | {"tool_calls": calls}
    call = object_at(message, "function_call")
    if call and not message.get("tool_calls"):
        return message | {"tool_calls": [{"id": "", "type": "function", "function": call}]}
    if message["role"] == "function":
        return message | {"role": "tool"}
    return message


def _as_function(call: object) -> object:
    """Return the call of a custom tool as that of a function; any other call as it is.

    The input of a custom tool is a text; it becomes the only argument.
    """
    match call:
        case {"custom": {"name": str(name), "input": str(text)}}:
            function = {"name": name, "arguments": compact({"input": text})}
            return {"id": at(call, "id"), "type": "function", "function": function}
        case _:
            return call


def text_of(content: object, path: str, param: str = "") -> str:
    """Return the text of a content, a text or a list of text parts. Raises RequestError.

    path: of the content in the body. param: the field that an error names; the path by default.
    """
    if isinstance(content, str):
        return content
    if not is_list(content):
        why = f"{path} must be a text, or a list of text parts"
        raise RequestError(why, param or path)
    return "".join(_text_of_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _text_of_part(part: object, path: str) -> str:
    """Return the text of a content part. Raises RequestError for any other part."""
    if is_object(part) and not _has_media(part):
        kind = part.get("type", "text")
        name = _TEXT_FIELDS.get(str(kind))
        if name is not None:
            text = part.get(name)
            if isinstance(text, str):
                return text
    why = "must be a text part: images, audio and files are not supported"
    raise RequestError(f"{path} {why}", path)


def _has_media(part: Json) -> bool:
    """Return True where a field that is not null is of an image or the like."""
    names = [name for name, value in part.items() if value is not None]
    return any(map(_MEDIA.search, names))
