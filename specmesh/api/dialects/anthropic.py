"""Anthropic's /v1/messages: the next turn of a chat, as blocks of content."""

import json
import re
from collections.abc import Mapping, Sequence

from starlette.responses import JSONResponse

from specmesh.api.dialects.base import AnswerHead, Dialect, Order, Renderer
from specmesh.api.dialects.openai import SCHEMA_VERSION, progress_json
from specmesh.api.error_body import RETRY_AFTER, error_body, status_of
from specmesh.api.foreign_items import in_words
from specmesh.api.formats import openai_format, parse_format
from specmesh.api.generation import Generation, new_digits, parse_generation, parse_request
from specmesh.api.json_text import to_json
from specmesh.api.messages import chat_request
from specmesh.api.stream import TOOL_CALLS, Call, Event, Text, Thought, Usage
from specmesh.api.tools import Tools, answer_grammar, chosen_tools
from specmesh.core.fields import Fields, Json, at, is_list, is_object
from specmesh.core.requests import Finished, PromptRead, Started
from specmesh.core.session_params import (
    LARGEST_MAX_TOKENS,
    ChatMessage,
    stops_of,
    text_of_arguments,
)
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import MissingField, PromptTooLong, RequestError, SpecmeshError
from specmesh.wire.messages import FinishReason

PATH = "messages"
COUNT_PATH = "messages/count_tokens"

VERSION_HEADER = "anthropic-version"
"""The header by which a client of this API is known."""

ID_HEADER = "request-id"
BETA_HEADER = "anthropic-beta"

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

_TOO_LONG = re.compile(r"context length is (\d+) tokens, and your prompt has (?:at least )?(\d+)")

_SIGNATURE = "c3BlY21lc2g="
"""The signature of every thought: clients keep no thought without one, and nothing checks it."""


# --- the body


class BlockReader:
    """The messages of a body, as a chat template takes them.

    messages: in their order.
    ignored: names of blocks and fields without effect; a set that keeps its order.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.ignored: dict[str, None] = {}

    def add_system(self, content: object) -> None:
        """Add the system prompt, a text or text blocks. Raises RequestError."""
        texts: list[str] = []
        for path, block in self._blocks(content, "system"):
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(self._without_billing(text))
                case _:
                    raise RequestError(f"{path} must be a text block", "system")
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
            self.add_system(content)
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
        if block.get("is_error") is True:
            return f"[error] {text}".rstrip()
        return text

    def _add_assistant(self, content: object, where: str) -> None:
        """Add an assistant's message. Its texts follow each other as they were generated."""
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
    others: dict[object, str] = {}  # types of tools by their names
    for index, tool in enumerate(fields.listed("tools")):
        path = f"tools[{index}]"
        if not is_object(tool):
            raise RequestError(f"{path} must be a tool", path)
        conversation.hint(tool)
        kind = tool.get("type") or "custom"
        if kind != "custom":
            others[tool.get("name")] = str(kind)
            continue
        name = tool.get("name")
        schema = tool.get("input_schema")
        if not (isinstance(name, str) and name and is_object(schema)):
            raise RequestError(f"{path} must have a name and an input_schema", path)
        functions[path] = tool | {"parameters": schema}
    given = fields.get("tool_choice")
    names = [function["name"] for function in functions.values()]
    choice = _choice(given, names, others)
    parallel = at(given, "disable_parallel_tool_use") is not True
    return chosen_tools(functions, list(others.values()), choice, parallel=parallel)


def _choice(given: object, names: Sequence[object], others: Mapping[object, str]) -> object:
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


# --- the answer

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
        self._blocks: list[Json] = []
        self._pieces: list[str] = []  # of the last block
        self._open = False  # the last block may grow
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
        message = self._message | {"content": self._blocks} | self._ending()
        return to_json(message | {"usage": _usage_json(usage), "specmesh": self._extra()})

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
        if not self._open or self._blocks[-1]["type"] != kind:
            self._begin(dict(_EMPTY[kind]))
        self._pieces.append(text)
        self._send_delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: Json) -> None:
        """Begin a block; the one before it is complete."""
        self._close()
        self._blocks.append(block)
        self._open = True
        self._send("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _close(self) -> None:
        """Complete the last block."""
        if not self._open:
            return
        self._open = False
        text = "".join(self._pieces)
        self._pieces.clear()
        block = self._blocks[-1]
        match block["type"]:
            case "tool_use":
                block["input"] = _arguments_of(text)
            case "thinking":
                block["thinking"] = text
                block["signature"] = _SIGNATURE
                self._send_delta({"type": "signature_delta", "signature": _SIGNATURE})
            case _:
                block["text"] = text
        self._send("content_block_stop", index=len(self._blocks) - 1)

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
        self._send("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _send(self, kind: str, **fields: object) -> None:
        self._written.append(_event(kind, {"type": kind} | fields))


def _event(kind: str, data: Json) -> str:
    return f"event: {kind}\ndata: {to_json(data)}\n\n"


def _arguments_of(text: str) -> Json:
    """Return the arguments of a call; of one that was cut, none."""
    try:
        arguments: object = json.loads(text)
    except ValueError:
        return {}
    return arguments if is_object(arguments) else {}


def _usage_json(usage: Usage) -> Json:
    """Return Anthropic's usage: tokens from the prefix cache are no input tokens."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
    }


# --- errors

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    529: "overloaded_error",
}
"""Anthropic's types of errors by their status. Others are `api_error` from 500 on."""

_STATUS = {503: 529}
"""Anthropic's status of an error by OpenAI's, where it is another."""


def is_for_messages(path: str, headers: Mapping[str, str]) -> bool:
    """Return True for a request of a client of this API."""
    parts = path.removeprefix("/v1").strip("/").partition("/")
    return parts[0] == PATH or VERSION_HEADER in headers


def message_error(error: SpecmeshError, status: int = 0) -> Json:
    """Return Anthropic's error object. status: in the place of the error's own."""
    status = _status(error, status)
    default = "invalid_request_error" if status < 500 else "api_error"
    kind = _KINDS.get(status, default)
    ours = at(error_body(error), "error.specmesh")
    inner: Json = {"type": kind, "message": _in_clients_words(error), "specmesh": ours}
    return {"type": "error", "error": inner}


def _status(error: SpecmeshError, status: int) -> int:
    """Return Anthropic's status of an error; `status` instead of the error's own if not 0."""
    status = status or status_of(error)
    return _STATUS.get(status, status)


def _in_clients_words(error: SpecmeshError) -> str:
    """Return the message of an error; clients shorten a chat at these words for a long prompt."""
    message = str(error)
    if not isinstance(error, PromptTooLong):
        return message
    found = _TOO_LONG.search(message)
    if found is None:
        return f"prompt is too long: {message}"
    context, prompt = found.groups()
    return f"prompt is too long: {prompt} tokens > {context} maximum"


def message_refusal(error: SpecmeshError, status: int = 0) -> JSONResponse:
    """Return the response that refuses a request. status: in the place of the error's own."""
    name = f"req_{new_digits()}"
    status = _status(error, status)
    body = message_error(error, status) | {"request_id": name}
    response = JSONResponse(body, status, {ID_HEADER: name})
    if status == 529:
        response.headers["Retry-After"] = RETRY_AFTER
    return response


# --- orders


def message_order(body: object) -> Order:
    """Return the order of a body for /v1/messages. Raises RequestError."""
    generation = parse_messages_body(body)
    return Order(generation, MessageRenderer)


def parse_count(body: object) -> Generation:
    """Return the generation of a body for /v1/messages/count_tokens. Raises RequestError."""
    if is_object(body):
        body = body | {"max_tokens": 0, "stream": False}
    return parse_messages_body(body)


MESSAGES = Dialect(
    PATH,
    message_order,
    refuse=message_refusal,
    id_header=ID_HEADER,
    ignored_header=BETA_HEADER,
)
