"""The grammar of calls of tools: free text up to a mark, and after it nothing but calls.

No tool's schema refuses a request:

- Arguments keep to as much of a schema as the library can.
- A tool whose schema it cannot keep to, or that makes the grammar too large, has any arguments.
- The result is a function of the tools only, so a text that is resumed has the same grammar.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specmesh.core.text.tool_formats import FORMATS, ID, ToolFormat
from specmesh.engines.keeping import Keeping, json_rule
from specmesh.engines.marked_parameters import MarkedParameters, any_text_rule
from specmesh.engines.schema_choices import types_of
from specmesh.engines.schema_document import is_list, is_object
from specmesh.engines.schema_faults import describe, matcher_of, rule_of, strict
from specmesh.engines.schema_keywords import SchemaFault
from specmesh.engines.thought_rules import TEXT, answer_rule, start_rules
from specmesh.engines.tool_arguments import argument_rules
from specmesh.errors import RequestError

_quoted = json.dumps

_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_MOST_SUBSCHEMAS = 9_000
"""Most subschemas of all tools.

The library numbers a grammar's symbols in 16 bits, and takes some six for each subschema.
"""

_UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, RecursionError, RequestError)
_ANY = {"type": "object", "additionalProperties": True}
_JSON_PART = re.compile(r'[{}]|"[^"]*"|: |, |[^{}":, ]+')

Rules = tuple[list[str], list[str]]
"""The rules of a tool's arguments, and in words the parts of its schema that they ignore."""


def tool_grammar(request: Mapping[str, Any], *, loose: bool) -> tuple[str, dict[str, list[str]]]:
    """Return the grammar of a request of kind `tools`, and the ignored parts of schemas.

    The parts are in words, by the tools' names. Raises RequestError.

    loose: keep only to schemas that must be kept to.
    """
    try:
        return _ToolGrammar(request).fitting(loose=loose)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RequestError(f"it does not describe tools: {type(error).__name__}: {error}") from None


class _ToolGrammar:
    """A request, and the rules of its tools' arguments."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._form: ToolFormat = FORMATS[request["format"]]
        self._choice = request["choice"]
        self._parallel = request["parallel"] is True
        self._thinking = str(request["thinking"])
        self._schema = request.get("schema") if self._choice == "auto" else None
        self._tools = _chosen(request["tools"], self._choice)
        self._strict = set(request.get("strict", ()))
        self._made: dict[tuple[int, Keeping], Rules] = {}

    def fitting(self, *, loose: bool) -> tuple[str, dict[str, list[str]]]:
        """Return the grammar that keeps to most of the schemas, and the parts that it ignores."""
        head = list(self._head())
        error = ""
        ways = [self._each(Keeping.NOTHING)] if loose else self._ways()
        for keeping in ways:
            arguments = self._arguments_of(keeping)
            if arguments is None:
                continue
            rules = list(head)
            ignored = dict[str, list[str]]()
            for tool, (tool_rules, tool_ignored) in zip(self._tools, arguments, strict=True):
                rules += tool_rules
                if tool_ignored:
                    ignored[tool["name"]] = tool_ignored
            lark = "\n".join([*rules, ""])
            matcher = matcher_of(lark)
            if not matcher.is_error():
                return lark, ignored
            error = describe(matcher.get_error())
        raise RequestError(error)

    def _ways(self) -> Iterator[list[Keeping]]:
        """Yield the keeping of each tool's schema, less and less of them."""
        first = self._each(Keeping.UNTRIED)
        sizes = [_size(tool.get("parameters")) for tool in self._tools]
        by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
        room = _MOST_SUBSCHEMAS
        kept = 0
        for index in by_size:
            room -= sizes[index]
            if room >= 0:
                kept += 1
        yield self._without(first, by_size[kept:])
        some = self._each(Keeping.SOME)
        while kept:
            yield self._without(some, by_size[kept:])
            kept //= 2
        yield self._each(Keeping.NOTHING)

    def _each(self, keeping: Keeping) -> list[Keeping]:
        """Return this keeping for each tool, but ALL for those that must be kept to."""
        keepings = [keeping] * len(self._tools)
        for index, tool in enumerate(self._tools):
            if tool["name"] in self._strict:
                keepings[index] = Keeping.ALL
        return keepings

    def _without(self, keeping: Sequence[Keeping], tools: list[int]) -> list[Keeping]:
        """Return NOTHING for these tools, but ALL for those that must be kept to."""
        less = list(keeping)
        for index in tools:
            if keeping[index] is not Keeping.ALL:
                less[index] = Keeping.NOTHING
        return less

    def _arguments_of(self, keepings: list[Keeping]) -> list[Rules] | None:
        """Return each tool's rules; None if this keeping is impossible for one.

        Raises RequestError for a schema that must be kept to.
        """
        arguments = list[Rules]()
        for index, keeping in enumerate(keepings):
            try:
                arguments.append(self._tool(index, keeping))
            except SchemaFault as fault:
                if keeping is not Keeping.ALL:
                    return None
                name = self._tools[index]["name"]
                raise RequestError(f"{name} has strict, which cannot be kept: {fault}") from None
        return arguments

    def _tool(self, index: int, keeping: Keeping) -> Rules:
        """Return the rules of a tool's calls. Raises SchemaFault."""
        key = (index, keeping)
        if key not in self._made:
            rules, ignored = self._given(index, keeping)
            self._made[key] = ([*rules, *self._call(index)], ignored)
        return self._made[key]

    def _given(self, index: int, keeping: Keeping) -> Rules:
        """Return the rules of a tool's arguments. Raises SchemaFault."""
        name = f"given{index}"
        schema: dict[str, Any] = self._tools[index].get("parameters") or {}
        if keeping is not Keeping.SOME:
            return self._kept(name, schema, keeping)
        try:
            return self._checked(name, schema, Keeping.UNTRIED)
        except SchemaFault:
            pass  # most schemas can be kept to as a whole, so that comes first
        try:
            return self._checked(name, schema, Keeping.SOME)
        except SchemaFault as fault:
            return self._any(name), [str(fault)]

    def _checked(self, name: str, schema: dict[str, Any], keeping: Keeping) -> Rules:
        """Return the rules of a tool's arguments that the library takes. Raises SchemaFault."""
        rules, ignored = self._kept(name, schema, keeping)
        matcher = matcher_of("\n".join([f"start: {name}", *rules, *self._shared()]))
        if matcher.is_error():
            raise SchemaFault(describe(matcher.get_error()))
        return rules, ignored

    def _call(self, at: int) -> Iterator[str]:
        """Yield the rules of a call from the tool's name on."""
        form = self._form
        begin = self._tools[at]["name"] + form.after
        yield f"call{at}: {_literal(begin)} args{at}"
        yield f"args{at}: given{at} {_literal(form.end)}"
        if form.bare and self._schema is not None:
            parts = " ".join(map(_quoted, _JSON_PART.findall(form.head + begin)))
            yield f"bare{at}: {parts} given{at} {_quoted(form.end)}"
        elif form.bare and self._choice == "auto":
            # Lazy to the end of the name: an object with another name is text.
            yield f"bare{at}: name{at} args{at}"
            yield f"name{at}[lazy]: {_quoted(form.head + begin)}"
        elif form.bare:
            yield f"bare{at}: {_quoted(form.head)} call{at}"

    def _kept(self, name: str, given: dict[str, Any], keeping: Keeping) -> Rules:
        """Return rules that keep to a schema; the first has this name. Raises SchemaFault."""
        if keeping is Keeping.NOTHING:
            return self._any(name), ["all of its schema: the tools are too large together"]
        try:
            return self._rules(name, _object_schema(given), keeping)
        except _UNREADABLE as error:
            raise SchemaFault(f"its schema cannot be read: {error}") from None

    def _rules(self, name: str, schema: dict[str, Any], keeping: Keeping) -> Rules:
        """Return rules by the model's form of calls.

        Raises SchemaFault, and the errors of _UNREADABLE for a schema that is none.
        """
        form = self._form
        if form.syntax is not None or form.tag:
            return argument_rules(form, name, schema, keeping)
        if form.parameter:
            marked = MarkedParameters(form, name, schema, keeping)
            return list(marked.rules()), marked.ignored
        compiled = json_rule(keeping, schema)
        if compiled is None:
            return [f"{name}: any_object"], ["all of its schema"]
        return [f"{name}: {compiled.rule}"], list(compiled.ignored)

    def _any(self, name: str) -> list[str]:
        """Return the rules of arbitrary arguments."""
        return self._rules(name, _ANY, Keeping.NOTHING)[0]

    def _head(self) -> Iterator[str]:
        """Yield all rules except those of arguments."""
        form = self._form
        numbers = range(len(self._tools))
        calls = ""
        if form.bare:
            calls = "".join(f" | bare{at}" for at in numbers)
        free = self._choice == "auto" and self._schema is None
        yield from start_rules(self._thinking, free=free)
        if free:
            yield f"body: TEXT | trigger rest calls{calls}"
            yield f"trigger[lazy]: TEXT {_quoted(form.trigger)}"
            yield f"rest: {_literal(form.start.removeprefix(form.trigger))}"
        elif self._schema is not None:
            yield f"body: answer | {_literal(form.start)} calls{calls}"
            yield answer_rule(self._thinking)
            yield f"content: {_answer(self._schema)}"
        else:
            yield f"body: {_literal(form.start)} calls{calls}"
        more = ""
        if self._parallel and form.between is not None and not is_object(self._choice):
            more = f" ({_literal(form.between + form.head)} call)*"
        yield f"calls: call{more} {_quoted(form.closing)}"
        yield "call: " + " | ".join(f"call{at}" for at in numbers)
        if form.ids:
            yield f"ID: /{form.ids}/"
        yield from self._shared()

    def _shared(self) -> Iterator[str]:
        """Yield the rules that the rules of arguments may use."""
        form = self._form
        if form.parameter and not form.tag:
            yield any_text_rule(form)
        yield f"any_object: {rule_of({'type': 'object'})}"
        yield f"any_json: {rule_of({})}"
        text = TEXT
        if form.never:
            text += f" & ~/{form.never}/"
        yield text


def _answer(schema: Any) -> str:
    """Return the rule of a text without calls. Raises RequestError."""
    try:
        return strict(schema)
    except SchemaFault as fault:
        raise RequestError(str(fault), "json_schema") from None


def _chosen(tools: Any, choice: Any) -> list[Mapping[str, Any]]:
    """Return the tools that may be called. Raises RequestError for tools that cannot be called."""
    names = set[str]()
    for tool in tools:
        name = tool["name"]
        if not _TOOL_NAME.fullmatch(name):
            allowed = "at most 64 letters, digits, '_', '-' and '.'"
            raise RequestError(f"a tool's name has {allowed}: not {name[:80]!r}")
        names.add(name)
    if len(names) < len(tools):
        raise RequestError("two tools have the same name")
    if is_object(choice):
        tools = [tool for tool in tools if tool["name"] == choice["name"]]
        if not tools:
            raise RequestError(f"no tool is named {choice['name']!r}")
    elif choice not in ("auto", "required"):
        raise RequestError(f"choice must be auto, required or a name, not {choice!r}")
    if not tools:
        raise RequestError("there are no tools")
    for tool in tools:
        if not isinstance(tool.get("parameters") or {}, dict):
            raise TypeError("parameters are no JSON object")
    return list(tools)


def _object_schema(given: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments. Raises SchemaFault if no object fits it."""
    if "object" not in types_of(given):
        raise SchemaFault(f"its parameters are of type {str(given.get('type'))[:100]}, not object")
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return schema | given | {"type": "object"}


def _size(schema: Any) -> int:
    """Return the approximate number of subschemas."""
    count = 0
    ahead = [schema]
    while ahead:
        value = ahead.pop()
        if is_object(value):
            count += 1
            ahead += value.values()
        elif is_list(value):
            ahead += value
    return count


def _literal(text: str) -> str:
    """Return a text of a form in lark's syntax; $ID stands for any id."""
    parts = [_quoted(part) if part else "" for part in text.split(ID)]
    return " ID ".join(parts).strip() or '""'
