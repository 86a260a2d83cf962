"""The messages of a chat's body, and whether the last one is to be continued."""

from specmesh.core.session_params import ChatMessage
from specmesh.errors import RequestError

Json = dict[str, object]

_CONTENT = frozenset({"tool_calls", "function_call", "tool_call_id", "audio", "images", "refusal"})
"""Fields of a message that say something, which would be lost."""

_MEDIA = ("image", "audio", "video", "file")


def parse_messages(value: object) -> tuple[tuple[ChatMessage, ...], tuple[str, ...]]:
    """The messages, and the names of fields in them that nobody reads; raises RequestError."""
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a list with at least one message", "messages")
    unread: list[str] = []
    return tuple(_message(item, f"messages[{index}]", unread) for index, item in enumerate(value)), tuple(unread)


def continues(asked: bool | None, begins: bool | None, messages: tuple[ChatMessage, ...]) -> bool:
    """Whether the last message is to be continued: as `asked`, or where it is the assistant's and none is to begin.

    Raises RequestError where that cannot be.
    """
    last = bool(messages) and messages[-1].role == "assistant"
    if asked and begins:
        why = "add_generation_prompt begins a message and continue_final_message goes on with one: give one of them"
        raise RequestError(why, "continue_final_message")
    if messages and not last and (asked or begins is False):
        name = "continue_final_message" if asked else "add_generation_prompt"
        raise RequestError(f"{name}: only an assistant's message at the end can be continued", name)
    wanted = last and not begins if asked is None else asked
    if wanted and len(messages) > 1 and messages[-2].role == "assistant":
        raise RequestError("two assistant messages at the end cannot be continued: join them", "messages")
    return wanted


def _message(value: object, where: str, unread: list[str]) -> ChatMessage:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise RequestError(f"{where} must be an object with a role", where)
    role, name, content = value["role"], value.get("name"), value.get("content")
    if not isinstance(name, str | None):
        raise RequestError(f"{where}.name must be a text", where)
    for key in sorted(value.keys() - {"role", "name", "content"}):
        if value[key] not in (None, [], ""):
            if key in _CONTENT:
                raise RequestError(f"{where}.{key} is not supported yet", where)
            unread.append(f"{where}.{key}")
    if content is None and role == "assistant":
        content = ""
    return ChatMessage(role, _content(content, f"{where}.content", unread), name or "")


def _content(value: object, where: str, unread: list[str]) -> str:
    """A message's text; one that comes in parts is put together."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError(f"{where} must be a text, or a list of text parts", where)
    return "".join(_part(part, f"{where}[{index}]", unread) for index, part in enumerate(value))


def _part(part: object, where: str, unread: list[str]) -> str:
    if not isinstance(part, dict):
        raise RequestError(f"{where} must be an object with a type", where)
    kind = part.get("type", "text")
    extra = sorted(name for name in part.keys() - {"type", "text"} if part[name] is not None)
    for medium in _MEDIA:
        if any(medium in name for name in (str(kind), *extra)):
            raise RequestError(f"{medium} input is not supported by this model", where)
    if kind != "text" or not isinstance(part.get("text"), str):
        raise RequestError(f"{where} is no text part, and nothing else is supported", where)
    unread += [f"{where}.{name}" for name in extra]
    return str(part["text"])
