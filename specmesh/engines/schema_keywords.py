"""Keywords of JSON Schema, and others for those that llguidance understands differently."""

from collections.abc import Callable, Container, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from specmesh.engines.schema_choices import values_of
from specmesh.engines.schema_document import Schema, is_list, is_object
from specmesh.engines.schema_strings import CALENDAR, FORMAT_REGEXES, pattern, whole

ANNOTATIONS = frozenset(
    (
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "id",
        "readOnly",
        "title",
        "writeOnly",
        "x-guidance",
    )
)
OF_OBJECTS = frozenset(
    (
        "additionalProperties",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "required",
        "unevaluatedProperties",
    )
)
OF_TEXTS = frozenset(
    (
        "$dynamicRef",
        "allOf",
        "anyOf",
        "format",
        "if",
        "maxLength",
        "minLength",
        "not",
        "oneOf",
        "pattern",
    )
)
"""Keywords that can forbid a text, other than those that name the only texts."""

CONSTRAINTS = (OF_OBJECTS | OF_TEXTS).union(
    (
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxContains",
        "maximum",
        "minContains",
        "minimum",
        "multipleOf",
        "prefixItems",
        "propertyNames",
        "unevaluatedItems",
        "uniqueItems",
    )
)
"""Keywords that can forbid a value."""


class SchemaFault(Exception):
    """A schema has a part that cannot be kept to. The message names it."""


def plain_keywords(node: dict[str, Any]) -> Schema:
    """Return a subschema without keywords that have no effect, rewritten for the library."""
    kept: Schema = _without(node, ANNOTATIONS)
    for rewrite in _REWRITES:
        kept = rewrite(kept)
        if not is_object(kept):
            return kept
    return kept


def _without(node: dict[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}


_PARTNERS = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}
"""Keywords that have no effect without another."""


def _without_empty(node: dict[str, Any]) -> Schema:
    """Leave out keywords that allow everything. No value fits `not: {}`."""
    if node.get("not") in (True, {}):
        return False
    kept = dict[str, Any]()
    for key, value in node.items():
        partner = _PARTNERS.get(key, key)
        if partner in node and not _allows_all(key, value):
            kept[key] = value
    if not kept.keys() & {"then", "else"}:
        kept.pop("if", None)
    return kept


def _allows_all(key: str, value: Any) -> bool:
    """Return True if a keyword with this value allows everything."""
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
    """Move bounds inwards to numbers of 15 digits, which the library's doubles hold.

    Raises SchemaFault for a value that no double holds.
    """
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
    """Raise SchemaFault for a bound beyond which the library has no integers."""
    above = number >= 2**63 and "inimum" in bound
    below = number < -(2**63) and "aximum" in bound
    if above or below:
        raise SchemaFault(f"{bound} {number} leaves no integer of 64 bits")


def _as_number(value: Decimal) -> float:
    if value == value.to_integral_value():
        return int(value)
    return float(value)


def _is_exact(number: float) -> bool:
    """Return True if the library writes a number unchanged."""
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
    """Rewrite `propertyNames`, if no other keyword restricts the names."""
    names = node.get("propertyNames")
    others = node.get("additionalProperties", True)
    if not is_object(names) or "patternProperties" in node:
        return node
    rule = _without(names, ANNOTATIONS)
    if rule.pop("type", "string") != "string" or len(rule) != 1:
        return node
    kept = _without(node, {"propertyNames"})
    declared = node.get("properties", {})
    choices = values_of(rule)
    if choices is not None and is_object(declared):
        properties = {name: declared[name] for name in declared if name in choices}
        for name in choices:
            if isinstance(name, str):
                properties.setdefault(name, others)
        return kept | {"properties": properties, "additionalProperties": False}
    regex = _as_patterns(rule).get("pattern")
    if not isinstance(regex, str) or declared:
        return node
    return kept | {"patternProperties": {regex: others}, "additionalProperties": False}


def _as_patterns(node: dict[str, Any]) -> dict[str, Any]:
    """Rewrite patterns, and formats of days, as patterns of the library's dialect."""
    kept = dict(node)
    regex = kept.get("pattern")
    if isinstance(regex, str):
        kept["pattern"] = pattern(regex)
    if kept.get("format") in CALENDAR:  # the library's take the 29th of any February
        day = {"pattern": whole(FORMAT_REGEXES[kept.pop("format")])}
        if isinstance(regex, str):
            kept["allOf"] = [*kept.get("allOf", ()), day]
        else:
            kept |= day
    properties = kept.get("patternProperties")
    if is_object(properties):
        kept["patternProperties"] = {pattern(key): value for key, value in properties.items()}
    return kept


_REWRITES: tuple[Callable[[dict[str, Any]], Schema], ...] = (
    _without_empty,
    _in_doubles,
    _with_names,
    _as_patterns,
)
