"""Which subschemas of a JSON schema hold for the same place of a document."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from specmesh.engines.schema_document import Document, Schema, is_list, is_object
from specmesh.engines.schema_keywords import OF_OBJECTS, plain_keywords

_IN_PLACE = ("allOf", "anyOf", "oneOf")


class Subschemas:
    """All subschemas of a document: in other words, by reference, and by what holds together."""

    def __init__(self, root: Schema) -> None:
        self._document = Document(root)
        self._plain: dict[int, tuple[Schema, Schema]] = {}
        self._places: dict[object, Place] = {}

    def plain(self, node: dict[str, Any]) -> Schema:
        """Return a subschema in other words; raise SchemaFault for what has none."""
        known = self._plain.get(id(node))
        if known is None:  # the subschema is kept too, that its id stays its own
            known = node, plain_keywords(node)
            self._plain[id(node)] = known
        return known[1]

    def keywords(self, node: Schema) -> dict[str, Any]:
        """Return what a subschema says in other words; nothing where it is a boolean."""
        plain = self.plain(node) if is_object(node) else node
        return plain if is_object(plain) else {}

    def target(self, node: dict[str, Any]) -> Schema:
        """Return what a subschema refers to; None for nothing in this document."""
        return self._document.target(node) if isinstance(node.get("$ref"), str) else None

    def resolved(self, node: Schema) -> Schema:
        """Return the subschema that stands behind one that only names or wraps another."""
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
        """Return what a subschema says, or the one behind it."""
        return self.keywords(self.resolved(node))

    def in_place(self, node: dict[str, Any], *, mentioned: bool) -> list[Schema]:
        """Return the subschemas that hold where this one does; with `mentioned` also those that are
        only compared."""
        keywords = self.keywords(node)
        inner = self._in_place(node, keywords)
        for key in ("then", "else"):
            inner.append(keywords.get(key))
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
        inner += [*_values(keywords.get("properties")), *_values(keywords.get("patternProperties"))]
        return [
            *inner,
            *first,
            rest,
            keywords.get("additionalProperties"),
            keywords.get("contains"),
        ]

    def _in_place(self, node: dict[str, Any], keywords: dict[str, Any]) -> list[Schema]:
        inner = list[Schema]()
        for key in _IN_PLACE:
            value = keywords.get(key)
            inner += value if is_list(value) else []
        target = self.target(node) if "$ref" in keywords else None
        return inner if target is None else [*inner, target]

    def place(self, nodes: Iterable[Schema], without: Iterable[int] = ()) -> "Place":
        """Return the place for which these hold; where none does, nothing is closed."""
        resolved = map(self.resolved, nodes)
        roots = {id(one): one for one in resolved if is_object(one)}
        key = frozenset(roots), frozenset(without)
        if key not in self._places:
            self._places[key] = Place(self, tuple(roots.values()), key)
        return self._places[key]


class Place:
    """A place in a document. `roots` are the subschemas that stand for it, together or in turn; not
    counted are those whose ids are in the second part of `key`."""

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
        """What the subschemas say that hold here or are compared here."""
        return [self._subschemas.keywords(node) for node in self._reached(mentioned=True)]

    @cached_property
    def declared(self) -> dict[str, None]:
        """The properties that some subschema declares here."""
        names = dict[str, None]()
        for member in self._members:
            names |= dict.fromkeys(_properties(member))
        return names

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The properties that an object has here, None where it may have others."""
        for node in self._reached(mentioned=False):
            if self._opens(node, self.declared):
                return None
        listed = any("properties" in member for member in self._members)
        return tuple(self.declared) if listed else None

    def _opens(self, node: dict[str, Any], declared: Mapping[str, None]) -> bool:
        """Return whether a subschema speaks of names that nobody declares."""
        keywords = self._subschemas.keywords(node)
        others = [
            keywords.get(key, False) for key in ("additionalProperties", "unevaluatedProperties")
        ]
        unknown = "$ref" in keywords and self._subschemas.target(node) is None
        elsewhere = keywords.keys() & {"$dynamicRef", "$recursiveRef", "propertyNames"}
        least = keywords.get("minProperties", 0)
        return (
            others != [False, False]
            or unknown
            or bool(elsewhere)
            or bool(keywords.get("patternProperties"))
            or not declared.keys() >= required_names(keywords)
            or (isinstance(least, int) and least > len(declared))
        )

    @cached_property
    def single(self) -> bool:
        """Whether one subschema says all that is said of an object here."""
        count = sum(bool(member.keys() & OF_OBJECTS) for member in self._members)
        return count == 1 and len(self.roots) == 1

    def apart(self, others: Iterable[Schema]) -> "Place":
        """Return the place as it is where these subschemas do not hold."""
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
            roots += [*_values(member.get("patternProperties")), member.get("additionalProperties")]
        own = _properties(keywords)
        for name in self.declared:
            for member in self._members if name not in own else ():
                roots += _of_name(member, name)
        return self._subschemas.place(roots)

    def item(self, index: int) -> "Place":
        """Return the place of an array's item."""
        roots = list[Schema]()
        for member in self._members:
            first, rest = _items(member)
            roots += [*first[index : index + 1], member.get("contains")]
            roots += [rest] if index >= len(first) else []
        return self._subschemas.place(roots)

    def rest(self, keywords: dict[str, Any]) -> "Place":
        """Return the place of an array's items behind those that a subschema names one by one."""
        begin = len(_items(keywords)[0])
        roots = list[Schema]()
        for member in self._members:
            first, rest = _items(member)
            roots += [*first[begin:], rest, member.get("contains")]
        return self._subschemas.place(roots)


def _values(value: object) -> list[Schema]:
    return list(value.values()) if is_object(value) else []


def _properties(keywords: Mapping[str, Any]) -> dict[str, Schema]:
    value = keywords.get("properties")
    return value if is_object(value) else {}


def required_names(keywords: Mapping[str, Any]) -> set[str]:
    """Return the names that are required, always or beside others."""
    lists = [keywords.get("required")]
    lists += _values(keywords.get("dependentRequired"))
    lists += _values(keywords.get("dependencies"))
    found = set[str]()
    for names in lists:
        if is_list(names):
            found.update(name for name in names if isinstance(name, str))
    return found


def _of_name(keywords: dict[str, Any], name: str) -> list[Schema]:
    """Return what a subschema says of the property of this name."""
    properties = _properties(keywords)
    if name in properties:
        return [properties[name]]
    patterns = keywords.get("patternProperties")
    return [*_values(patterns), keywords.get("additionalProperties")]


def _items(keywords: Mapping[str, Any]) -> tuple[list[Schema], Schema]:
    """Return what a subschema says of an array's first items, and of the rest."""
    items, first = keywords.get("items"), keywords.get("prefixItems")
    if is_list(items):
        return items, keywords.get("additionalItems")
    return (first if is_list(first) else []), items
