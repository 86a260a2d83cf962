"""Rendering of chat templates by Jinja, in the child process of `specmesh.engines.chat_template`.

It imports neither numpy nor the libraries of models: each daemon waits for it at its start.
"""

import functools
import json
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import BaseLoader, Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from specmesh.core.fields import Json, list_at, object_at, objects_at
from specmesh.core.text.chat_message import ChatMessage, message_of
from specmesh.core.text.template_traits import TemplateTraits, ThoughtField
from specmesh.core.text.tool_writing import object_of
from specmesh.engines.template_probe import TemplateProbe, shortened, traits_of, words_of

MAX_TEXT = 2**22  # characters of the longest text: twice the longest body that the API takes
_MOST_SHAPES = 256  # of chats that are remembered


class _Generation(Extension):
    """`{% generation %}`, the mark around the text that a model is trained on.

    Rendering keeps its content.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def answer(request: Json) -> Json:
    """Render `messages`; runs in the child.

    Messages of None: only compile the `template`, and probe it if `probe`. The answer has `text` or
    `traits`; or `refused`, the reason for which the template does not compile, refuses the messages
    or drops one.
    """
    try:
        source = str(request["template"])
        renderer = _renderer(source, str(request["bos"]), str(request["eos"]))
        if request.get("probe"):
            return {"traits": TemplateProbe(renderer.tried, source).traits().as_json()}
        if request["messages"] is None:
            return {"text": ""}
        return renderer.answered(request)
    except MemoryError:  # the sandbox reports it
        raise
    except Exception as error:  # noqa: BLE001 - Jinja and a template may raise anything
        # The template chooses the words: no more than a line of them.
        return {"refused": " ".join(str(error).split())[:300] or type(error).__name__}


class _Renderer:
    """A compiled template, and the texts of the tokens that begin and end a sequence."""

    def __init__(self, template: Template, bos: str, eos: str) -> None:
        self._template = template
        self._tokens: Json = {"bos_token": bos, "eos_token": eos}
        self._known: dict[str, int | None] = {}  # the first message dropped, by a chat's shape

    def answered(self, request: Json) -> Json:
        """Return the text of a chat, or the message that the template drops.

        Without `traits` the template gets the messages unchanged.
        """
        messages = objects_at(request, "messages")
        variables = object_at(request, "variables")
        continued = request["continued"] is True
        traits = traits_of(object_at(request, "traits"))
        if "traits" in request:
            chat = list(map(message_of, messages))
            dropped = self._dropped(chat, traits, variables, continued=continued)
            if dropped is not None:
                role = chat[dropped].role[:40]
                return {"refused": f"it does not show messages[{dropped}], of the role {role}"}
            messages = [_shown(message, traits) for message in chat]
        write = self._continued if continued else self._written
        return {"text": write(messages, traits, variables)}

    def tried(
        self,
        messages: Sequence[ChatMessage],
        traits: TemplateTraits,
        variables: Json,
        continued: bool,
    ) -> str | None:
        """Return the text of short messages; None if the template refuses them."""
        shown = [_shown(message, traits) for message in messages]
        own: Json = json.loads(json.dumps(variables))
        try:
            return self._written(shown, traits, own, generating=not continued)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - a template may raise anything
            return None

    def _dropped(
        self,
        messages: Sequence[ChatMessage],
        traits: TemplateTraits,
        variables: Json,
        *,
        continued: bool,
    ) -> int | None:
        """Return the index of the first message whose text or calls the template drops, if any.

        A short chat of the same shape shows them. The result is remembered by the shape.
        """
        short = shortened(messages)
        fewer = dict(variables)
        fewer.pop("functions", None)
        if fewer.get("tools"):
            fewer["tools"] = list_at(fewer, "tools")[:1]
        shape = f"{continued} {json.dumps(fewer)} {short}"
        if shape not in self._known:
            if len(self._known) == _MOST_SHAPES:
                self._known.clear()
            text = self.tried(short, traits, fewer, continued)
            self._known[shape] = _missing(short, text, continued=continued)
        return self._known[shape]

    def _continued(self, messages: list[Json], traits: TemplateTraits, variables: Json) -> str:
        """Return the text up to the end of the last message.

        A mark after its content shows that end: a template may strip the content, or append to it.
        """
        mark = secrets.token_hex(16)
        content: Any = messages[-1]["content"]
        if isinstance(content, list):
            content[-1]["text"] += mark
        else:
            messages[-1]["content"] = content + mark
        text = self._written(messages, traits, variables, generating=False)
        before, *after = text.split(mark)
        if len(after) != 1:
            count = f"{len(after)} times"
            raise TemplateError(f"the last one stands there {count}, so it cannot be continued")
        return before

    def _written(
        self,
        messages: list[Json],
        traits: TemplateTraits,
        given: Json,
        *,
        generating: bool = True,
    ) -> str:
        """Return the template's text. given: variables in addition to those of every chat."""
        variables: Json = {
            "function_call": None,
            "tool_choice": None,
            "tools": [] if traits.empty_tools else None,
            "functions": "",  # a text of JSON to Firefunction's
            "date_string": _strftime_now("%d %b %Y"),  # as llama-server's
            "datetime": _strftime_now("%b %d %Y"),
            "add_generation_prompt": generating,
            **given,
            **self._tokens,
            "messages": messages,
        }
        text = self._template.render(variables)
        if len(text) > MAX_TEXT:
            raise TemplateError(f"its text has more than {MAX_TEXT} characters")
        return text


def _missing(messages: Sequence[ChatMessage], text: str | None, *, continued: bool) -> int | None:
    """Return the index of the first short message with a word that is not in the text, if any.

    Return None if there is no text.
    """
    if text is None:
        return None
    if continued:  # the text after its end is cut off
        end = messages[-1].content
        text = text[: text.rfind(end) + len(end)]
    for index, message in enumerate(messages):
        if any(word not in text for word in words_of(message)):
            return index
    return None


@functools.lru_cache(maxsize=1)
def _renderer(source: str, bos: str, eos: str) -> _Renderer:
    """Compile a template as transformers does, for which templates are written."""
    environment = SandboxedEnvironment(
        loader=BaseLoader(),
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.filters["from_json"] = _from_json
    functions = {"raise_exception": _raise, "strftime_now": _strftime_now}
    return _Renderer(environment.from_string(source, functions), bos, eos)


class _Arguments(dict[str, Any]):
    """A call's arguments: an object, and JSON for templates that treat them as a text."""

    def __str__(self) -> str:
        return _tojson(self)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def _shown(message: ChatMessage, traits: TemplateTraits) -> Json:
    """Return a message as a template of these traits expects it."""
    shown = message.fields()
    thought = shown.pop("reasoning_content", "")
    text: Json = {"type": "text", "text": message.content}
    if thought and traits.thoughts is ThoughtField.PARTS:
        parts: list[Json] = [{"type": "thinking", "thinking": thought}]
        if message.content or not message.tool_calls:
            parts.append(text)
        shown["content"] = parts
    elif thought:
        shown[traits.thoughts.value] = thought
    if traits.parts and isinstance(shown["content"], str):
        shown["content"] = [text]
    if message.tool_calls:
        calls = objects_at(shown, "tool_calls")
        shown["tool_calls"] = [_shown_call(call, traits) for call in calls]
        if traits.no_content and not message.content and not isinstance(shown["content"], list):
            shown["content"] = None
    return shown


def _shown_call(call: Json, traits: TemplateTraits) -> Json:
    """Return a call with its arguments as an object.

    Arguments that are none become an empty object, or stay a text if the template takes that.
    """
    function: Any = call["function"]
    arguments = object_of(str(function["arguments"]))
    if arguments is None and traits.text_arguments:
        return call
    return call | {"function": function | {"arguments": _Arguments(arguments or {})}}


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the user's day


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers writes it: Jinja's own filter escapes for HTML.

    No callable of a template gets to json.
    """
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """Return the items of a filter such as `map`. Raises TypeError for values unknown to JSON."""
    if hasattr(value, "__next__"):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
