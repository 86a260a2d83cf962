"""The subschemas of a JSON schema that hold for the same place of a document."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from specmesh.engines.schema_document import (
    Document,
    Schema,
    as_list,
    as_object,
    is_list,
    is_object,
)
from specmesh.engines.schema_keywords import OF_OBJECTS, plain_keywords

_IN_PLACE = ("allOf", "anyOf", "oneOf")


class Subschemas:
    """All subschemas of a document: rewritten for the library, by reference, and by place."""

    def __init__(self, root: Schema) -> None:
        self._document = Document(root)
        self._plain: dict[int, tuple[Schema, Schema]] = {}
        self._places: dict[object, Place] = {}

    def plain(self, node: dict[str, Any]) -> Schema:
        """Return a subschema rewritten for the library. Raises SchemaFault."""
        known = self._plain.get(id(node))
        if known is None:  # the subschema is kept too, so that its id stays unique
            known = (node, plain_keywords(node))
            self._plain[id(node)] = known
        return known[1]

    def keywords(self, node: Schema) -> dict[str, Any]:
        """Return the rewritten keywords of a subschema; none for a boolean."""
        if not is_object(node):
            return {}
        return as_object(self.plain(node))

    def target(self, node: dict[str, Any]) -> Schema:
        """Return the target of a subschema's reference, if it is in this document."""
        if not isinstance(node.get("$ref"), str):
            return None
        return self._document.target(node)

    def resolved(self, node: Schema) -> Schema:
        """Return the target of a subschema that only names or wraps another."""
        seen = set[int]()
        while is_object(node) and id(node) not in seen:
            seen.add(id(node))
            keywords = self.keywords(node)
            inner = self._in_place(node, keywords)
            if len(keywords) != 1 or len(inner) != 1:
                break
            node = inner[0]
        return node

    def behind(self, node: Schema) -> dict[str, Any]:
        """Return the keywords of a subschema or of its target."""
        return self.keywords(self.resolved(node))

    def in_place(self, node: dict[str, Any], *, mentioned: bool) -> list[Schema]:
        """Return the subschemas that hold for the same place as this one.

        mentioned: also those that a value is only compared with.
        """
        keywords = self.keywords(node)
        inner = self._in_place(node, keywords)
        inner += [keywords.get("then"), keywords.get("else")]
        for key in ("dependentSchemas", "dependencies"):
            inner += _values(keywords.get(key))
        if mentioned:
            inner += [keywords.get("if"), keywords.get("not")]
        return inner

    def below(self, node: dict[str, Any]) -> list[Schema]:
        """Return the subschemas of a subschema."""
        keywords = self.keywords(node)
        first, rest = _items(keywords)
        inner = self.in_place(node, mentioned=True)
        inner += _values(keywords.get("properties"))
        inner += _values(keywords.get("patternProperties"))
        inner += first
        inner += [rest, keywords.get("additionalProperties"), keywords.get("contains")]
        return inner

    def _in_place(self, node: dict[str, Any], keywords: dict[str, Any]) -> list[Schema]:
        inner = list[Schema]()
        for key in _IN_PLACE:
            inner += as_list(keywords.get(key))
        if "$ref" in keywords:
            target = self.target(node)
            if target is not None:
                inner.append(target)
        return inner

    def place(self, nodes: Iterable[Schema], without: Iterable[int] = ()) -> "Place":
        """Return the place for which these subschemas hold; without any, it is open."""
        roots = dict[int, Schema]()
        for root in map(self.resolved, nodes):
            if is_object(root):
                roots[id(root)] = root
        key = (frozenset(roots), frozenset(without))
        if key not in self._places:
            self._places[key] = Place(self, tuple(roots.values()), key)
        return self._places[key]


class Place:
    """A place in a document.

    roots: the subschemas that hold for it, together or as alternatives.
    key: the ids of these, and the ids of subschemas that are not counted.
    """

    def __init__(
        self,
        subschemas: Subschemas,
        roots: tuple[Schema, ...],
        key: tuple[frozenset[int], frozenset[int]],
    ) -> None:
        self.key = key
        self.roots = roots
        self._subschemas = subschemas

    def _reached(self, *, mentioned: bool) -> list[dict[str, Any]]:
        found = dict[int, dict[str, Any]]()
        ahead = list(self.roots)
        while ahead:
            node = ahead.pop(0)
            counts = is_object(node) and id(node) not in self.key[1]
            if counts and id(node) not in found:
                found[id(node)] = node
                ahead += self._subschemas.in_place(node, mentioned=mentioned)
        return list(found.values())

    @cached_property
    def _members(self) -> list[dict[str, Any]]:
        """Return the keywords of the subschemas that hold or are compared for this place."""
        return [self._subschemas.keywords(node) for node in self._reached(mentioned=True)]

    @cached_property
    def declared(self) -> dict[str, None]:
        """Return the properties that some subschema of this place declares."""
        names = dict[str, None]()
        for member in self._members:
            names |= dict.fromkeys(as_object(member.get("properties")))
        return names

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """Return the only properties of an object in this place; None if it may have others."""
        for node in self._reached(mentioned=False):
            if self._is_open(node):
                return None
        for member in self._members:
            if "properties" in member:
                return tuple(self.declared)
        return None

    def _is_open(self, node: dict[str, Any]) -> bool:
        """Return True if a subschema mentions undeclared names."""
        keywords = self._subschemas.keywords(node)
        if keywords.keys() & {"$dynamicRef", "$recursiveRef", "propertyNames"}:
            return True
        if "$ref" in keywords and self._subschemas.target(node) is None:
            return True
        for key in ("additionalProperties", "unevaluatedProperties"):
            if keywords.get(key, False) is not False:
                return True
        least = keywords.get("minProperties", 0)
        if isinstance(least, int) and least > len(self.declared):
            return True
        undeclared = required_names(keywords) - self.declared.keys()
        return bool(undeclared or keywords.get("patternProperties"))

    @cached_property
    def single(self) -> bool:
        """Return True if one subschema has all keywords for an object in this place."""
        about_objects = [member for member in self._members if member.keys() & OF_OBJECTS]
        return len(about_objects) == 1 and len(self.roots) == 1

    def apart(self, others: Iterable[Schema]) -> "Place":
        """Return the place without these subschemas."""
        return self._subschemas.place(self.roots, self.key[1].union(map(id, others)))

    def property(self, name: str) -> "Place":
        """Return the place of a property's value."""
        roots = list[Schema]()
        for member in self._members:
            roots += _of_name(member, name)
        return self._subschemas.place(roots)

    def others(self, keywords: dict[str, Any]) -> "Place":
        """Return the place of the value of a property that a subschema does not declare."""
        roots = list[Schema]()
        for member in self._members:
            roots += _values(member.get("patternProperties"))
            roots.append(member.get("additionalProperties"))
        own = as_object(keywords.get("properties"))
        for name in self.declared:
            if name in own:
                continue
            for member in self._members:
                roots += _of_name(member, name)
        return self._subschemas.place(roots)

    def item(self, index: int) -> "Place":
        """Return the place of an array's item."""
        roots = list[Schema]()
        for member in self._members:
            first, rest = _items(member)
            roots += first[index : index + 1]
            roots.append(member.get("contains"))
            if index >= len(first):
                roots.append(rest)
        return self._subschemas.place(roots)

    def rest(self, keywords: dict[str, Any]) -> "Place":
        """Return the place of an array's items after those that a subschema names one by one."""
        begin = len(_items(keywords)[0])
        roots = list[Schema]()
        for member in self._members:
            first, rest = _items(member)
            roots += first[begin:]
            roots += [rest, member.get("contains")]
        return self._subschemas.place(roots)


def _values(value: object) -> list[Schema]:
    return list(as_object(value).values())


def required_names(keywords: Mapping[str, Any]) -> set[str]:
    """Return the names that are required, always or with others."""
    lists = [keywords.get("required")]
    lists += _values(keywords.get("dependentRequired"))
    lists += _values(keywords.get("dependencies"))
    found = set[str]()
    for names in lists:
        if is_list(names):
            found.update(name for name in names if isinstance(name, str))
    return found


def _of_name(keywords: dict[str, Any], name: str) -> list[Schema]:
    """Return the subschemas for the property of this name."""
    properties = as_object(keywords.get("properties"))
    if name in properties:
        return [properties[name]]
    patterns = keywords.get("patternProperties")
    return [*_values(patterns), keywords.get("additionalProperties")]


def _items(keywords: Mapping[str, Any]) -> tuple[list[Schema], Schema]:
    """Return the subschemas of an array's first items, and that of the rest."""
    items = keywords.get("items")
    if is_list(items):
        return items, keywords.get("additionalItems")
    return as_list(keywords.get("prefixItems")), items
