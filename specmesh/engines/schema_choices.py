"""Which alternatives of a JSON schema exclude each other, so that a `oneOf` is an `anyOf`."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specmesh.engines.schema_document import is_list, is_object

Keywords = Mapping[str, Any]

TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_MOST_COMPARED = 20_000  # pairs of schemas, in all
_NOTHING: Keywords = {}
_DEEPEST = 4  # alternatives and properties within one another that are looked at


def types_of(keywords: Keywords) -> frozenset[str]:
    """Return the types of values that a subschema's own keywords allow. Integers are numbers."""
    values = values_of(keywords)
    if values is not None:
        return frozenset(map(_type_of, values))
    given = keywords.get("type", [*TYPES])
    names = given if is_list(given) else [given]
    return frozenset("number" if name == "integer" else str(name) for name in names)


def values_of(keywords: Keywords) -> list[Any] | None:
    """Return the only values that a subschema allows; None where it does not list them."""
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
    """Tells whether no value fits two schemas. keywords: returns what a schema, or the one to which
    it refers, says itself; nothing for a boolean."""

    def __init__(self, keywords: Callable[[Any], Keywords]) -> None:
        self._keywords = keywords
        self._left = _MOST_COMPARED

    def __call__(
        self, one: Any, other: Any, within: Keywords = _NOTHING, depth: int = _DEEPEST
    ) -> bool:
        """Return True where it is certain that no value fits both, and what they stand within."""
        if one is False or other is False:
            return True
        self._left -= 1
        if not depth or self._left < 0:
            return False
        mine, yours = self._keywords(one), self._keywords(other)
        shared = types_of(within) & types_of(mine) & types_of(yours)
        return (
            not shared
            or _by_value(mine, yours)
            or self._by_parts(mine, other, within, depth)
            or self._by_parts(yours, one, within, depth)
            or (
                shared == frozenset(("object",))
                and any(self._by_name((mine, yours, within), depth))
            )
        )

    def _by_parts(self, mine: Keywords, other: Any, within: Keywords, depth: int) -> bool:
        """Return whether what one schema is made of excludes another."""
        for key in ("anyOf", "oneOf"):
            parts = _listed(mine, key)
            if parts and all(self(part, other, within, depth - 1) for part in parts):
                return True
        return any(self(part, other, within, depth - 1) for part in _listed(mine, "allOf"))

    def _by_name(self, together: tuple[Keywords, Keywords, Keywords], depth: int) -> Iterator[bool]:
        """Yield for each property that two objects must have whether it can be that of both."""
        mine, yours, _ = together
        for keywords in together:
            for name in _listed(keywords, "required"):
                yield self(_property(mine, name), _property(yours, name), _NOTHING, depth - 1)


def _listed(keywords: Keywords, key: str) -> list[Any]:
    value = keywords.get(key)
    return value if is_list(value) else []


def _by_value(mine: Keywords, yours: Keywords) -> bool:
    first, second = values_of(mine), values_of(yours)
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
    """Return what an object's schema says of a property: False where it cannot have it."""
    properties = keywords.get("properties")
    if is_object(properties) and name in properties:
        return properties[name]
    open_to_others = keywords.get("additionalProperties") is not False
    return open_to_others or "patternProperties" in keywords
