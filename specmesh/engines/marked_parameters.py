"""Rules of a grammar for arguments that each stand between a family's marks."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specmesh.core.text.tool_calls import resolved, types_of
from specmesh.core.text.tool_formats import STRING, TYPE, ToolFormat
from specmesh.engines.keeping import Keeping, json_rule, text_rule
from specmesh.engines.schema_choices import values_of
from specmesh.engines.schema_document import is_list, is_object
from specmesh.engines.schema_keywords import CONSTRAINTS, SchemaFault
from specmesh.engines.schema_places import Subschemas, required_names
from specmesh.engines.schema_strings import literal

_quoted = json.dumps

_PARAMETERS = "x-parameters"
"""The key under which a schema holds that of one parameter, to be written by itself."""

_JSON_TYPES = ("array", "boolean", "null", "number", "object", "string")


class MarkedParameters:
    """Makes the rules of one tool's arguments, whose names begin with `prefix`.

    ignored: in words, the parts of the schema that the rules do not keep to. Raises SchemaFault
        for a part that they must keep to and cannot.
    """

    def __init__(
        self, form: ToolFormat, prefix: str, schema: dict[str, Any], keeping: Keeping
    ) -> None:
        self._form = form
        self._prefix = prefix
        self._keeping = keeping
        self._root = schema
        self.ignored: list[str] = []
        self._extra: list[str] = []  # rules after that of the arguments

    def rules(self) -> Iterator[str]:
        """Yield the rules, that of the arguments first."""
        subschemas = Subschemas(self._root)
        place = subschemas.place([self._root])
        required = required_names(subschemas.behind(self._root))
        names = dict.fromkeys([*place.declared, *sorted(required)])
        parts = list[str]()
        for name in names if self._keeping is not Keeping.NOTHING else ():
            if not self._can_hold(name):
                self._give_up(f"a parameter named {name[:80]!r} has no place between these marks")
                continue
            part = self._parameter(name, place.property(name).roots)
            parts.append(part if name in required else f"({part})?")
        if self._keeping is Keeping.NOTHING or place.names is None:
            parts.append(self._others([*names]))
        yield f"{self._prefix}: {' '.join(parts) or _quoted('')}"
        yield from self._extra

    def _give_up(self, why: str) -> None:
        if self._keeping is Keeping.ALL:
            raise SchemaFault(why)
        self.ignored.append(why)

    def _can_hold(self, name: str) -> bool:
        """Return True if a parser finds the end of a name."""
        middle = self._form.param_middle
        end = middle.partition(STRING)[0].partition(TYPE)[0]
        return (name + end).find(end) == len(name)

    def _parameter(self, name: str, roots: tuple[Any, ...]) -> str:
        """Return the rule of one parameter with its marks."""
        schema: Any = roots[0] if roots else {}
        if len(roots) > 1:
            schema = {"anyOf": [*roots]}
        begin = self._form.param_begin + name
        values = self._values(name, schema)
        ways = [f"{_quoted(begin + middle)} {value}" for middle, value in values]
        return f"({' | '.join(ways)})"

    def _values(self, name: str, schema: Any) -> Iterator[tuple[str, str]]:
        """Yield the marks before each kind of value, and the rule of the value.

        Marks that do not distinguish texts from other values are of one kind.
        """
        middle = self._form.param_middle
        types = _types(schema, self._root)
        others = sorted(types - {"string"})
        narrowed = schema
        if "string" in types:
            narrowed = {"allOf": [schema, {"type": others}]}
        if TYPE in middle:
            for kind in others:
                one = {"allOf": [schema, {"type": kind}]}
                yield _of_kind(middle, kind), self._json(name, one)
        elif others and STRING in middle:
            yield _of_kind(middle, "object"), self._json(name, narrowed)
        elif "string" not in types:
            yield middle, self._json(name, narrowed)
        if "string" in types:
            text = self._text(name, schema)
            if text != _ANY_TEXT and others and middle == _of_kind(middle, "string"):
                text = f"({text} | {self._json(name, narrowed)})"
            yield _of_kind(middle, "string"), text

    def _json(self, name: str, schema: Any) -> str:
        """Return the rule of a value that is JSON, and of the mark behind it."""
        root = self._root | {_PARAMETERS: {name: schema}}
        compiled = json_rule(self._keeping, root, (_PARAMETERS, name))
        if compiled is None:
            self._give_up(f"{name}: all of its schema")
            return f"any_json {_quoted(self._form.param_end)}"
        for reason in compiled.ignored:
            place = reason.removeprefix(f"{_PARAMETERS}.{name}.")
            self.ignored.append(f"{name}: {place}")
        return f"{compiled.rule} {_quoted(self._form.param_end)}"

    def _text(self, name: str, schema: Any) -> str:
        """Return the rule of a value that is a text, and of the mark behind it."""
        untyped = not _known_types(schema, self._root) and is_object(schema)
        if untyped and schema.keys() & (CONSTRAINTS | {"$ref", "items", "type"}):
            self._give_up(f"{name}: its type is not known, so that it is any text")
        ways = [self._text_of(name, option) for option in _text_options(schema, self._root)]
        if not ways or _ANY_TEXT in ways:
            return _ANY_TEXT
        return f"({' | '.join(ways)})"

    def _text_of(self, name: str, option: Mapping[str, Any]) -> str:
        """Return the rule of a text that fits one schema."""
        end = self._form.param_end
        choices = values_of(option) or ()
        texts = [value for value in choices if isinstance(value, str)]
        if texts:
            return " | ".join(_quoted(text + end) for text in texts)
        try:
            compiled = text_rule(self._keeping, option, end)
        except SchemaFault as fault:
            raise SchemaFault(f"{name}: {fault}") from None
        self.ignored += [f"{name}: {reason}" for reason in compiled.ignored]
        if not compiled.rule:
            return _ANY_TEXT
        return self._lexeme(compiled.rule)

    def _lexeme(self, terminal: str) -> str:
        """Return the name of a rule for a text with the mark that ends it."""
        rule = f"{self._prefix}_{len(self._extra)}"
        self._extra.append(f"{rule}[lazy]: {rule.upper()}")
        self._extra.append(f"{rule.upper()}: {terminal}")
        return rule

    def _others(self, names: list[str]) -> str:
        """Return the rule of any number of parameters of other names."""
        prefix = self._prefix.upper()
        middle = self._form.param_middle
        name_rule = f"{prefix}_NAME: {_OTHER_NAME}"
        if names:
            taken = "|".join(map(literal, names))
            name_rule += f" & ~/({taken})/"
        self._extra.append(name_rule)
        value = f"any_json {_quoted(self._form.param_end)}"
        ends = {_of_kind(middle, kind): value for kind in _JSON_TYPES}
        ends[_of_kind(middle, "string")] = _ANY_TEXT
        ways = list[str]()
        for after, value in ends.items():
            mark = f"{prefix}_{len(self._extra)}"
            begin = _quoted(self._form.param_begin)
            self._extra.append(f"{mark}: {begin} {prefix}_NAME {_quoted(after)}")
            ways.append(f"{mark} {value}")
        return f"({' | '.join(ways)})*"


_ANY_TEXT = "value"
"""The rule of any text up to the mark behind a parameter."""

_OTHER_NAME = r'/[^<>\n"]{1,100}/'


def any_text_rule(form: ToolFormat) -> str:
    return f"{_ANY_TEXT}[lazy]: TEXT {_quoted(form.param_end)}"


def _known_types(schema: Any, root: Any) -> set[str]:
    """Return the types by which a parser reads a value; none if it knows none."""
    try:
        types = types_of(schema, root)
    except (TypeError, KeyError):
        return set()
    if "integer" in types:
        types = types | {"number"}
    return types & set(_JSON_TYPES)


def _types(schema: Any, root: Any) -> set[str]:
    return _known_types(schema, root) or set(_JSON_TYPES)


def _text_options(schema: Any, root: Any) -> list[Mapping[str, Any]]:
    """Return the alternatives of a schema that are texts."""
    found = resolved(schema, root)
    if not is_object(found):
        return []
    for key in ("anyOf", "oneOf"):
        options = found.get(key)
        if is_list(options):
            texts = list[Mapping[str, Any]]()
            for option in options:
                if "string" in _types(option, root):
                    texts += _text_options(option, root)
            return texts or [{}]
    return [found]


def _of_kind(middle: str, kind: str) -> str:
    """Return the marks before a value of a JSON type."""
    is_text = "true" if kind == "string" else "false"
    middle = middle.replace(STRING, is_text)
    return middle.replace(TYPE, kind)
