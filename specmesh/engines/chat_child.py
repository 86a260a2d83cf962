"""The process that renders chat templates for `llama.prompts`: `python -m specmesh.engines.chat_child`.

A template is a program by whoever made the model. Jinja's sandbox keeps it from files and programs; this process keeps
it from time and memory, which the sandbox does not.
"""

import functools
import json
import secrets
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import BaseLoader, Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specmesh.engines.sandbox import Json, serve

MAX_TEXT = 2**22
"""Characters of the longest text: twice the longest body that the API takes."""


class _Generation(Extension):
    """`{% generation %}` marks what a model learns from; here it is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        """The statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def answer(request: Json) -> Json:
    """Render a request's `messages`, or, where there are none, only see whether its `template` is one.

    The answer has `text`; or `unusable`, why the template is none; or `refused`, why it does not take the messages.
    Memory that runs out is for `serve` to tell.
    """
    fault = "unusable"
    try:
        template = _compiled(str(request["template"]))
        fault = "refused"
        if request["messages"] is None:
            return {"text": ""}
        return {"text": (_continued if request["continued"] else _rendered)(template, request)}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Jinja and a template may raise anything
        return {fault: _told(error)}


@functools.lru_cache(maxsize=1)
def _compiled(source: str) -> Template:
    """As transformers compiles it, which models' templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}  # noqa: DTZ005 - the user's day
    return environment.from_string(source)


def _continued(template: Template, request: Json) -> str:
    """The text up to the end of the last message, which a mark behind its content shows: a template may strip that, or
    put more after it."""
    mark = secrets.token_hex(16)
    messages: Any = request["messages"]
    last = {**messages[-1], "content": messages[-1]["content"] + mark}
    marked = {**request, "messages": [*messages[:-1], last]}
    text, *after = _rendered(template, marked).split(mark)
    if len(after) != 1:
        raise TemplateError(f"the last one stands there {len(after)} times, so it cannot be continued")
    return text


def _rendered(template: Template, request: Json) -> str:
    nothing = dict.fromkeys(("functions", "function_call", "tools", "tool_choice"))
    parts, length = [], 0
    for part in template.generate(
        messages=request["messages"],
        bos_token=request["bos"],
        eos_token=request["eos"],
        add_generation_prompt=not request["continued"],
        **nothing,
    ):
        parts.append(part)
        length += len(part)
        if length > MAX_TEXT:
            raise TemplateError(f"its text has more than {MAX_TEXT} characters")
    return "".join(parts)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _told(error: Exception) -> str:
    """What a template's error says, cut to a line's worth: the template chooses the words."""
    return " ".join(str(error).split())[:300] or type(error).__name__


if __name__ == "__main__":
    serve(answer)
