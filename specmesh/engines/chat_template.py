"""Chat templates, rendered in a child process.

A template is a program by whoever made the model. Jinja's sandbox keeps it from files and programs; the process limits
its time and memory. A template may change lists and objects, as those of Kimi K2 do: each rendering has its own copies.
"""

import functools
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import BaseLoader, Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from specmesh.core.fields import Json, is_object
from specmesh.core.session_params import ChatMessage
from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed, ConfigError, EngineError, RequestError

MAX_TEMPLATE = 2**20  # bytes of a template's file
MAX_TEXT = 2**22  # characters of the longest text: twice the longest body that the API takes


class ChatTemplate:
    """A Jinja template; `bos` is the text of the token that begins a sequence."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self.bos = bos
        self._request: Json = {"template": source, "bos": bos, "eos": eos}
        # The longest chat that the API takes needs a small part of them.
        self._child = Child(__name__, memory=2**29, seconds=3.0)
        try:
            why = self._child.ask({**self._request, "messages": None}).get("refused")
        except ChildFailed as error:
            why = str(error)
        if why is not None:
            self.close()
            raise ConfigError(f"the chat template cannot be used: {why}")

    def render(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return the prompt up to the assistant's answer, or to the end of the last message where that is continued.
        Safe from any thread. Raises RequestError where the template refuses the messages, EngineError where it
        fails."""
        chat: Json = {
            "messages": [message.fields() for message in messages],
            "continued": continued,
        }
        try:
            answered = self._child.ask(self._request | chat | {"variables": variables})
        except ChildFailed as error:
            raise EngineError(
                f"the chat template failed ({error})", "give the verifier another one"
            ) from None
        if "text" not in answered:
            raise RequestError(
                f"the model's chat template refuses these messages: {answered['refused']}",
                "messages",
            )
        return str(answered["text"])

    def close(self) -> None:
        self._child.close()


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; here it stands for its content."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def answer(request: Json) -> Json:
    """In the child: render `messages`, or only compile the `template` where they are None. The answer has `text`; or
    `refused`, why the template does not compile or refuses the messages."""
    try:
        template = _compiled(str(request["template"]))
        if request["messages"] is None:
            return {"text": ""}
        return {"text": (_continued if request["continued"] else _rendered)(template, request)}
    except MemoryError:  # the sandbox reports it
        raise
    except Exception as error:  # noqa: BLE001 - Jinja and a template may raise anything
        # The template chooses the words: no more than a line of them.
        return {"refused": " ".join(str(error).split())[:300] or type(error).__name__}


@functools.lru_cache(maxsize=1)
def _compiled(source: str) -> Template:
    """As transformers compiles them, for which templates are written."""
    environment = SandboxedEnvironment(
        loader=BaseLoader(),
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    return environment.from_string(
        source, {"raise_exception": _raise, "strftime_now": _strftime_now}
    )


def _continued(template: Template, request: Json) -> str:
    """Find the end of the last message by a mark after its content: a template may strip it, or append to it."""
    mark = secrets.token_hex(16)
    messages: Any = request["messages"]
    last = {**messages[-1], "content": messages[-1]["content"] + mark}
    marked = {**request, "messages": [*messages[:-1], last]}
    text, *after = _rendered(template, marked).split(mark)
    if len(after) != 1:
        raise TemplateError(
            f"the last one stands there {len(after)} times, so it cannot be continued"
        )
    return text


class _Arguments(dict[str, Any]):
    """A call's arguments: an object to most templates, and JSON to those that take it for a text."""

    def __str__(self) -> str:
        return _tojson(self)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def _shown(message: Json, source: str) -> Json:
    """A message as templates expect it. DeepSeek's show calls only where there is no content."""
    calls: Any = message.get("tool_calls") or []
    for call in calls:
        with suppress(ValueError, RecursionError):
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = (
                _Arguments(arguments) if is_object(arguments) else arguments
            )
    return {
        **message,
        "content": message["content"] or (None if calls and "tool▁call" in source else ""),
    }


def _rendered(template: Template, request: Json) -> str:
    messages: Any = request["messages"]
    variables: Any = dict.fromkeys(("functions", "function_call", "tools", "tool_choice"))
    variables |= {
        "date_string": _strftime_now("%d %b %Y"),
        "datetime": _strftime_now("%b %d %Y"),
    }  # as llama-server's
    variables["add_generation_prompt"] = not request["continued"]
    variables |= request.get("variables") or {}
    variables |= {"bos_token": request["bos"], "eos_token": request["eos"]}
    text = template.render(
        variables | {"messages": [_shown(one, str(request["template"])) for one in messages]}
    )
    if len(text) > MAX_TEXT:
        raise TemplateError(f"its text has more than {MAX_TEXT} characters")
    return text


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the user's day


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: Jinja's own filter escapes for HTML. No callable of a template's gets to json."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """Return what a filter such as `map` yields. Raises TypeError for anything that JSON lacks."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
