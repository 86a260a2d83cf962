"""The grammar of calls of tools: free text up to a mark, and after it nothing but calls.

No tool's schema refuses a request. Arguments keep to as much of it as can be kept to; a tool for
which nothing can be, or that makes the grammar too large, has any arguments. Which these are is a
function of the tools alone: a text that is gone on with elsewhere has the same grammar.
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
"""Of all tools: the library numbers a grammar's symbols in 16 bits, and takes some six for each."""

_UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, RecursionError, RequestError)
_ANY = {"type": "object", "additionalProperties": True}
_JSON_PART = re.compile(r'[{}]|"[^"]*"|: |, |[^{}":, ]+')


def tool_grammar(
    request: Mapping[str, Any], *, loose: bool = False
) -> tuple[str, dict[str, list[str]]]:
    """Return the grammar that a request of kind `tools` asks for, and in words what of the tools'
    schemas it does not keep to, by their names. loose: keep only to those that must be kept to.
    Raises RequestError."""
    try:
        return _ToolGrammar(request).fitting(loose=loose)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RequestError(f"it does not describe tools: {type(error).__name__}: {error}") from None


class _ToolGrammar:
    """A request, and the rules of each tool's arguments that were made for it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._form: ToolFormat = FORMATS[request["format"]]
        self._choice, self._parallel = request["choice"], request["parallel"] is True
        self._thinking = str(request["thinking"])
        self._schema = request.get("schema") if self._choice == "auto" else None
        self._tools = _chosen(request["tools"], self._choice)
        self._strict = set(request.get("strict", ()))
        self._made: dict[tuple[int, Keeping], tuple[list[str], list[str]]] = {}

    def fitting(self, *, loose: bool) -> tuple[str, dict[str, list[str]]]:
        """Return the grammar that keeps to most of the schemas, and what it does not keep to."""
        head = list(self._head())
        error = ""
        for keeping in [self._least()] if loose else self._ways():
            made = self._arguments_of(keeping)
            if made is None:
                continue
            rules = [*head, *(rule for one, _ in made for rule in one)]
            lark = "".join(f"{rule}\n" for rule in rules)
            tried = matcher_of(lark)
            if not tried.is_error():
                ignored = {self._tools[at]["name"]: one for at, (_, one) in enumerate(made) if one}
                return lark, ignored
            error = describe(tried.get_error())
        raise RequestError(error)

    def _ways(self) -> Iterator[list[Keeping]]:
        """Yield how much of each tool's schema to keep to, less and less."""
        first = self._each(Keeping.UNTRIED)
        sizes = [_size(tool.get("parameters")) for tool in self._tools]
        by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
        room, kept = _MOST_SUBSCHEMAS, 0
        for at in by_size:
            room -= sizes[at]
            kept += room >= 0
        yield self._without(first, by_size[kept:])
        some = self._each(Keeping.SOME)
        while kept:
            yield self._without(some, by_size[kept:])
            kept //= 2
        yield self._least()

    def _each(self, keeping: Keeping) -> list[Keeping]:
        """Keep so much to each tool's schema, but all to those that must be kept to."""
        strict = self._strict
        return [Keeping.ALL if tool["name"] in strict else keeping for tool in self._tools]

    def _least(self) -> list[Keeping]:
        return self._each(Keeping.NOTHING)

    def _without(self, keeping: Sequence[Keeping], tools: list[int]) -> list[Keeping]:
        """Keep to nothing of these tools' schemas, but for those that must be kept to."""
        less = list(keeping)
        for at in tools:
            if keeping[at] is not Keeping.ALL:
                less[at] = Keeping.NOTHING
        return less

    def _arguments_of(self, keeping: list[Keeping]) -> list[tuple[list[str], list[str]]] | None:
        """Return each tool's rules and, in words, the parts of its schema that they do not keep to.
        None where a schema has no rules that keep to all of it, and must have."""
        made = list[tuple[list[str], list[str]]]()
        for at, one in enumerate(keeping):
            try:
                made.append(self._tool(at, one))
            except SchemaFault as fault:
                if one is Keeping.ALL:
                    name = self._tools[at]["name"]
                    raise RequestError(
                        f"{name} has strict, which cannot be kept: {fault}"
                    ) from None
                return None
        return made

    def _tool(self, at: int, keeping: Keeping) -> tuple[list[str], list[str]]:
        """Return a tool's rules, and in words what they do not keep to. Raises SchemaFault."""
        if (at, keeping) not in self._made:
            rules, ignored = self._given(at, keeping)
            self._made[at, keeping] = [*rules, *self._call(at)], ignored
        return self._made[at, keeping]

    def _given(self, at: int, keeping: Keeping) -> tuple[list[str], list[str]]:
        """Return the rules of a tool's arguments, and in words what they do not keep to."""
        name = f"given{at}"
        schema: dict[str, Any] = self._tools[at].get("parameters") or {}
        if keeping is not Keeping.SOME:
            return self._kept(name, schema, keeping)
        try:
            return self._tried(name, schema, Keeping.UNTRIED)
        except SchemaFault:
            pass  # as most schemas are kept to whole, that is tried first
        try:
            return self._tried(name, schema, Keeping.SOME)
        except SchemaFault as fault:
            return self._any(name), [str(fault)]

    def _tried(
        self, name: str, schema: dict[str, Any], keeping: Keeping
    ) -> tuple[list[str], list[str]]:
        """Return the rules of a tool's arguments that the library takes. Raises SchemaFault."""
        rules, ignored = self._kept(name, schema, keeping)
        tried = matcher_of("\n".join([f"start: {name}", *rules, *self._shared()]))
        if tried.is_error():
            raise SchemaFault(describe(tried.get_error()))
        return rules, ignored

    def _call(self, at: int) -> Iterator[str]:
        """Yield the rules of a call from the tool's name on."""
        form, begin = self._form, self._tools[at]["name"] + self._form.after
        yield f"call{at}: {_literal(begin)} args{at}"
        yield f"args{at}: given{at} {_literal(form.end)}"
        if form.bare and self._schema is not None:
            parts = " ".join(map(_quoted, _JSON_PART.findall(form.head + begin)))
            yield f"bare{at}: {parts} given{at} {_quoted(form.end)}"
        elif form.bare and self._choice == "auto":
            # lazy to the end of the name: another object with one is text
            yield f"bare{at}: name{at} args{at}"
            yield f"name{at}[lazy]: {_quoted(form.head + begin)}"
        elif form.bare:
            yield f"bare{at}: {_quoted(form.head)} call{at}"

    def _kept(
        self, name: str, given: dict[str, Any], keeping: Keeping
    ) -> tuple[list[str], list[str]]:
        """Return rules that keep to a schema, the first of this name, and what they ignore."""
        if keeping is Keeping.NOTHING:
            return self._any(name), ["all of its schema: the tools are too large together"]
        try:
            return self._rules(name, _object_schema(given), keeping)
        except _UNREADABLE as error:
            raise SchemaFault(f"its schema cannot be read: {error}") from None

    def _rules(
        self, name: str, schema: dict[str, Any], keeping: Keeping
    ) -> tuple[list[str], list[str]]:
        """Return rules by the model's form of calls. Raises SchemaFault, and what schemas that are
        none lead to."""
        form = self._form
        if form.syntax is not None or form.tag:
            return argument_rules(form, name, schema, keeping)
        if form.parameter:
            marked = MarkedParameters(form, name, schema, keeping)
            return list(marked.rules()), marked.ignored
        made = json_rule(keeping, schema)
        if made is None:
            raise SchemaFault("all of its schema")
        return [f"{name}: {made.rule}"], list(made.ignored)

    def _any(self, name: str) -> list[str]:
        """Return rules of any arguments."""
        form = self._form
        if form.syntax is not None or form.tag:
            return argument_rules(form, name, _ANY, Keeping.NOTHING)[0]
        if form.parameter:
            return list(MarkedParameters(form, name, _ANY, Keeping.NOTHING).rules())
        return [f"{name}: any_object"]

    def _head(self) -> Iterator[str]:
        """Yield the rules of all but the arguments."""
        form, choice = self._form, self._choice
        numbers = range(len(self._tools))
        calls = "".join(f" | bare{at}" for at in numbers) if form.bare else ""
        yield from start_rules(self._thinking, free=choice == "auto" and self._schema is None)
        if choice == "auto" and self._schema is None:
            yield f"body: TEXT | trigger rest calls{calls}"
            yield f"trigger[lazy]: TEXT {_quoted(form.trigger)}"
            yield f"rest: {_literal(form.start.removeprefix(form.trigger))}"
        elif self._schema is not None:
            yield f"body: answer | {_literal(form.start)} calls{calls}"
            yield answer_rule(self._thinking)
            yield f"content: {_answer(self._schema)}"
        else:
            yield f"body: {_literal(form.start)} calls{calls}"
        several = self._parallel and form.between is not None and not is_object(choice)
        more = f" ({_literal((form.between or '') + form.head)} call)*" * several
        yield f"calls: call{more} {_quoted(form.closing)}"
        yield "call: " + " | ".join(f"call{at}" for at in numbers)
        if form.ids:
            yield f"ID: /{form.ids}/"
        yield from self._shared()

    def _shared(self) -> Iterator[str]:
        """Yield the rules that those of arguments may need."""
        form = self._form
        if form.parameter and not form.tag:
            yield any_text_rule(form)
        yield f"any_object: {rule_of({'type': 'object'})}"
        yield f"any_json: {rule_of({})}"
        yield TEXT + f" & ~/{form.never}/" * bool(form.never)


def _answer(schema: Any) -> str:
    """Return the rule of a text that calls no tool."""
    try:
        return strict(schema)
    except SchemaFault as fault:
        raise RequestError(str(fault), "json_schema") from None


def _chosen(tools: Any, choice: Any) -> list[Mapping[str, Any]]:
    """Return the tools that may be called. Raises RequestError for those that nobody can call."""
    names = [tool["name"] for tool in tools]
    for name in names:
        if not _TOOL_NAME.fullmatch(name):
            raise RequestError(
                f"a tool's name has at most 64 letters, digits, '_', '-' and '.': not {name[:80]!r}"
            )
    if len(set(names)) < len(names):
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
    """Return the schema of a tool's arguments. Raise SchemaFault for one that no object fits."""
    if "object" not in types_of(given):
        raise SchemaFault(f"its parameters are of type {str(given.get('type'))[:100]}, not object")
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return schema | given | {"type": "object"}


def _size(schema: Any) -> int:
    """Return how many subschemas a schema has, about."""
    count, ahead = 0, [schema]
    while ahead:
        value = ahead.pop()
        if is_object(value):
            count += 1
            ahead += value.values()
        elif is_list(value):
            ahead += value
    return count


def _literal(text: str) -> str:
    """Return a text of a form in lark's syntax, with any id in the place of $ID."""
    parts = [_quoted(part) if part else "" for part in text.split(ID)]
    return " ID ".join(parts).strip() or '""'
