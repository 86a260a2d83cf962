"""Alternatives of a JSON schema that exclude each other, so that a `oneOf` is an `anyOf`."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specmesh.engines.schema_document import as_list, is_list, is_object

Keywords = Mapping[str, Any]

TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_MOST_COMPARED = 20_000  # pairs of schemas, in all
_NOTHING: Keywords = {}
_DEEPEST = 4  # alternatives and properties within one another that are compared


def types_of(keywords: Keywords) -> frozenset[str]:
    """Return the types of values that a subschema's own keywords allow. Integers are numbers."""
    values = values_of(keywords)
    if values is not None:
        return frozenset(map(_type_of, values))
    given = keywords.get("type", [*TYPES])
    names = given if is_list(given) else [given]
    types = set(map(str, names))
    if "integer" in types:
        types -= {"integer"}
        types |= {"number"}
    return frozenset(types)


def values_of(keywords: Keywords) -> list[Any] | None:
    """Return the only values that a subschema allows; None if it does not list them."""
    if "const" in keywords:
        return [keywords["const"]]
    values = keywords.get("enum")
    return values if is_list(values) else None


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"


class Exclusion:
    """A test of two schemas for a value that fits both.

    keywords: returns the keywords of a schema or of its target; none for a boolean.
    """

    def __init__(self, keywords: Callable[[Any], Keywords]) -> None:
        self._keywords = keywords
        self._left = _MOST_COMPARED

    def __call__(
        self, one: Any, other: Any, within: Keywords = _NOTHING, depth: int = _DEEPEST
    ) -> bool:
        """Return True if it is certain that no value fits both and the schema around them."""
        if one is False or other is False:
            return True
        self._left -= 1
        if not depth or self._left < 0:
            return False
        mine = self._keywords(one)
        yours = self._keywords(other)
        types = types_of(within) & types_of(mine) & types_of(yours)
        if not types or _by_value(mine, yours):
            return True
        if self._by_parts(mine, other, within, depth) or self._by_parts(yours, one, within, depth):
            return True
        only_objects = types == frozenset(("object",))
        return only_objects and any(self._by_name((mine, yours, within), depth))

    def _by_parts(self, mine: Keywords, other: Any, within: Keywords, depth: int) -> bool:
        """Return True if the parts of one schema exclude another."""
        for key in ("anyOf", "oneOf"):
            parts = as_list(mine.get(key))
            if parts and all(self(part, other, within, depth - 1) for part in parts):
                return True
        return any(self(part, other, within, depth - 1) for part in as_list(mine.get("allOf")))

    def _by_name(self, together: tuple[Keywords, Keywords, Keywords], depth: int) -> Iterator[bool]:
        """Yield, for each required property of two objects, True if no value fits both."""
        mine, yours, _ = together
        for keywords in together:
            for name in as_list(keywords.get("required")):
                yield self(_property(mine, name), _property(yours, name), _NOTHING, depth - 1)


def _by_value(mine: Keywords, yours: Keywords) -> bool:
    first = values_of(mine)
    second = values_of(yours)
    if first is None or second is None:
        return False
    return set(map(_written, first)).isdisjoint(map(_written, second))


def _written(value: object) -> str:
    """Return a value's text, the same for numbers that are equal."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if is_list(value):
        return [_whole(inner) for inner in value]
    if is_object(value):
        return {name: _whole(inner) for name, inner in value.items()}
    return value


def _property(keywords: Keywords, name: str) -> Any:
    """Return the schema of an object's property: False if the object cannot have it."""
    properties = keywords.get("properties")
    if is_object(properties) and name in properties:
        return properties[name]
    open_to_others = keywords.get("additionalProperties") is not False
    return open_to_others or "patternProperties" in keywords
