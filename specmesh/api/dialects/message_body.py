"""The body of Anthropic's /v1/messages: blocks of content become the messages of a chat."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specmesh.api.chat_messages import chat_request
from specmesh.api.foreign_items import in_words
from specmesh.api.formats import openai_format, parse_format
from specmesh.api.generation import Generation, parse_generation, parse_request
from specmesh.api.tools import Tools, answer_grammar, chosen_tools
from specmesh.core.fields import Fields, Json, at, is_list, is_object
from specmesh.core.session_params import LARGEST_MAX_TOKENS, stops_of
from specmesh.core.text.chat_message import ChatMessage, text_of_arguments
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import MissingField, RequestError

_REFUSED = ("n", "prompt", "resumable", "resume", "response_format", "rounds", "sources")
"""Fields of other dialects that would change the answer."""

_PARSED = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
"""Types of blocks whose fields are parsed here, so that missing ones are an error."""

_MEDIA = ("image", "document", "container_upload")

_HINTS = ("cache_control", "citations")
"""Fields of blocks and tools that mean nothing to a model."""

_BILLING = "x-anthropic-billing-header:"
"""The beginning of a line of Claude Code's system prompt that differs in each request.

It is meant for the server. In a prompt it would leave nothing of the prefix cache.
"""


class BlockReader:
    """The messages of a body, as a chat template takes them.

    messages: in their order.
    ignored: names of blocks and fields without effect; a set that keeps its order.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.ignored: dict[str, None] = {}

    def add_system(self, content: object, where: str = "system") -> None:
        """Add a system prompt, a text or text blocks. Raises RequestError."""
        texts: list[str] = []
        for path, block in self._blocks(content, where):
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(self._without_billing(text))
                case _:
                    raise RequestError(f"{path} must be a text block", where)
        text = _joined(texts)
        if text:
            self.messages.append(ChatMessage(role="system", content=text))

    def add(self, message: object, path: str) -> None:
        """Add a message. Raises RequestError that names the wrong block.

        A system message within the chat becomes the user's: moved to the beginning, it would
        change the prompt of every turn before.
        """
        role = at(message, "role")
        if role not in ("user", "assistant", "system"):
            raise RequestError(f"{path} must have the role user or assistant", path)
        content = at(message, "content")
        begins = not self.messages or self.messages[-1].role == "system"
        if role == "system" and begins:
            self.add_system(content, f"{path}.content")
        elif role == "assistant":
            self._add_assistant(content, f"{path}.content")
        else:
            self._add_user(content, f"{path}.content")

    def hint(self, value: Json) -> None:
        """Note the fields of a block or a tool that mean nothing to a model."""
        for name in _HINTS:
            if value.get(name):
                self.ignored[name] = None

    def _add_user(self, content: object, where: str) -> None:
        """Add a user's message: a message for each result of a call, and one for each text."""
        texts: list[str] = []
        results = 0
        for path, block in self._blocks(content, where):
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case {"type": "tool_result", "tool_use_id": str(name)}:
                    if texts:
                        self.messages.append(ChatMessage(role="user", content=_joined(texts)))
                        texts = []
                    results += 1
                    text = self._result(block, path)
                    self.messages.append(ChatMessage(role="tool", content=text, tool_call_id=name))
                case _:
                    texts.append(_other_block(block, path))
        if texts or not results:
            self.messages.append(ChatMessage(role="user", content=_joined(texts)))

    def _result(self, block: Json, path: str) -> str:
        """Return the text of a call's result. No template knows of errors, so the text says so."""
        texts: list[str] = []
        content = block.get("content")
        blocks = self._blocks("" if content is None else content, f"{path}.content")
        for inner_path, inner in blocks:
            match inner:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case _:
                    texts.append(_other_block(inner, inner_path))
        text = _joined(texts)
        if _flag(block, "is_error", path):
            return f"[error] {text}".rstrip()
        return text

    def _add_assistant(self, content: object, where: str) -> None:
        """Add an assistant's message. Its texts follow each other as they were generated.

        Messages of the assistant in a row are one turn.
        """
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for path, block in self._blocks(content, where):
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case {"type": "thinking", "thinking": str(thought)}:
                    thoughts.append(thought)
                case {"type": "redacted_thinking"}:
                    self.ignored["redacted_thinking"] = None
                case {"type": "tool_use", "id": str(name), "name": str(tool)}:
                    arguments = text_of_arguments(block.get("input"))
                    calls.append(ToolCall(name, tool, arguments))
                case _:
                    texts.append(_other_block(block, path))
        message = ChatMessage(
            role="assistant",
            content="".join(texts),
            tool_calls=tuple(calls),
            reasoning="".join(thoughts),
        )
        if self.messages and self.messages[-1].role == "assistant":
            message = _one_turn(self.messages.pop(), message)
        self.messages.append(message)

    def _blocks(self, content: object, where: str) -> Sequence[tuple[str, Json]]:
        """Return the blocks of a content, each after its path. A text is one block."""
        if isinstance(content, str):
            return [(where, {"type": "text", "text": content})]
        if not is_list(content):
            raise RequestError(f"{where} must be a text, or a list of blocks", where)
        blocks: list[tuple[str, Json]] = []
        for index, block in enumerate(content):
            path = f"{where}[{index}]"
            if not is_object(block):
                raise RequestError(f"{path} must be a block", path)
            self.hint(block)
            blocks.append((path, block))
        return blocks

    def _without_billing(self, text: str) -> str:
        """Return a text of the system prompt without Claude Code's line for the server."""
        if not text.startswith(_BILLING):
            return text
        self.ignored[_BILLING.removesuffix(":")] = None
        _, _, rest = text.partition("\n")
        return rest


def _joined(texts: Sequence[str]) -> str:
    """Return the texts of blocks with an empty line between."""
    return "\n\n".join(filter(None, texts))


def _one_turn(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    """Return two messages of the assistant as one."""
    return replace(
        first,
        content=first.content + second.content,
        tool_calls=first.tool_calls + second.tool_calls,
        reasoning=first.reasoning + second.reasoning,
    )


def _flag(value: object, name: str, path: str) -> bool:
    """Return the flag of this name in an object, False by default. Raises RequestError."""
    flag = at(value, name)
    if flag is None:
        return False
    if not isinstance(flag, bool):
        raise RequestError(f"{path}.{name} must be true or false", path)
    return flag


def _other_block(block: Json, path: str) -> str:
    """Return a block of a server's tool as a line of text. Raises RequestError for another one."""
    kind = block.get("type")
    if kind in _MEDIA:
        raise RequestError(f"{path} is of type {kind}: only text is supported", path)
    if not isinstance(kind, str) or kind in _PARSED:
        why = "must be a block of a type that its message may have, with all of its fields"
        raise RequestError(f"{path} {why}", path)
    return in_words(block, kind)


def parse_messages_body(body: object) -> Generation:
    """Return the generation of a body for /v1/messages. Raises RequestError that names the field.

    docs/http-api.md has the fields.
    """
    fields = Fields(body)
    for name in _REFUSED:
        if fields.given.pop(name, False) is not False:
            raise RequestError(f"{name} is not supported in /v1/messages", name)
    if "max_tokens" not in fields.given:
        raise MissingField("max_tokens is missing", "max_tokens")
    conversation = _parse_conversation(fields)
    tools = _parse_tools(fields, conversation)
    output = Fields(fields.mapping("output_config"))
    wanted = output.get("format", fields.get("output_format"))
    form = parse_format(fields, openai_format(wanted, "output_config.format", "schema"))
    _rename_stops(fields)
    skipped = _parse_thinking(fields)
    request = parse_request(
        fields,
        max_tokens=fields.integer("max_tokens", 0, 0, LARGEST_MAX_TOKENS),
        logprobs=None,
        grammar=answer_grammar(tools, form.grammar),
    )
    request = chat_request(fields, request, tuple(conversation.messages), "")
    for name in output.unread():
        skipped.append(f"output_config.{name}")
    return parse_generation(
        fields,
        [request],
        chat=True,
        schema_field=form.schema_field,
        skipped=[*skipped, *tools.skipped, *conversation.ignored],
    )


def _parse_conversation(fields: Fields) -> BlockReader:
    """Return the messages of a body. Raises RequestError."""
    conversation = BlockReader()
    conversation.add_system(fields.get("system", ""))
    given = fields.get("messages")
    if not is_list(given) or not given:
        raise RequestError("messages must be a list with at least one message", "messages")
    for index, message in enumerate(given):
        conversation.add(message, f"messages[{index}]")
    return conversation


def _rename_stops(fields: Fields) -> None:
    """Make `stop_sequences` the field `stop` of the other dialects. Raises RequestError."""
    stops = fields.listed("stop_sequences")
    try:
        stops_of(stops)
    except RequestError as error:
        raise RequestError(f"stop_sequences: {error}", "stop_sequences") from None
    if stops:
        fields.given["stop"] = stops


def _parse_thinking(fields: Fields) -> list[str]:
    """Make `thinking` a variable of the template; return the names of its fields without effect.

    Raises RequestError for an unknown type.
    """
    thinking = fields.mapping("thinking")
    if not thinking:
        return []
    kind = thinking.pop("type", None)
    if kind not in ("enabled", "adaptive", "disabled"):
        raise RequestError("thinking.type must be enabled, adaptive or disabled", "thinking")
    variables = fields.mapping("chat_template_kwargs")
    fields.given["chat_template_kwargs"] = {"enable_thinking": kind != "disabled"} | variables
    return [f"thinking.{name}" for name in thinking]


def _parse_tools(fields: Fields, conversation: BlockReader) -> Tools:
    """Return the tools of a body. Raises RequestError.

    Tools of a type of their own run at Anthropic, or have a schema that only its models know. They
    are skipped.
    """
    functions: dict[str, Json] = {}
    others: dict[str, str] = {}  # types of tools by their names; by the path of one without
    for index, tool in enumerate(fields.listed("tools")):
        path = f"tools[{index}]"
        if not is_object(tool):
            raise RequestError(f"{path} must be a tool", path)
        conversation.hint(tool)
        kind = tool.get("type") or "custom"
        name = tool.get("name")
        if not isinstance(kind, str):
            raise RequestError(f"{path}.type must be a text", path)
        if kind != "custom":
            if not isinstance(name, str | None):
                raise RequestError(f"{path}.name must be a text", path)
            others[path if name is None else name] = kind
            continue
        schema = tool.get("input_schema")
        if not (isinstance(name, str) and name and is_object(schema)):
            raise RequestError(f"{path} must have a name and an input_schema", path)
        functions[path] = tool | {"parameters": schema}
    given = fields.get("tool_choice")
    names = [function["name"] for function in functions.values()]
    choice = _choice(given, names, others)
    parallel = not _flag(given, "disable_parallel_tool_use", "tool_choice")
    return chosen_tools(functions, list(others.values()), choice, parallel=parallel)


def _choice(given: object, names: Sequence[object], others: Mapping[str, str]) -> object:
    """Return OpenAI's form of a choice of tools. Raises RequestError.

    names: of the functions. others: the types of other tools by their names.
    """
    match given:
        case None | {"type": "auto"}:
            return "auto"
        case {"type": "none"}:
            return "none"
        case {"type": "any"} if names or others:
            return "required"
        case {"type": "tool", "name": str(name)} if name in names:
            return {"type": "function", "name": name}
        case {"type": "tool", "name": str(name)} if name in others:
            return {"type": others[name]}
        case _:
            kinds = "auto, any, none, or tool with the name of one of tools"
            raise RequestError(f"tool_choice must be of type {kinds}", "tool_choice")


def parse_count(body: object) -> Generation:
    """Return the generation of a body for /v1/messages/count_tokens. Raises RequestError."""
    if is_object(body):
        body = body | {"max_tokens": 0, "stream": False}
    return parse_messages_body(body)
