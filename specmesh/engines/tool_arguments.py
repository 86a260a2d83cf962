"""Rules of a grammar for arguments that are not JSON: values in a family's own syntax, or between
its marks."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from specmesh.core.fields import is_list, is_object
from specmesh.core.text.tool_calls import resolved
from specmesh.core.text.tool_formats import ToolFormat, raw_or_json
from specmesh.core.text.tool_values import ValueSyntax, written, written_name
from specmesh.engines.keeping import Keeping, json_rule, text_rule
from specmesh.engines.schema_document import is_object as is_any_object
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
    """Return the rules of the arguments that a schema allows, and in words all that they ignore.

    The first rule has the prefix as its name. Raises RequestError, and SchemaFault for what must be
    kept to and cannot be.
    """
    if form.syntax is not None:
        rules: _Rules = _SyntaxRules(form.syntax, prefix, schema, keeping)
    else:
        rules = _TaggedRules(form.tag, prefix, schema, keeping)
    made = list(rules.rules())
    escapes = form.syntax is not None and form.syntax.escapes
    kept = _OF_NUMBERS if escapes else _OF_NUMBERS | _TEXTS
    ignored = [f"{key} in this form of calls" for key in unkept_keywords(schema) if key not in kept]
    if ignored and keeping is Keeping.ALL:
        raise SchemaFault(ignored[0])
    return made, [*ignored, *rules.ignored]


_OF_NUMBERS = frozenset(
    ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
)
_TEXTS = frozenset(("format", "maxLength", "minLength", "pattern"))
_KEPT = frozenset(("additionalProperties", "anyOf", "oneOf", "properties", "required"))


def unkept_keywords(schema: Any) -> list[str]:
    """Return the keywords in a schema that its rules here do not keep to."""
    found = set[str]()
    subschemas = Subschemas(schema)
    ahead, seen = [schema], set[int]()
    while ahead:
        node = ahead.pop()
        if id(node) in seen or not is_any_object(node):
            continue
        seen.add(id(node))
        keywords = subschemas.keywords(node)
        found |= (keywords.keys() & CONSTRAINTS) - _KEPT
        ahead += subschemas.below(node)
    return sorted(found)


class _Rules:
    """The rules that were made for parts of a schema, each once, so that a part may contain
    itself."""

    def __init__(self, prefix: str, root: dict[str, Any], keeping: Keeping) -> None:
        self._prefix, self._root, self._keeping = prefix, root, keeping
        self.ignored: list[str] = []
        self._made: dict[str, str] = {}  # rules by their names
        self._names: dict[str, str] = {}  # of rules, by what they are for

    def rules(self) -> Iterator[str]:
        """Yield all rules, the arguments' first."""
        arguments = self._arguments()
        yield f"{self._prefix}: {arguments}"
        for name, rule in self._made.items():
            yield name + rule

    def _arguments(self) -> str:
        raise NotImplementedError

    def _rule(self, key: str) -> tuple[str, bool]:
        """Return the name of the rule for something, and whether it is still to be made."""
        if key in self._names:
            return self._names[key], False
        name = f"{self._prefix}_{len(self._names)}"
        self._names[key] = name
        return name, True

    def _number(self, schema: dict[str, Any]) -> str:
        """Return a rule for the numbers of a schema, which are JSON in every syntax."""
        said = {key: one for key, one in schema.items() if key in _OF_NUMBERS}
        kind = {"type": schema["type"]}
        made = json_rule(self._keeping, kind | said)
        if made is None:
            self.ignored += [f"{key} of a number" for key in said]
            return rule_of(kind)
        self.ignored += made.ignored
        return made.rule

    def _lexeme(self, schema: dict[str, Any], end: str) -> str:
        """Return the name of the rule for a text and its end; "" where any text fits the schema."""
        made = text_rule(self._keeping, schema, end)
        self.ignored += made.ignored
        if not made.rule:
            return ""
        name, new = self._rule(f"{made.rule} {end}")
        if new:
            self._made[name.upper()] = f": {made.rule}"
            self._made[f"{name}_text[lazy]"] = f": {name.upper()}"
        return f"{name}_text"

    def _resolved(self, schema: Any) -> dict[str, Any]:
        found = resolved(schema, self._root)
        return found if is_object(found) else {}

    def _alternatives(self, schema: dict[str, Any]) -> list[Any]:
        """Return the schemas of which a value fits one; none where the schema itself says what it
        is."""
        for keyword in ("anyOf", "oneOf"):
            if is_list(schema.get(keyword)) and schema[keyword]:
                return list(schema[keyword])
        types = schema.get("type")
        if is_list(types):
            return [schema | {"type": one} for one in types]
        return []


def _shape(schema: Mapping[str, Any]) -> str | None:
    """Return the type that a schema without one means by its keywords."""
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else None


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the only values that a schema allows, where it lists them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if is_list(values) else None


def _counts(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the least and the most items of a list."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    least = least if isinstance(least, int) and 0 <= least <= _MOST_ITEMS else 0
    return least, most if isinstance(most, int) and least <= most <= _MOST_ITEMS else None


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if is_object(properties) else {}


class _SyntaxRules(_Rules):
    """Rules for values in a syntax of the family's own."""

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
        return self._members("arguments", self._root, names, syntax.comma, other)

    def _members(
        self, key: str, schema: Any, names: dict[str, str], between: str, other: str
    ) -> str:
        """Return a rule for members in the order of their names, of which some may be left out.
        names: what begins each. other: a rule for members of any name, "" for none."""
        properties = _properties(schema)
        required = schema.get("required") or ()
        first = f"({other} ({_quoted(between)} {other})*)?" if other else '""'
        rest = f"({_quoted(between)} {other})*" if other else '""'
        for number, name in reversed(list(enumerate(names))):
            member = f"{_quoted(names[name])} {self._value(properties[name])}"
            before, after = (
                self._named(f"{key} {number} first"),
                self._named(f"{key} {number} rest"),
            )
            skipped = name not in required
            self._made[before] = f": {member} {rest}" + f" | {first}" * skipped
            self._made[after] = f": {_quoted(between)} {member} {rest}" + f" | {rest}" * skipped
            first, rest = before, after
        return first

    def _named(self, key: str) -> str:
        return self._rule(key)[0]

    def _value(self, schema: Any) -> str:
        """Return the name of the rule for the values of a schema."""
        key = json.dumps(schema, sort_keys=True)
        name, new = self._rule(key)
        if new:
            self._made[name] = ""
            self._made[name] = f": {self._written(self._resolved(schema), key)}"
        return name

    def _written(self, schema: dict[str, Any], key: str) -> str:
        syntax, choices = self._syntax, _choices(schema)
        if choices:
            return " | ".join(_quoted(written(one, syntax)) for one in choices)
        alternatives = self._alternatives(schema)
        if alternatives:
            return " | ".join(self._value(one) for one in alternatives)
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
                return self._object(schema, key)
            case _:
                return " | ".join(self._value({"type": one}) for one in _EVERY_TYPE)

    def _text_of(self, schema: dict[str, Any]) -> str:
        """Return a rule for a text between quotes that fits a schema, if texts have no escapes."""
        quote = self._syntax.quotes[0]
        lexeme = "" if self._syntax.escapes else self._lexeme(schema, quote)
        return f"{_quoted(quote)} {lexeme}" if lexeme else self._text()

    def _text(self) -> str:
        """Return a rule for a text between quotes."""
        syntax = self._syntax
        name, new = self._rule("text")
        if new and syntax.escapes:
            texts = [rf"{quote}([^{quote}\\]|\\(.|\n))*{quote}" for quote in syntax.quotes]
            self._made[name] = f": /{'|'.join(texts)}/"
        elif new:
            [quote] = syntax.quotes
            end = self._named("text end")
            self._made[f"{end}[lazy]"] = f": TEXT {_quoted(quote)}"
            self._made[name] = f": {_quoted(quote)} {end}"
        return name

    def _array(self, schema: dict[str, Any]) -> str:
        item = self._value(schema.get("items", {}))
        least, most = _counts(schema)
        more = f"{{{max(least - 1, 0)},{'' if most is None else max(most - 1, 0)}}}"
        items = f"{item} ({_quoted(self._syntax.item)} {item}){more}"
        if most == 0:
            return '"[]"'
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _object(self, schema: dict[str, Any], key: str) -> str:
        syntax, properties = self._syntax, _properties(schema)
        names = {name: self._member(name) for name in properties}
        additional = schema.get("additionalProperties", not properties)
        other = ""
        if additional is not False and not properties:
            value = self._value(additional if is_object(additional) else {})
            any_name = self._text() if syntax.quoted_names else _NAME
            other = f"{any_name} {_quoted(syntax.member)} {value}"
        members = self._members(key, schema, names, syntax.item, other)
        return f'"{{" {members} "}}"'

    def _member(self, name: str) -> str:
        syntax = self._syntax
        write = written if syntax.quoted_names else written_name
        return write(name, syntax) + syntax.member


class _TaggedRules(_Rules):
    """Rules for parameters whose items and members have marks as they have."""

    def __init__(self, tag: str, prefix: str, root: dict[str, Any], keeping: Keeping) -> None:
        super().__init__(prefix, root, keeping)
        self._tag = tag

    def _arguments(self) -> str:
        members = self._members(self._root)
        if members or self._root.get("additionalProperties", False) is False:
            return members or '""'
        self._any("")  # makes the rule of what stands behind a name
        other = f"{self._prefix.upper()}_OTHER"
        self._made[other] = rf': {_quoted(f"{self._tag}<")} /[^<>\n]{{1,64}}/ ">"'
        return f"({other} {self._rule('any')[0]})*"

    def _members(self, schema: Any) -> str:
        parts = list[str]()
        required = schema.get("required") or ()
        for name, one in _properties(schema).items():
            if re.search(r"[<>\n]", name):
                raise RequestError(
                    f"a parameter's name must have no '<', '>' or line break: not {name[:80]!r}"
                )
            part = f"{_quoted(f'{self._tag}<{name}>')} {self._value(one, name)}"
            parts.append(part if name in required else f"({part})?")
        return " ".join(parts)

    def _value(self, schema: Any, name: str) -> str:
        """Return the name of the rule for the values of a schema, and the mark that ends them."""
        rule, new = self._rule(f"{name} {json.dumps(schema, sort_keys=True)}")
        if new:
            self._made[rule] = ""
            self._made[rule] = f": {self._written(self._resolved(schema), name)}"
        return rule

    def _written(self, schema: dict[str, Any], name: str) -> str:
        end, choices = _quoted(f"{self._tag}</{name}>"), _choices(schema)
        if choices:
            return "(" + " | ".join(_quoted(raw_or_json(one)) for one in choices) + f") {end}"
        alternatives = self._alternatives(schema)
        if alternatives:
            return " | ".join(self._value(one, name) for one in alternatives)
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
                lexeme = self._lexeme(schema, self._tag)
                return f"{lexeme} {_quoted(f'</{name}>')}" if lexeme else self._text(name)
            case _:
                return self._any(name)

    def _items(self, schema: dict[str, Any]) -> str:
        least, most = _counts(schema)
        item = f"{_quoted(f'{self._tag}<item>')} {self._value(schema.get('items', {}), 'item')}"
        return f"({item}){{{least},{'' if most is None else most}}}"

    def _text(self, name: str) -> str:
        """Return a rule for a text up to the mark that ends it."""
        return f"{self._free()} {_quoted(f'</{name}>')}"

    def _free(self) -> str:
        """Return the name of a rule for any text up to the next tag, and that."""
        rule, new = self._rule("free")
        if new:
            self._made[f"{rule}[lazy]"] = f": TEXT {_quoted(self._tag)}"
        return rule

    def _any(self, name: str) -> str:
        """Return a rule for a text, or any members or items, up to the mark that ends them."""
        node, new = self._rule("any")
        child, end = rf'"<" /[^<>\n]{{1,64}}/ ">" {node}', r'"</" /[^<>\n]{1,64}/ ">"'
        children = f"{child} ({_quoted(self._tag)} {child})* {_quoted(self._tag)}"
        if new:
            self._made[node] = f": {self._free()} ({end} | {children} {end})"
        close = _quoted(f"</{name}>")
        return f"{self._free()} ({close} | {children} {close})"
