"""The body of OpenAI's /v1/responses: items become the messages of a chat."""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.api.chat_messages import chat_request, text_of
from specmesh.api.dialects.chat import chat_max_tokens
from specmesh.api.foreign_items import in_words
from specmesh.api.formats import openai_format, parse_format
from specmesh.api.generation import Generation, parse_generation, parse_max_tokens, parse_request
from specmesh.api.json_text import write_gently
from specmesh.api.kept_responses import GrowingChat, KeptResponses
from specmesh.api.tools import answer_grammar, parse_tools
from specmesh.core.fields import Fields, Json, is_list, is_object
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.core.text.chat_message import ChatMessage, text_of_arguments
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import MissingField, RequestError

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
        add_item(conversation, item, where)
    return conversation


def add_item(chat: GrowingChat, item: Json, where: str) -> None:
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
