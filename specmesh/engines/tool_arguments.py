"""Rules of a grammar for arguments that are not JSON.

Values are in a syntax of the model family, or between its marks.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specmesh.core.fields import is_list
from specmesh.core.text.tool_calls import resolved
from specmesh.core.text.tool_formats import ToolFormat
from specmesh.core.text.tool_values import ValueSyntax, written, written_name
from specmesh.core.text.tool_writing import raw_or_json
from specmesh.engines.keeping import Keeping, json_rule, text_rule
from specmesh.engines.schema_choices import values_of
from specmesh.engines.schema_document import as_object, is_object
from specmesh.engines.schema_faults import rule_of
from specmesh.engines.schema_keywords import CONSTRAINTS, SchemaFault
from specmesh.engines.schema_places import Subschemas
from specmesh.errors import RequestError

_quoted = json.dumps

_EVERY_TYPE = ("string", "number", "boolean", "null", "array", "object")
_NAME = r"/[\w-]{1,64}/"
_MOST_ITEMS = 2**16


def argument_rules(
    form: ToolFormat, prefix: str, schema: dict[str, Any], keeping: Keeping
) -> tuple[list[str], list[str]]:
    """Return the rules of the arguments that a schema allows, and in words the ignored parts.

    The first rule has the prefix as its name. Raises RequestError, and SchemaFault for a part that
    must be kept to and cannot.
    """
    if form.syntax is not None:
        rules: _Rules = _SyntaxRules(form.syntax, prefix, schema, keeping)
    else:
        rules = _TaggedRules(form.tag, prefix, schema, keeping)
    lines = list(rules.rules())
    kept = _OF_NUMBERS | _TEXTS
    if form.syntax is not None and form.syntax.escapes:
        kept = _OF_NUMBERS
    unkept = sorted(unkept_keywords(schema) - kept)
    ignored = [f"{keyword} in this form of calls" for keyword in unkept]
    if ignored and keeping is Keeping.ALL:
        raise SchemaFault(ignored[0])
    return lines, ignored + rules.ignored


_OF_NUMBERS = frozenset(
    ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
)
_TEXTS = frozenset(("format", "maxLength", "minLength", "pattern"))
_KEPT = frozenset(("additionalProperties", "anyOf", "oneOf", "properties", "required"))


def unkept_keywords(schema: Any) -> set[str]:
    """Return the keywords in a schema that the rules of this module ignore."""
    found = set[str]()
    seen = set[int]()
    subschemas = Subschemas(schema)
    ahead = [schema]
    while ahead:
        node = ahead.pop()
        if id(node) in seen or not is_object(node):
            continue
        seen.add(id(node))
        keywords = subschemas.keywords(node)
        found |= (keywords.keys() & CONSTRAINTS) - _KEPT
        ahead += subschemas.below(node)
    return found


class _Rules(ABC):
    """The rules of the parts of a schema.

    Each part has one rule, so that a part may contain itself.
    """

    def __init__(self, prefix: str, root: dict[str, Any], keeping: Keeping) -> None:
        self._prefix = prefix
        self._root = root
        self._keeping = keeping
        self.ignored: list[str] = []
        self._made: dict[str, str] = {}  # rules by their names
        self._names: dict[str, str] = {}  # names of rules by their keys

    def rules(self) -> Iterator[str]:
        """Yield all rules, that of the arguments first."""
        arguments = self._arguments()
        yield f"{self._prefix}: {arguments}"
        for name, rule in self._made.items():
            yield name + rule

    @abstractmethod
    def _arguments(self) -> str:
        """Return the name of the rule for the arguments."""

    @abstractmethod
    def _written(self, schema: dict[str, Any], name: str) -> str:
        """Return the name of the rule for the values of a schema as the form writes them."""

    def _value(self, schema: Any, name: str = "") -> str:
        """Return the name of the rule for the values of a schema, those of a parameter's name."""
        rule, is_new = self._rule(f"{name} {json.dumps(schema, sort_keys=True)}")
        if is_new:
            target = as_object(resolved(schema, self._root))
            self._made[rule] = f": {self._written(target, name)}"
        return rule

    def _rule(self, key: str) -> tuple[str, bool]:
        """Return the name of the rule with this key, and True if it is still to be made."""
        if key in self._names:
            return self._names[key], False
        name = f"{self._prefix}_{len(self._names)}"
        self._names[key] = name
        return name, True

    def _number(self, schema: dict[str, Any]) -> str:
        """Return a rule for the numbers of a schema, which are JSON in every syntax."""
        kind = {"type": schema["type"]}
        bounds = {key: schema[key] for key in schema if key in _OF_NUMBERS}
        compiled = json_rule(self._keeping, kind | bounds)
        if compiled is None:
            self.ignored += [f"{key} of a number" for key in bounds]
            return rule_of(kind)
        self.ignored += compiled.ignored
        return compiled.rule

    def _lexeme(self, schema: dict[str, Any], end: str) -> str:
        """Return the name of the rule for a text and its end; "" if any text fits the schema."""
        compiled = text_rule(self._keeping, schema, end)
        self.ignored += compiled.ignored
        if not compiled.rule:
            return ""
        name, is_new = self._rule(f"{compiled.rule} {end}")
        if is_new:
            self._made[name.upper()] = f": {compiled.rule}"
            self._made[f"{name}_text[lazy]"] = f": {name.upper()}"
        return f"{name}_text"

    def _alternatives(self, schema: dict[str, Any]) -> list[Any]:
        """Return the schemas of which a value fits one; none for a schema without alternatives."""
        for keyword in ("anyOf", "oneOf"):
            if is_list(schema.get(keyword)) and schema[keyword]:
                return list(schema[keyword])
        types = schema.get("type")
        if is_list(types):
            return [schema | {"type": name} for name in types]
        return []


def _shape(schema: Mapping[str, Any]) -> str | None:
    """Return the type that the keywords of a schema imply, if it names none."""
    if "properties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    return None


def _counts(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the least and the most items of a list; None: there is no limit."""
    least = schema.get("minItems", 0)
    if not isinstance(least, int) or not 0 <= least <= _MOST_ITEMS:
        least = 0
    most = schema.get("maxItems")
    if not isinstance(most, int) or not least <= most <= _MOST_ITEMS:
        return least, None
    return least, most


def _either(ways: Iterable[str]) -> str:
    return " | ".join(ways)


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    return as_object(schema.get("properties"))


class _SyntaxRules(_Rules):
    """Rules for values in a syntax of the model family."""

    def __init__(
        self, syntax: ValueSyntax, prefix: str, root: dict[str, Any], keeping: Keeping
    ) -> None:
        super().__init__(prefix, root, keeping)
        self._syntax = syntax

    def _arguments(self) -> str:
        syntax = self._syntax
        names = {
            name: written_name(name, syntax) + syntax.assign for name in _properties(self._root)
        }
        other = ""
        if not names and self._root.get("additionalProperties", False) is not False:
            other = f"{_NAME} {_quoted(syntax.assign)} {self._value({})}"
        return self._members(self._root, names, syntax.comma, other)

    def _members(self, schema: Any, names: dict[str, str], between: str, other: str) -> str:
        """Return a rule for members in the order of their names. Optional ones may be left out.

        names: the beginning of each member by its name.
        between: the text between two members.
        other: a rule for members of other names, "" for none.
        """
        comma = _quoted(between)
        key = f"{comma} {names} {json.dumps(schema, sort_keys=True)}"
        properties = _properties(schema)
        required = schema.get("required") or ()
        first = '""'
        rest = '""'
        if other:
            first = f"({other} ({comma} {other})*)?"
            rest = f"({comma} {other})*"
        for number, name in reversed(list(enumerate(names))):
            member = f"{_quoted(names[name])} {self._value(properties[name])}"
            begin = f": {member} {rest}"
            follow = f": {comma} {member} {rest}"
            if name not in required:
                begin += f" | {first}"
                follow += f" | {rest}"
            first = self._named(f"{key} {number} first")
            rest = self._named(f"{key} {number} rest")
            self._made[first] = begin
            self._made[rest] = follow
        return first

    def _named(self, key: str) -> str:
        return self._rule(key)[0]

    def _written(self, schema: dict[str, Any], name: str) -> str:  # noqa: ARG002
        syntax = self._syntax
        choices = values_of(schema)
        if choices:
            return _either(_quoted(written(value, syntax)) for value in choices)
        alternatives = self._alternatives(schema)
        if alternatives:
            return _either(map(self._value, alternatives))
        match schema.get("type", _shape(schema)):
            case "string":
                return self._text_of(schema)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return f"{_quoted(syntax.true)} | {_quoted(syntax.false)}"
            case "null":
                return _quoted(syntax.null)
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
            case _:
                return _either(self._value({"type": kind}) for kind in _EVERY_TYPE)

    def _text_of(self, schema: dict[str, Any]) -> str:
        """Return a rule for a text between quotes; texts without escapes keep to the schema."""
        quote = self._syntax.quotes[0]
        lexeme = ""
        if not self._syntax.escapes:
            lexeme = self._lexeme(schema, quote)
        if not lexeme:
            return self._text()
        return f"{_quoted(quote)} {lexeme}"

    def _text(self) -> str:
        """Return a rule for a text between quotes."""
        syntax = self._syntax
        name, is_new = self._rule("text")
        if is_new and syntax.escapes:
            texts = [rf"{quote}([^{quote}\\]|\\(.|\n))*{quote}" for quote in syntax.quotes]
            self._made[name] = f": /{'|'.join(texts)}/"
        elif is_new:
            [quote] = syntax.quotes
            end = self._named("text end")
            self._made[f"{end}[lazy]"] = f": TEXT {_quoted(quote)}"
            self._made[name] = f": {_quoted(quote)} {end}"
        return name

    def _array(self, schema: dict[str, Any]) -> str:
        item = self._value(schema.get("items", {}))
        least, most = _counts(schema)
        if most == 0:
            return '"[]"'
        limit = "" if most is None else most - 1
        more = f"{{{max(least - 1, 0)},{limit}}}"
        items = f"{item} ({_quoted(self._syntax.item)} {item}){more}"
        if not least:
            items = f"({items})?"
        return f'"[" {items} "]"'

    def _object(self, schema: dict[str, Any]) -> str:
        syntax = self._syntax
        properties = _properties(schema)
        names = {name: self._member(name) for name in properties}
        additional = schema.get("additionalProperties", not properties)
        other = ""
        if additional is not False and not properties:
            value = self._value(as_object(additional))
            any_name = self._text() if syntax.quoted_names else _NAME
            other = f"{any_name} {_quoted(syntax.member)} {value}"
        members = self._members(schema, names, syntax.item, other)
        return f'"{{" {members} "}}"'

    def _member(self, name: str) -> str:
        syntax = self._syntax
        if syntax.quoted_names:
            return written(name, syntax) + syntax.member
        return written_name(name, syntax) + syntax.member


class _TaggedRules(_Rules):
    """Rules for parameters between marks, whose items and members have marks, too."""

    def __init__(self, tag: str, prefix: str, root: dict[str, Any], keeping: Keeping) -> None:
        super().__init__(prefix, root, keeping)
        self._tag = tag

    def _arguments(self) -> str:
        members = self._members(self._root)
        if members or self._root.get("additionalProperties", False) is False:
            return members or '""'
        self._any("")  # makes the rule of the text behind a name
        other = f"{self._prefix.upper()}_OTHER"
        self._made[other] = rf': {_quoted(f"{self._tag}<")} /[^<>\n]{{1,64}}/ ">"'
        return f"({other} {self._rule('any')[0]})*"

    def _members(self, schema: Any) -> str:
        parts = list[str]()
        required = schema.get("required") or ()
        for name, value in _properties(schema).items():
            if re.search(r"[<>\n]", name):
                rule = "must have no '<', '>' or line break"
                raise RequestError(f"a parameter's name {rule}: not {name[:80]!r}")
            part = f"{_quoted(f'{self._tag}<{name}>')} {self._value(value, name)}"
            parts.append(part if name in required else f"({part})?")
        return " ".join(parts)

    def _written(self, schema: dict[str, Any], name: str) -> str:
        """Return a rule for a value, and the mark that ends it."""
        end = _quoted(f"{self._tag}</{name}>")
        choices = values_of(schema)
        if choices:
            values = _either(_quoted(raw_or_json(value)) for value in choices)
            return f"({values}) {end}"
        alternatives = self._alternatives(schema)
        if alternatives:
            return _either(self._value(each, name) for each in alternatives)
        match schema.get("type", _shape(schema)):
            case "integer" | "number":
                return f"{self._number(schema)} {end}"
            case "boolean":
                return f'("true" | "false") {end}'
            case "null":
                return f'"null" {end}'
            case "array":
                return f"{self._items(schema)} {end}"
            case "object" if _properties(schema):
                return f"{self._members(schema)} {end}"
            case "string":
                lexeme = self._lexeme(schema, self._tag) or self._free()
                return f"{lexeme} {_quoted(f'</{name}>')}"
            case _:
                return self._any(name)

    def _items(self, schema: dict[str, Any]) -> str:
        least, most = _counts(schema)
        value = self._value(schema.get("items", {}), "item")
        item = f"{_quoted(f'{self._tag}<item>')} {value}"
        limit = "" if most is None else most
        return f"({item}){{{least},{limit}}}"

    def _free(self) -> str:
        """Return the name of a rule for any text up to the next tag, the tag included."""
        rule, is_new = self._rule("free")
        if is_new:
            self._made[f"{rule}[lazy]"] = f": TEXT {_quoted(self._tag)}"
        return rule

    def _any(self, name: str) -> str:
        """Return a rule for a text, or any members or items, up to the mark that ends them."""
        node, is_new = self._rule("any")
        child = rf'"<" /[^<>\n]{{1,64}}/ ">" {node}'
        end = r'"</" /[^<>\n]{1,64}/ ">"'
        children = f"{child} ({_quoted(self._tag)} {child})* {_quoted(self._tag)}"
        if is_new:
            self._made[node] = f": {self._free()} ({end} | {children} {end})"
        close = _quoted(f"</{name}>")
        return f"{self._free()} ({close} | {children} {close})"
