"""Keywords of JSON Schema, and in other words those that llguidance reads in another way."""

from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from specmesh.engines.schema_document import Schema, is_list, is_object
from specmesh.engines.schema_strings import CALENDAR, FORMAT_REGEXES, pattern, whole

ANNOTATIONS = frozenset(
    (
        *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions"),
        *("deprecated", "description", "examples", "id", "readOnly", "title", "writeOnly"),
        "x-guidance",
    )
)
OF_OBJECTS = frozenset(
    (
        *("additionalProperties", "maxProperties", "minProperties", "patternProperties"),
        *("properties", "required", "unevaluatedProperties"),
    )
)
OF_TEXTS = frozenset(
    (
        *("allOf", "anyOf", "format", "if", "maxLength", "minLength", "not", "oneOf", "pattern"),
        "$dynamicRef",
    )
)
"""Keywords that can forbid a text, besides those that say all of it."""

_OF_OTHERS = frozenset(
    (
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "maxContains"),
        *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minContains", "minimum"),
        *("multipleOf", "prefixItems", "propertyNames", "unevaluatedItems", "uniqueItems"),
    )
)
CONSTRAINTS = OF_OBJECTS | OF_TEXTS | _OF_OTHERS
"""Keywords that can forbid a value."""


class SchemaFault(Exception):
    """A schema has what cannot be kept to; the message says what."""


def plain_keywords(node: dict[str, Any]) -> Schema:
    """Return a subschema without what says nothing, and with what the library needs otherwise."""
    kept: Schema = {key: value for key, value in node.items() if key not in ANNOTATIONS}
    for rewrite in _REWRITES:
        kept = rewrite(kept)
        if not is_object(kept):
            return kept
    return kept


_PARTNERS = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}
"""Keywords that say nothing without another."""


def _without_empty(node: dict[str, Any]) -> Schema:
    """Leave out keywords that allow everything. No value fits `not: {}`."""
    if node.get("not") in (True, {}):
        return False
    kept = dict[str, Any]()
    for key, value in node.items():
        partner = _PARTNERS.get(key, key)
        if partner in node and not _says_nothing(key, value):
            kept[key] = value
    if not kept.keys() & {"then", "else"}:
        kept.pop("if", None)
    return kept


def _says_nothing(key: str, value: Any) -> bool:
    """Return whether a keyword allows everything by its value."""
    match key:
        case "uniqueItems" | "not":
            return value is False
        case "propertyNames":
            return value is True or value in ({}, {"type": "string"})
        case "unevaluatedProperties" | "unevaluatedItems":
            return value in (True, {})
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return is_object(value) and not value
        case "format":
            return isinstance(value, str) and value == "unknown"
        case _:
            return False


_BOUNDS = {
    "minimum": ROUND_CEILING,
    "exclusiveMinimum": ROUND_CEILING,
    "maximum": ROUND_FLOOR,
    "exclusiveMaximum": ROUND_FLOOR,
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def _in_doubles(node: dict[str, Any]) -> Schema:
    """Move bounds inwards to numbers that the library's doubles hold: to 15 digits. Raise
    SchemaFault for a value that none holds."""
    kept = dict(node)
    for key, rounding in _BOUNDS.items():
        bound = kept.get(key)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            continue
        if not _is_exact(bound):
            rounded = Context(prec=15, rounding=rounding).create_decimal(repr(bound))
            kept[key] = _as_number(rounded)
        if "integer" in str(node.get("type")):
            _check_reach(key, bound)
    for key in _COUNTS:
        count = kept.get(key)
        if isinstance(count, float) and count.is_integer():
            kept[key] = int(count)
    for number in _numbers([kept.get("const"), kept.get("enum")]):
        if not _is_exact(number):
            raise SchemaFault(f"{number} has more digits than a double")
    return kept


def _check_reach(bound: str, number: float) -> None:
    """Raise SchemaFault for a bound beyond which the library knows no integers."""
    above = number >= 2**63 and "inimum" in bound
    below = number < -(2**63) and "aximum" in bound
    if above or below:
        raise SchemaFault(f"{bound} {number} leaves no integer of 64 bits")


def _as_number(value: Decimal) -> float:
    if value == value.to_integral_value():
        return int(value)
    return float(value)


def _is_exact(number: float) -> bool:
    """Return whether the library writes a number as it is."""
    shortest = Decimal(repr(float(number)))
    if abs(number) >= 2**53:
        return shortest == Decimal(number)
    return isinstance(number, int) or len(shortest.as_tuple().digits) <= 15


def _numbers(value: object) -> Iterator[float]:
    if is_object(value):
        value = list(value.values())
    if is_list(value):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _with_names(node: dict[str, Any]) -> Schema:
    """Put `propertyNames` in other words, where nothing else says of which form names are."""
    names = node.get("propertyNames")
    others = node.get("additionalProperties", True)
    if not is_object(names) or "patternProperties" in node:
        return node
    rule = {key: value for key, value in names.items() if key not in ANNOTATIONS}
    if rule.pop("type", "string") != "string" or len(rule) != 1:
        return node
    kept = {key: value for key, value in node.items() if key != "propertyNames"}
    declared = node.get("properties", {})
    choices = [rule["const"]] if "const" in rule else rule.get("enum")
    if is_list(choices) and is_object(declared):
        listed = {name: declared.get(name, others) for name in choices if isinstance(name, str)}
        known = {name: one for name, one in declared.items() if name in listed}
        return kept | {"properties": known | listed, "additionalProperties": False}
    regex = _as_patterns(rule).get("pattern")
    if not isinstance(regex, str) or declared:
        return node
    return kept | {"patternProperties": {regex: others}, "additionalProperties": False}


def _as_patterns(node: dict[str, Any]) -> dict[str, Any]:
    """Put patterns, and formats of days, as patterns of the library's dialect."""
    kept = dict(node)
    found = list[str]()
    if isinstance(kept.get("pattern"), str):
        found.append(pattern(kept.pop("pattern")))
    if kept.get("format") in CALENDAR:  # the library's take the 29th of any February
        found.append(whole(FORMAT_REGEXES[kept.pop("format")]))
    if found:
        kept["pattern"] = found[0]
    for more in found[1:]:
        kept["allOf"] = [*kept.get("allOf", ()), {"pattern": more}]
    properties = kept.get("patternProperties")
    if is_object(properties):
        kept["patternProperties"] = {pattern(key): one for key, one in properties.items()}
    return kept


_REWRITES: tuple[Callable[[dict[str, Any]], Schema], ...] = (
    _without_empty,
    _in_doubles,
    _with_names,
    _as_patterns,
)
