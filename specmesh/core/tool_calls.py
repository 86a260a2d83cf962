"""How families of models write calls of tools, and such calls read from a text as it comes."""

# ruff: noqa: RUF001 - DeepSeek's marks have wide bars

import json
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from specmesh.core.fields import is_list, is_object, object_at
from specmesh.core.reasoning import STYLES, begun, first_mark


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A form of calls: `opening head NAME after ARGUMENTS end`, `between head NAME ...` for each further one (None: it
    cannot be), `closing`. After `trigger`, with which the first begins, a call must follow. Where `bare`, a text may
    begin with a call without the `opening`. No text has what the expression `never` finds, with which a call would
    begin in another way. Without `param_begin`, arguments are JSON. Templates of the family have all of `signs`."""

    name: str
    signs: tuple[str, ...]
    opening: str
    closing: str
    head: str
    after: str
    end: str
    param_begin: str
    param_middle: str
    param_end: str
    trigger: str
    between: str | None = "\n"
    bare: bool = False
    never: str = ""

    @property
    def start(self) -> str:
        return self.opening + self.head


def _form(
    name: str, signs: str, call: str, *, param: str = "$KEY$VALUE", around: str = "¦", trigger: str = "",
    between: str | None = "\n", bare: bool = False, never: str = "",
) -> ToolFormat:  # fmt: skip
    """Take `call` apart at $NAME and $ARGS, `param` at $KEY and $VALUE, `around` at ¦."""
    opening, closing = around.split("¦")
    head, after, end = re.split(r"\$NAME|\$ARGS", call)
    begin, middle, param_end = re.split(r"\$KEY|\$VALUE", param)
    trigger = trigger or re.split(r"(?<=[>\]])", opening + head, maxsplit=1)[0]
    marks = opening, closing, head, after, end, begin, middle, param_end
    return ToolFormat(name, tuple(signs.split()), *marks, trigger, between, bare, never)


_HERMES = '<tool_call>\n{"name": "$NAME", "arguments": $ARGS}\n</tool_call>'
_ARRAY = '{"name": "$NAME", "arguments": $ARGS}'
_GLM, _GLM47 = (
    f"<arg_key>$KEY</arg_key>{line}<arg_value>$VALUE</arg_value>{line}" for line in ("\n", "")
)
_QWEN = "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>"
_SEED = _QWEN.replace("tool_call>", "seed:tool_call>")
_DEEPSEEK = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n```json\n$ARGS\n```<｜tool▁call▁end｜>"
)
_DEEPSEEK31 = "<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGS<｜tool▁call▁end｜>"
_CALLS = "<｜tool▁calls▁begin｜>¦<｜tool▁calls▁end｜>"
_RECIPIENT = "<|channel|>commentary to="
_HARMONY = f"{_RECIPIENT}functions.$NAME <|constrain|>json<|message|>$ARGS"
_ELSEWHERE = r"(|(.|\n)*(<\|start\|>assistant|<\|channel\|>(analysis|final))) to(.|\n)*"  # its recipient is named
_LLAMA = '{"name": "$NAME", "parameters": $ARGS}'

_FORMATS = (
    _form(
        "harmony",
        "<|channel|> functions.",
        _HARMONY,
        between=None,
        trigger=_RECIPIENT,
        never=_ELSEWHERE,
    ),
    _form(
        "seed", "<seed:tool_call> <parameter=", _SEED, param="<parameter=$KEY>$VALUE</parameter>\n"
    ),
    _form(
        "qwen3_coder",
        "<function= <parameter=",
        _QWEN,
        param="<parameter=$KEY>\n$VALUE\n</parameter>\n",
    ),
    _form("glm47", "</arg_key><arg_value>", "<tool_call>$NAME$ARGS</tool_call>", param=_GLM47),
    _form("glm", "<arg_key>", "<tool_call>$NAME\n$ARGS</tool_call>", param=_GLM),
    _form("deepseek", "<｜tool▁sep｜> ```json", _DEEPSEEK, around=_CALLS),
    _form("deepseek31", "<｜tool▁sep｜>", _DEEPSEEK31, around=_CALLS, between=""),
    _form("mistral_args", "[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]$NAME[ARGS]$ARGS", between=""),
    _form("mistral", "[TOOL_CALLS]", _ARRAY, around="[TOOL_CALLS][¦]", between=", "),
    _form("nemotron", "<TOOLCALL>", _ARRAY, around="<TOOLCALL>[¦]</TOOLCALL>", between=", "),
    _form("hermes", "<tool_call>", _HERMES),
    _form(
        "llama3",
        'start_header_id "parameters":',
        _LLAMA,
        around="<|python_tag|>¦",
        between=None,
        bare=True,
    ),
    _form("generic", "", _HERMES),
)
FORMATS = {form.name: form for form in _FORMATS}  # by their names; the most specific first
GENERIC = FORMATS["generic"]  # for templates that do not show tools: `generic_prompt` does

TOOL_MARKS = frozenset(
    mark
    for row in (*FORMATS.values(), *STYLES.values())
    for mark in re.findall(r"<\|\w+\|>|<｜[\w▁]+｜>|<[/\w:]+>|\[/?[A-Z_]+\]", repr(row))
)
"""All that may be one control token of a vocabulary, whose text a parser has to see."""


def detect(template: str) -> ToolFormat:
    """Find the form of calls in a chat template's source; GENERIC where it shows no tools, or in no form known here."""
    if re.search(r"\btools\b", template) is None:
        return GENERIC
    return next(form for form in FORMATS.values() if all(sign in template for sign in form.signs))


def generic_prompt(tools: Sequence[Mapping[str, object]], form: ToolFormat) -> str:
    """Tell a model in words of the tools, and how to call one in this form."""
    each = (
        f"{form.param_begin}KEY{form.param_middle}VALUE{form.param_end}"
        if form.param_begin
        else "ARGUMENTS"
    )
    call = f"{form.start}NAME{form.after}{each}{form.end}{form.closing}"
    shown = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools, each described by a line of JSON:\n{shown}\n\nTo call one, end your answer with its"
        f" name and, as a JSON object, its arguments, in exactly this form:\n{call}\n\nSeveral calls follow each other,"
        " a line apart. Call no tool where you can answer without one."
    )


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of the text of the last call's arguments."""

    text: str


CallEvent = TextPart | CallBegin | ArgumentsPart
_Steps = Generator[None, None, str]


class CallParser:
    """Reads calls of these tools from a text as it comes. What is no call in this form is text."""

    def __init__(self, form: ToolFormat, tools: Iterable[Mapping[str, object]]) -> None:
        self._form = form
        self._schemas: dict[str, object] = {
            str(tool["name"]): tool.get("parameters") or {} for tool in tools
        }
        self._kept, self._over, self._called = "", False, False
        self.whole = True  # no call has begun that has not ended
        self._events = list[CallEvent]()
        self._steps = self._parse()

    def feed(self, text: str, *, over: bool = False) -> list[CallEvent]:
        """Return what the text goes on by. `over`: it ends here."""
        self._kept += text
        self._over = over
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    def _parse(self) -> Generator[None, None, None]:
        """Yield wherever it takes more of the text to go on."""
        mark = (yield from self._cut([self._form.head])) if self._form.bare else ""
        while mark or (mark := (yield from self._passage())):
            mark = yield from self._call(mark)

    def _passage(self) -> _Steps:
        """Tell the text up to a call, of which no half is ever shown; return the mark that begins it, or ""."""
        while True:
            end, mark = first_mark(self._kept, [self._form.start])
            end -= 0 if mark or self._over else begun(self._kept, [self._form.start])
            self._tell(TextPart(self._kept[:end]))
            self._kept = self._kept[end + len(mark) :]
            if mark or self._over:
                return mark
            yield

    def _call(self, mark: str) -> _Steps:
        """Tell a call that begins with a mark; return the mark that begins the next."""
        form = self._form
        begins = ("{",) if not form.param_begin else (form.param_begin, form.end)
        names = {
            name + form.after + begin: (name, begin) for name in self._schemas for begin in begins
        }
        found = yield from self._cut(names, within=self._called)
        if not found:
            self._tell(TextPart("" if self._called and self._over and not self._kept else mark))
            return ""
        name, begin = names[found]
        self._called = True
        self._events.append(CallBegin(name))
        self.whole = False
        self._tell(ArgumentsPart("{"))
        yield from (
            self._parameters(begin, self._schemas[name]) if form.param_begin else self._object()
        )
        another = form.closing if form.between is None else form.between + form.head
        found = yield from self._cut([another, form.closing], within=True)
        return found if found != form.closing else ""

    def _object(self) -> _Steps:
        """Pass on a JSON object as it comes. Only its brackets are counted: that it is JSON is the grammar's business,
        or the client's."""
        depth, quoted, escaped = 1, False, False
        while True:
            for at, char in enumerate(self._kept):
                if quoted:
                    quoted, escaped = escaped or char != '"', not escaped and char == "\\"
                    continue
                quoted = char == '"'
                depth += (char in "{[") - (char in "}]")
                if not depth:
                    self._tell(ArgumentsPart(self._kept[: at + 1]))
                    self._kept, self.whole = self._kept[at + 1 :], True
                    return (yield from self._cut([self._form.end], within=True))
            self._tell(ArgumentsPart(self._kept))
            self._kept = ""
            if self._over:
                return ""
            yield

    def _parameters(self, mark: str, schema: object) -> _Steps:
        """Make a JSON object of parameters that each have a mark, whole values at a time: until a value has ended its
        type is unknown."""
        form, separator = self._form, ""
        while mark == form.param_begin:
            name = yield from self._until(form.param_middle)
            value = yield from self._until(form.param_end)
            if name is None or value is None:
                return ""
            text = as_json(value, object_at(schema, "properties").get(name), schema)
            self._tell(ArgumentsPart(f"{separator}{json.dumps(name, ensure_ascii=False)}: {text}"))
            separator = ", "
            mark = yield from self._cut([form.param_begin, form.end], within=True)
        self.whole = bool(mark)
        self._tell(ArgumentsPart("}" if mark else ""))
        return ""

    def _until(self, mark: str) -> Generator[None, None, str | None]:
        """Cut off the text before a mark, and the mark; None where the text is over first."""
        seen = 0
        while (at := self._kept.find(mark, seen)) < 0:
            if self._over:
                self._kept = ""
                return None
            seen = max(len(self._kept) - len(mark), 0)
            yield
        text, self._kept = self._kept[:at], self._kept[at + len(mark) :]
        return text

    def _cut(self, marks: Iterable[str], *, within: bool = False) -> _Steps:
        """Cut off and return the longest of the marks with which the text goes on; "" where there is none. `within` a
        call, or between two, half a mark with which the text ends is no text."""
        while not self._over and any(
            mark.startswith(self._kept) and mark != self._kept for mark in marks
        ):
            yield
        found = max((mark for mark in marks if self._kept.startswith(mark)), key=len, default="")
        lost = within and not found and any(mark.startswith(self._kept) for mark in marks)
        self._kept = "" if lost else self._kept[len(found) :]
        return found

    def _tell(self, event: TextPart | ArgumentsPart) -> None:
        if event.text:
            self._events.append(event)


_TYPES: dict[type[object], set[str]] = {
    str: {"string"},
    bool: {"boolean"},
    int: {"integer", "number"},
}
_TYPES.update({float: {"number"}, list: {"array"}, dict: {"object"}, type(None): {"null"}})


def resolved(schema: object, root: object) -> object:
    """Follow a schema's references into the schema that it is part of."""
    for _ in range(8):
        match schema:
            case {"$ref": str(where)}:
                schema = root
                for key in where.split("/")[1:]:
                    schema = schema.get(key) if is_object(schema) else None
            case {"allOf": [object() as one]}:
                schema = one
            case _:
                break
    return schema


def types_of(schema: object, root: object, *, within: bool = False) -> set[str]:
    """The types of values that a schema allows; empty where it may be any, or is not known."""
    schema = resolved(schema, root)
    if not is_object(schema):
        return set()
    if is_list(values := schema.get("enum", [schema["const"]] if "const" in schema else None)):
        return set[str]().union(*(_TYPES[type(value)] for value in values))
    parts = cast(
        "Mapping[str, Iterable[str]]", schema
    )  # TypeError where it is none, which refuses it
    kinds, either = (
        parts.get("type", ()),
        [] if within else [*parts.get("anyOf", ()), *parts.get("oneOf", ())],
    )
    inner = [types_of(one, root, within=True) for one in either]
    return {kinds} if isinstance(kinds, str) else set(kinds).union(*inner) if all(inner) else set()


def as_json(text: str, schema: object, root: object) -> str:
    """Write as JSON what stands between an argument's marks: a value of a type that its schema allows, or a text."""
    types = types_of(schema, root)
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if (not types and not isinstance(value, str)) or _TYPES[type(value)] & (types - {"string"}):
            json.dumps(value, allow_nan=False)
            return text.strip()
    return json.dumps(text, ensure_ascii=False)
