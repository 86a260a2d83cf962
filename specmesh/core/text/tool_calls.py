"""Calls of tools, read from a text as it comes.

A model writes a call into its text, in the form of its family (`tool_formats.py`). A client gets
the call's name and arguments as events of their own, in JSON, and the rest as text:

    text that comes:   Let me look. <tool_call>{"name": "get_weather", "arguments": {"city": ...
    events:            TextPart("Let me look. ")  CallBegin("get_weather")  ArgumentsPart('{"city...

The parser is one generator that reads forward and never goes back. Each `yield` waits for more of
the text. What it has read and cannot be a call is text after all; so a mark is kept back until
the tool's name behind it is whole, and known. From then on it is a call, whatever follows: a
client has its name.

- Arguments in JSON are passed on as they come: their brackets show where they end.
- Arguments in another syntax are passed on a whole one at a time, as JSON.
- Values between marks have no types of their own. The tool's schema decides whether `5` is a
  number or a text.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from specmesh.core.fields import at, is_list, is_object, list_at, object_at
from specmesh.core.text.incoming_text import IncomingText, Reading
from specmesh.core.text.tool_formats import ID, STRING, TYPE, ToolFormat
from specmesh.core.text.tool_values import (
    ValueSyntax,
    json_text,
    read_name,
    read_value,
    skip_blanks,
)


@dataclass(frozen=True, slots=True)
class TextPart:
    """More of the text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of the tool `name` begins. The parts of its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of the text of the last call's arguments."""

    text: str


CallEvent = TextPart | CallBegin | ArgumentsPart

_ID_LETTER = re.compile(r"[\w.-]", re.ASCII)
_LONGEST_ID = 64
_MOST_NESTED = 64  # marks within one another in an argument


class CallParser:
    """Reads calls of these tools from a text as it comes. Anything but calls in this form is text.

    whole: no call has begun that has not ended.
    """

    def __init__(self, form: ToolFormat, tools: Iterable[Mapping[str, object]]) -> None:
        self._form = form
        self._schemas = dict[str, object]()
        for tool in tools:
            self._schemas[str(tool["name"])] = tool.get("parameters") or {}
        self._text = IncomingText()
        self._cut = False
        self._called = False
        self.whole = True
        self._events = list[CallEvent]()
        self._steps = self._parse()

    def feed(self, text: str, *, over: bool = False, cut: bool = False) -> list[CallEvent]:
        """Return the next text and parts of calls.

        over: the text ends here.
        cut: the model did not end it, so half a mark at its end is no text.
        """
        self._text.add(text, over=over)
        self._cut = cut
        next(self._steps, None)
        events = self._events
        self._events = []
        return events

    def _parse(self) -> Reading[None]:
        """Read the text to its end."""
        mark = ""
        if self._form.bare:
            mark = yield from self._bare()
        while True:
            if not mark:
                mark = yield from self._passage()
            if not mark:
                return
            mark = yield from self._call(mark)

    def _bare(self) -> Reading[str]:
        """Read the head of a call at the text's beginning, without the opening; return it or ""."""
        head = self._form.head
        found = yield from self._text.take([head])
        # The model was cut off in the mark itself: its beginning is no answer.
        if not found and self._cut and head.startswith(self._text.kept):
            self._text.drop(len(head))
        return found

    def _passage(self) -> Reading[str]:
        """Pass on the text up to a call; return the mark that begins it, "" at the text's end.

        The mark is the part before the call's id. Half a mark is never shown.
        """
        mark = self._form.start.partition(ID)[0]
        while True:
            # At a cut any beginning of a mark may be half a call. In a text that the model has
            # ended it was meant as text.
            half = 1 if self._cut else len(self._form.trigger)
            passage, found = self._text.before([mark], half=half)
            self._emit(TextPart(passage))
            if found:
                return found
            if self._text.over:
                self._text.drop(len(self._text.kept))
                return ""
            yield

    def _call(self, mark: str) -> Reading[str]:
        """Read a call that begins with a mark; return the mark of a call right behind it, or ""."""
        opened = yield from self._opened(mark)
        if opened is None:
            return ""
        name, begin = opened
        self._called = True
        self._events.append(CallBegin(name))
        self.whole = False
        # All forms begin with an object. A client can show a call before its first argument is
        # there.
        self._emit(ArgumentsPart("{"))
        if self._form.parameter:
            yield from self._parameters(begin, self._schemas[name])
        elif self._form.syntax is not None:
            yield from self._keywords(self._form.syntax)
        else:
            yield from self._object()
        return (yield from self._another())

    def _opened(self, mark: str) -> Reading[tuple[str, str] | None]:
        """Read a call up to its arguments; return the tool's name and the mark that begins these.

        If it is no call, it is text and this returns None. The beginning of a call at the text's
        end is not shown.
        """
        taken = [mark]
        found = yield from self._name(taken)
        bare = self._form.bare and mark == self._form.head
        may_be_half = self._called or self._cut or not bare
        if found is None and not (self._text.ended and may_be_half):
            self._emit(TextPart("".join(taken)))
        return found

    def _name(self, taken: list[str]) -> Reading[tuple[str, str] | None]:
        """Read a call from its id or name up to its arguments, as `_opened` returns it.

        taken: the texts that were read so far; this adds its own.
        """
        form = self._form
        _, has_id, rest = form.head.partition(ID)
        if has_id and not (yield from self._id([rest], taken)):
            return None
        after, has_id, rest = form.after.partition(ID)
        begins = self._begins()
        # The longest match counts. So a tool whose name begins another's is not taken for it: the
        # text behind the name belongs to the mark.
        names = dict[str, tuple[str, str]]()
        for name in self._schemas:
            for begin in [""] if has_id else begins:
                names[name + after + begin] = (name, begin)
        mark = yield from self._text.take(names, within=True)
        taken.append(mark)
        if not mark or not has_id:
            return names.get(mark)
        name, _ = names[mark]
        end = yield from self._id([rest + begin for begin in begins], taken)
        return (name, end.removeprefix(rest)) if end else None

    def _begins(self) -> tuple[str, ...]:
        """Return the marks with which arguments begin, or a call without any ends."""
        if self._form.parameter:
            return (self._form.param_begin, self._form.end)
        if self._form.syntax is not None:
            return ("",)
        return ("{",)

    def _id(self, marks: Iterable[str], taken: list[str]) -> Reading[str]:
        """Read an id and one of the marks after it; return the mark, or ""."""
        name = yield from self._text.letters(_ID_LETTER, _LONGEST_ID)
        taken.append(name)
        mark = yield from self._text.take(marks, within=True)
        taken.append(mark)
        return mark

    def _another(self) -> Reading[str]:
        """Read the mark that begins another call, and return it; or read the end of the calls."""
        form = self._form
        # Without a mark between calls there is one call, and only the end may follow.
        another = form.closing
        if form.between is not None:
            another = form.between + form.head.partition(ID)[0]
        found = yield from self._text.take([another, form.closing], within=True)
        return "" if found == form.closing else found

    def _object(self) -> Reading[None]:
        """Pass on a JSON object as it comes, and read the end of its call.

        Only brackets are counted: the grammar, or the client, checks that it is JSON.
        """
        text = self._text
        brackets = _Brackets()
        # Arguments can be long. They go on as they come, and are not held back until the object
        # ends.
        while (end := brackets.end_in(text.kept)) is None:
            self._emit(ArgumentsPart(text.drop(len(text.kept))))
            if text.over:
                return
            yield
        self._emit(ArgumentsPart(text.drop(end)))
        self.whole = True
        before, has_id, rest = self._form.end.partition(ID)
        yield from text.take([before], within=True)
        if has_id:
            yield from self._id([rest], [])

    def _keywords(self, syntax: ValueSyntax) -> Reading[None]:
        """Make a JSON object of arguments in another syntax, a whole one at a time."""
        text = self._text
        separator = ""
        while True:
            yield from skip_blanks(text)
            if (yield from text.take([self._form.end], within=True)):
                self._emit(ArgumentsPart("}"))
                self.whole = True
                return
            name = yield from read_name(text, syntax)
            yield from skip_blanks(text)
            assigned = yield from text.take([syntax.assign.strip()], within=True)
            if name is None or not assigned:
                return
            value = yield from read_value(text, syntax)
            if value is None:
                return
            self._emit(ArgumentsPart(f"{separator}{json_text(name)}: {value}"))
            separator = ", "
            yield from skip_blanks(text)
            yield from text.take([","])

    def _parameters(self, mark: str, schema: object) -> Reading[None]:
        """Make a JSON object of parameters that each have a mark.

        It passes on whole values: the type of a value is unknown until it has ended.
        """
        form = self._form
        separator = ""
        while mark == form.param_begin:
            parameter = yield from self._parameter(schema)
            if parameter is None:
                return
            self._emit(ArgumentsPart(separator + parameter))
            separator = ", "
            mark = yield from self._text.take([form.param_begin, form.end], within=True)
        if mark:
            self.whole = True
            self._emit(ArgumentsPart("}"))

    def _parameter(self, schema: object) -> Reading[str | None]:
        """Read a parameter after its first mark; return it as a member of a JSON object.

        None if the text ends before it.
        """
        form = self._form
        kind = STRING if STRING in form.param_middle else TYPE
        middle, has_kind, rest = form.param_middle.partition(kind)
        # The kind of the value stands between name and value, if the form has it.
        name = yield from self._text.until(middle)
        given: str | None = ""
        if has_kind:
            given = yield from self._text.until(rest)
        if name is None or given is None:
            return None
        # A parameter that the tool does not name is of the type that its schema has for others.
        others = at(schema, "additionalProperties")
        expected = object_at(schema, "properties").get(name, others)
        if form.tag:
            value = yield from self._nested(expected, schema, 0)
        else:
            # The mark names the kind that the model has written, whatever the schema asks for.
            expected = _schema_of_kind(given) or expected
            value = yield from self._value(form.end_of(name), types_of(expected, schema))
            if value is not None:
                value = as_json(value, expected, schema)
        if value is None:
            return None
        return f"{json_text(name)}: {value}"

    def _value(self, end: str, types: set[str]) -> Reading[str | None]:
        """Read the text up to the mark that ends a value.

        In a value that can only be JSON the mark may be part of a string: there it ends nothing.
        """
        value = yield from self._text.until(end)
        # A text ends at the first mark, whatever is in it.
        if not types or "string" in types:
            return value
        # The mark was in a string of the JSON, as the text up to it is no value.
        while value is not None and not _is_json(value):
            more = yield from self._text.until(end)
            if more is None:
                return None
            value += end + more
        return value

    def _nested(self, schema: object, root: object, depth: int) -> Reading[str | None]:
        """Read a value with marks around its items and members up to its end; return it as JSON.

        Names in marks that end something are not checked: the grammar does that.
        """
        text, tag = self._text, self._form.tag
        value = yield from text.until(tag)
        # A model that opens marks without end must not exhaust the stack.
        if value is None or depth == _MOST_NESTED:
            return None
        parts = list[tuple[str, str]]()
        schema = resolved(schema, root)
        while True:
            mark = yield from text.take(["</", "<"], within=True)
            inner = yield from text.until(">")
            if inner is None or not mark:
                return None
            if mark == "</":
                return _json_of(value, parts, schema, root)
            expected = object_at(schema, "properties").get(inner, at(schema, "items"))
            part = yield from self._nested(expected, root, depth + 1)
            again = yield from text.take([tag], within=True)
            if part is None or not again:
                return None
            parts.append((inner, part))

    def _emit(self, event: TextPart | ArgumentsPart) -> None:
        """Add an event, unless it has nothing in it."""
        if event.text:
            self._events.append(event)


class _Brackets:
    """Counts the brackets of a JSON object that comes in pieces, from behind the first one."""

    def __init__(self) -> None:
        self._depth = 1
        self._quoted = False
        self._escaped = False

    def end_in(self, text: str) -> int | None:
        """Return the number of letters up to the object's end in the next piece, None without."""
        for place, char in enumerate(text, 1):
            if self._quoted:
                self._quoted = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    return place
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _schema_of_kind(kind: str) -> object:
    """Return a schema for the kind of value in a parameter's mark; None without a kind."""
    if not kind:
        return None
    if kind in ("true", "string"):
        return {"type": "string"}
    return {"type": [*_ALL_TYPES]}


def _json_of(text: str, parts: list[tuple[str, str]], schema: object, root: object) -> str:
    """Return the JSON of a value with marks: a list, an object, or its text.

    An empty value is of the schema's type.
    """
    types = types_of(schema, root)
    if not parts and not text.strip():
        if types == {"array"}:
            return "[]"
        if types == {"object"}:
            return "{}"
    if not parts:
        return as_json(text, schema, root)
    names = {name for name, _ in parts}
    # A list is written as items. A schema that wants an object may have a member of that name.
    if names == {"item"} and types != {"object"}:
        items = [part for _, part in parts]
        return f"[{', '.join(items)}]"
    members = [f"{json_text(name)}: {part}" for name, part in parts]
    return f"{{{', '.join(members)}}}"


_TYPES: dict[type[object], set[str]] = {
    str: {"string"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    list: {"array"},
    dict: {"object"},
    type(None): {"null"},
}
_ALL_TYPES = frozenset[str]().union(*_TYPES.values()) - {"string"}


def resolved(schema: object, root: object) -> object:
    """Follow a schema's references into the schema that it is part of."""
    # References may go round in a circle.
    for _ in range(8):
        match schema:
            case {"$ref": str(path)}:
                schema = root
                for key in path.split("/")[1:]:
                    schema = schema.get(key) if is_object(schema) else None
            case {"allOf": [object() as one]}:
                schema = one
            case _:
                break
    return schema


def types_of(schema: object, root: object, *, within: bool = False) -> set[str]:
    """Return the types of values that a schema allows; an empty set if they are any, or unknown.

    within: the schema is one of several in another; those in itself are not looked at.
    """
    schema = resolved(schema, root)
    if not is_object(schema):
        return set()
    values = schema.get("enum")
    if "enum" not in schema and "const" in schema:
        values = [schema["const"]]
    types = set[str]()
    if is_list(values):
        for value in values:
            types |= _TYPES[type(value)]
        return types
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if is_list(kinds):
        types |= {kind for kind in kinds if isinstance(kind, str)}
    if within:
        return types
    for choice in list_at(schema, "anyOf") + list_at(schema, "oneOf"):
        inner = types_of(choice, root, within=True)
        if not inner:
            # One choice that allows anything makes the whole allow anything.
            return set()
        types |= inner
    return types


def as_json(text: str, schema: object, root: object) -> str:
    """Write the text between an argument's marks as JSON.

    It is a value of a type other than string that its schema allows, or a string.
    """
    types = types_of(schema, root)
    with suppress(ValueError, RecursionError):
        value = json.loads(text, parse_constant=int)  # NaN and Infinity are no JSON, and no int
        # Without a schema a number is a number. But quotes belong to the text: no form asks for
        # them.
        if not types and not isinstance(value, str):
            return text.strip()
        if _TYPES[type(value)] & (types - {"string"}):
            return text.strip()
    return json.dumps(text, ensure_ascii=False)
