"""Calls of tools, read from a text as it comes."""

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
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
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
    """Reads calls of these tools from a text as it comes. What is no call in this form is text."""

    def __init__(self, form: ToolFormat, tools: Iterable[Mapping[str, object]]) -> None:
        self._form = form
        self._schemas: dict[str, object] = {
            str(tool["name"]): tool.get("parameters") or {} for tool in tools
        }
        self._text = IncomingText()
        self._cut = False
        self._called = False
        self.whole = True  # no call has begun that has not ended
        self._events = list[CallEvent]()
        self._steps = self._parse()

    def feed(self, text: str, *, over: bool = False, cut: bool = False) -> list[CallEvent]:
        """Return what the text goes on by. over: it ends here. cut: not because the model ended it,
        so that half a mark at its end is no text."""
        self._text.add(text, over=over)
        self._cut = cut
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    def _parse(self) -> Reading[None]:
        """Read the text to its end."""
        mark = (yield from self._bare()) if self._form.bare else ""
        while mark or (mark := (yield from self._passage())):
            mark = yield from self._call(mark)

    def _bare(self) -> Reading[str]:
        """Return the head of a call with which the text begins without the opening; "" where it
        does not."""
        head = self._form.head
        found = yield from self._text.take([head])
        if not found and self._cut and head.startswith(self._text.kept):
            self._text.drop(len(head))
        return found

    def _passage(self) -> Reading[str]:
        """Pass on the text up to a call, of which no half is ever shown. Return the mark that
        begins it, as far as it is always the same; "" at the text's end."""
        mark = self._form.start.partition(ID)[0]
        while True:
            half = 1 if self._cut else len(self._form.trigger)
            passage, found = self._text.before([mark], half=half)
            self._tell(TextPart(passage))
            if found:
                return found
            if self._text.over:
                self._text.drop(len(self._text.kept))
                return ""
            yield

    def _call(self, mark: str) -> Reading[str]:
        """Read a call that begins with a mark; return the mark that begins the next one at once, or
        ""."""
        opened = yield from self._opened(mark)
        if opened is None:
            return ""
        name, begin = opened
        self._called = True
        self._events.append(CallBegin(name))
        self.whole = False
        self._tell(ArgumentsPart("{"))
        if self._form.parameter:
            yield from self._parameters(begin, self._schemas[name])
        elif self._form.syntax is not None:
            yield from self._keywords(self._form.syntax)
        else:
            yield from self._object()
        return (yield from self._another())

    def _opened(self, mark: str) -> Reading[tuple[str, str] | None]:
        """Read the beginning of a call up to its arguments; return the tool's name and how these
        begin. None where it
        is no call: then it is text, unless it is the beginning of one at the text's end."""
        taken = [mark]
        found = yield from self._name(taken)
        bare = self._form.bare and mark == self._form.head
        if found is None and not (self._text.ended and (self._called or self._cut or not bare)):
            self._tell(TextPart("".join(taken)))
        return found

    def _name(self, taken: list[str]) -> Reading[tuple[str, str] | None]:
        """Read a call from its id or name up to its arguments. taken: what was read so far, to
        which this adds."""
        form = self._form
        _, has_id, rest = form.head.partition(ID)
        if has_id and not (yield from self._id([rest], taken)):
            return None
        after, has_id, rest = form.after.partition(ID)
        begins = self._begins()
        names = {name + after: (name, "") for name in self._schemas}
        if not has_id:
            names = {
                name + after + begin: (name, begin) for name in self._schemas for begin in begins
            }
        mark = yield from self._text.take(names, within=True)
        taken.append(mark)
        if not mark or not has_id:
            return names.get(mark)
        ends = {rest + begin: begin for begin in begins}
        end = yield from self._id(ends, taken)
        return (names[mark][0], ends[end]) if end else None

    def _begins(self) -> tuple[str, ...]:
        """Return the marks with which arguments begin, or end where there are none."""
        if self._form.parameter:
            return (self._form.param_begin, self._form.end)
        return ("",) if self._form.syntax is not None else ("{",)

    def _id(self, marks: Iterable[str], taken: list[str]) -> Reading[str]:
        """Read an id and one of the marks after it, which is returned; "" where there is none."""
        taken.append((yield from self._text.letters(_ID_LETTER, _LONGEST_ID)))
        mark = yield from self._text.take(marks, within=True)
        taken.append(mark)
        return mark

    def _another(self) -> Reading[str]:
        """Read what ends the calls, or the mark that begins another one, which is returned; else
        ""."""
        form = self._form
        another = form.closing
        if form.between is not None:
            another = form.between + form.head.partition(ID)[0]
        found = yield from self._text.take([another, form.closing], within=True)
        return "" if found == form.closing else found

    def _object(self) -> Reading[None]:
        """Pass on a JSON object as it comes. Only its brackets are counted: that it is JSON is the
        grammar's business, or the client's."""
        depth, quoted, escaped = 1, False, False
        text = self._text
        while True:
            for place, char in enumerate(text.kept):
                if quoted:
                    quoted, escaped = escaped or char != '"', not escaped and char == "\\"
                    continue
                quoted = char == '"'
                depth += (char in "{[") - (char in "}]")
                if not depth:
                    self._tell(ArgumentsPart(text.drop(place + 1)))
                    self.whole = True
                    yield from text.take([self._form.end.partition(ID)[0]], within=True)
                    yield from self._rest_of_end()
                    return
            self._tell(ArgumentsPart(text.drop(len(text.kept))))
            if text.over:
                return
            yield

    def _rest_of_end(self) -> Reading[None]:
        """Read the id in what ends a call, where it has one."""
        _, has_id, rest = self._form.end.partition(ID)
        if has_id:
            yield from self._id([rest], [])

    def _keywords(self, syntax: ValueSyntax) -> Reading[None]:
        """Make a JSON object of arguments in another syntax, a whole one at a time."""
        text, separator = self._text, ""
        while True:
            yield from skip_blanks(text)
            if (yield from text.take([self._form.end], within=True)):
                self._tell(ArgumentsPart("}"))
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
            self._tell(ArgumentsPart(f"{separator}{json_text(name)}: {value}"))
            separator = ", "
            yield from skip_blanks(text)
            yield from text.take([","])

    def _parameters(self, mark: str, schema: object) -> Reading[None]:
        """Make a JSON object of parameters that each have a mark, whole values at a time: until a
        value has ended its type is unknown."""
        form, separator = self._form, ""
        while mark == form.param_begin:
            parameter = yield from self._parameter(schema)
            if parameter is None:
                return
            self._tell(ArgumentsPart(separator + parameter))
            separator = ", "
            mark = yield from self._text.take([form.param_begin, form.end], within=True)
        self.whole = bool(mark)
        self._tell(ArgumentsPart("}" if mark else ""))

    def _parameter(self, schema: object) -> Reading[str | None]:
        """Read a parameter after its first mark; return it as a member of a JSON object, None where
        the text ends."""
        form = self._form
        kind = STRING if STRING in form.param_middle else TYPE
        middle, has_kind, rest = form.param_middle.partition(kind)
        name = yield from self._text.until(middle)
        given = (yield from self._text.until(rest)) if has_kind else ""
        if name is None or given is None:
            return None
        others = at(schema, "additionalProperties")
        expected = object_at(schema, "properties").get(name, others)
        if form.tag:
            value = yield from self._nested(expected, schema, 0)
        else:
            expected = _known(given) or expected
            value = yield from self._value(form.end_of(name), types_of(expected, schema))
            if value is not None:
                value = as_json(value, expected, schema)
        return None if value is None else f"{json_text(name)}: {value}"

    def _value(self, end: str, types: set[str]) -> Reading[str | None]:
        """Read the text up to the mark that ends a value. Where the value can only be JSON, the
        mark may be in a string of it, too: there it ends nothing."""
        value = yield from self._text.until(end)
        while value is not None and types and "string" not in types and not _is_json(value):
            more = yield from self._text.until(end)
            value = None if more is None else value + end + more
        return value

    def _nested(self, schema: object, root: object, depth: int) -> Reading[str | None]:
        """Read a value with marks around its items and members up to its own end; return it as
        JSON. What a mark that
        ends something names is not looked at: that is the grammar's business."""
        text, tag = self._text, self._form.tag
        value = yield from text.until(tag)
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

    def _tell(self, event: TextPart | ArgumentsPart) -> None:
        if event.text:
            self._events.append(event)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _known(kind: str) -> object:
    """Return a schema for what a parameter's mark says of its value; None where it has none."""
    if kind in ("true", "string"):
        return {"type": "string"}
    return {"type": [*_ALL_TYPES]} if kind else None


def _json_of(text: str, parts: list[tuple[str, str]], schema: object, root: object) -> str:
    """Return the JSON of a value with marks: a list, an object, or its text. The schema says what
    an empty one is."""
    types = types_of(schema, root)
    empty = not parts and not text.strip()
    items = bool(parts) and all(name == "item" for name, _ in parts)
    if (items and types != {"object"}) or (empty and types == {"array"}):
        return "[" + ", ".join(part for _, part in parts) + "]"
    if parts or (empty and types == {"object"}):
        return "{" + ", ".join(f"{json_text(name)}: {part}" for name, part in parts) + "}"
    return as_json(text, schema, root)


_TYPES: dict[type[object], set[str]] = {
    str: {"string"},
    bool: {"boolean"},
    int: {"integer", "number"},
}
_TYPES.update({float: {"number"}, list: {"array"}, dict: {"object"}, type(None): {"null"}})
_ALL_TYPES = frozenset[str]().union(*_TYPES.values()) - {"string"}


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
    """Return the types of values that a schema allows; none where they are any, or not known."""
    schema = resolved(schema, root)
    if not is_object(schema):
        return set()
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if is_list(values):
        return set[str]().union(*(_TYPES[type(value)] for value in values))
    kinds = schema.get("type")
    named = {kinds} if isinstance(kinds, str) else set[str]()
    if is_list(kinds):
        named = {kind for kind in kinds if isinstance(kind, str)}
    either = [] if within else [*list_at(schema, "anyOf"), *list_at(schema, "oneOf")]
    inner = [types_of(one, root, within=True) for one in either]
    if isinstance(kinds, str):
        return named
    return named.union(*inner) if all(inner) else set()


def as_json(text: str, schema: object, root: object) -> str:
    """Write as JSON what stands between an argument's marks: a value of a type that its schema
    allows, or a text."""
    types = types_of(schema, root)
    with suppress(ValueError, RecursionError):
        value = json.loads(text, parse_constant=int)  # NaN and Infinity are no JSON, and no int
        if (not types and not isinstance(value, str)) or _TYPES[type(value)] & (types - {"string"}):
            return text.strip()
    return json.dumps(text, ensure_ascii=False)
