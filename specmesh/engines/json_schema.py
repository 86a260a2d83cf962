"""JSON schemas as llguidance is to have them: the same language, but for objects that are closed.

llguidance, like JSON Schema, lets an object have any property that nothing forbids, and a model
that was asked for two would invent more. So an object is closed to names that no subschema declares
for it. All subschemas count that hold for one place in a document, through `allOf`, `anyOf`,
`oneOf`, `$ref` and conditions: no document is lost whose names are all declared. A place stays open
where a schema mentions other names, or requires one that it does not declare.

What the library reads in another way than JSON Schema is put in other words, or raises SchemaFault.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cached_property
from itertools import combinations
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from specmesh.engines.schema_choices import Exclusion
from specmesh.engines.schema_strings import CALENDAR, FORMATS, all_but, pattern, whole

Schema = Any
"""A JSON object or a boolean; anything else is for the library to refuse."""

_MOST_WRITTEN = 30_000  # subschemas of one schema; beyond them its objects stay open
_MOST_BRANCHES = 100  # of a oneOf that are compared with each other
_MOST_LETTERS = 4_000  # of the names that an open object keeps from coming again
_LONGEST_NAME = 100  # of these, in letters

ANNOTATIONS = frozenset(
    (
        *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions"),
        *("deprecated", "description", "examples", "id", "readOnly", "title", "writeOnly"),
        "x-guidance",
    )
)
_OF_OBJECTS = frozenset(
    (
        *("additionalProperties", "maxProperties", "minProperties", "patternProperties"),
        *("properties", "required", "unevaluatedProperties"),
    )
)


class SchemaFault(Exception):
    """A schema has what cannot be kept to; the message says what."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a schema is written: are its objects `closed`, and does a branch of a `oneOf` have its own
    names only (`apart`), by which the library can tell it from the others?"""

    closed: bool = True
    apart: bool = False


def for_library(root: Schema, part: Schema = None, reading: Reading = Reading()) -> dict[str, Any]:
    """Return a schema, or a part of one, as a document of its own. Raise SchemaFault, and
    RecursionError for one that is nested too deeply."""
    part = root if part is None else part
    try:
        return _Writer(root, reading).document(part)
    except _TooLarge:
        return _Writer(root, Reading(closed=False)).document(part)


class _TooLarge(Exception):
    pass


# --- references


class Document:
    """A schema, and the subschemas that references name in it."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._named: dict[str, Schema] = {}
        self._bases: dict[int, str] = {}
        self._paths: dict[int, tuple[str | int, ...]] = {}
        ahead: list[tuple[Any, str, tuple[str | int, ...]]] = [(root, "", ())]
        while ahead:
            value, base, path = ahead.pop()
            inner = list[tuple[str | int, Any]]()
            if isinstance(value, dict):
                base = self._note(value, base)
                self._paths[id(value)] = path
                inner += value.items()
            elif isinstance(value, list):
                inner += enumerate(value)
            ahead += [(one, base, (*path, step)) for step, one in inner]

    def _note(self, node: dict[str, Any], base: str) -> str:
        """Note by what names a subschema is known; return the base of the references in it."""
        name = _id_of(node)
        if name:
            base = urljoin(base, name)
            self._named.setdefault(base, node)
        anchor = node.get("$anchor")
        if isinstance(anchor, str):
            self._named.setdefault(f"{urldefrag(base)[0]}#{anchor}", node)
        if isinstance(node.get("$ref"), str):
            self._bases[id(node)] = base
        return base

    def target(self, node: Mapping[str, Any]) -> Schema:
        """Return the subschema that `$ref` names; None where it is not in this document."""
        base = self._bases.get(id(node), "")
        named = urljoin(base, node["$ref"])
        if named in self._named:
            return self._named[named]
        address, pointer = urldefrag(named)
        found = _follow(self._named.get(address), unquote(pointer))
        if found is None and node["$ref"].startswith(
            "#"
        ):  # also where parts have names of their own
            found = _follow(self.root, unquote(pointer))
        return found

    def path(self, node: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
        """Yield at which path the subschema stands that `$ref` names, if it is in this document."""
        target = self.target(node)
        if id(target) in self._paths:
            yield self._paths[id(target)]


def _id_of(node: Schema) -> str:
    if not isinstance(node, dict):
        return ""
    name = node.get("$id", node.get("id"))
    return name.removesuffix("#") if isinstance(name, str) else ""


def _follow(value: Schema, pointer: str) -> Schema:
    """Return the subschema at a JSON pointer, None where there is none."""
    if not pointer or value is None:
        return value
    head, *keys = pointer.split("/")
    if head:
        return None
    for key in keys:
        name = key.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value if isinstance(value, dict | bool) else None


# --- the keywords of one subschema, in other words


def _plain(node: dict[str, Any]) -> Schema:
    """Return a subschema without what says nothing, and with what the library needs otherwise."""
    kept: Schema = {key: value for key, value in node.items() if key not in ANNOTATIONS}
    for rewrite in _REWRITES:
        kept = rewrite(kept)
        if not isinstance(kept, dict):
            return kept
    return kept


_EMPTY: dict[str, Callable[[Any], bool]] = {
    "uniqueItems": lambda value: value is False,
    "propertyNames": lambda value: value is True or value in ({}, {"type": "string"}),
    "not": lambda value: value is False,
    "unevaluatedProperties": lambda value: value in (True, {}),
    "unevaluatedItems": lambda value: value in (True, {}),
    "dependencies": lambda value: value == {},
    "dependentRequired": lambda value: value == {},
    "dependentSchemas": lambda value: value == {},
    "format": lambda value: value == "unknown",
}
_PARTNERS = {"minContains": "contains", "maxContains": "contains", "then": "if", "else": "if"}
"""Keywords that say nothing without another."""


def _without_empty(node: dict[str, Any]) -> Schema:
    """Leave out keywords that allow everything. Nothing at all fits `not: {}`."""
    if node.get("not", False) in (True, {}) and node["not"] is not False:
        return False
    kept = dict[str, Any]()
    for key, value in node.items():
        says_nothing = _EMPTY.get(key, _says_something)(value)
        alone = key in _PARTNERS and _PARTNERS[key] not in node
        if not says_nothing and not alone:
            kept[key] = value
    if "if" in kept and not kept.keys() & {"then", "else"}:
        del kept["if"]
    return kept


def _says_something(_: object) -> bool:
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
    return int(value) if value == value.to_integral_value() else float(value)


def _is_exact(number: float) -> bool:
    """Return whether the library writes a number as it is."""
    if isinstance(number, int):
        return abs(number) <= 2**53 or Decimal(repr(float(number))) == number
    return len(Decimal(repr(number)).as_tuple().digits) <= 15


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _with_names(node: dict[str, Any]) -> Schema:
    """Put `propertyNames` in other words, where nothing else says of which form names are."""
    names, others = node.get("propertyNames"), node.get("additionalProperties", True)
    if not isinstance(names, dict) or "patternProperties" in node:
        return node
    rule = {key: value for key, value in names.items() if key not in ANNOTATIONS}
    if rule.pop("type", "string") != "string" or len(rule) != 1:
        return node
    kept = {key: value for key, value in node.items() if key != "propertyNames"}
    declared = node.get("properties", {})
    choices = [rule["const"]] if "const" in rule else rule.get("enum")
    if isinstance(choices, list) and isinstance(declared, dict):
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
        found.append(whole(FORMATS[kept.pop("format")]))
    if found:
        kept["pattern"] = found[0]
    for more in found[1:]:
        kept["allOf"] = [*kept.get("allOf", ()), {"pattern": more}]
    properties = kept.get("patternProperties")
    if isinstance(properties, dict):
        kept["patternProperties"] = {pattern(key): one for key, one in properties.items()}
    return kept


_REWRITES: tuple[Callable[[dict[str, Any]], Schema], ...] = (
    _without_empty,
    _in_doubles,
    _with_names,
    _as_patterns,
)


# --- places in a document

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
            known = node, _plain(node)
            self._plain[id(node)] = known
        return known[1]

    def keywords(self, node: Schema) -> dict[str, Any]:
        """Return what a subschema says in other words; nothing where it is a boolean."""
        plain = self.plain(node) if isinstance(node, dict) else node
        return plain if isinstance(plain, dict) else {}

    def target(self, node: dict[str, Any]) -> Schema:
        """Return what a subschema refers to; None for nothing in this document."""
        return self._document.target(node) if isinstance(node.get("$ref"), str) else None

    def resolved(self, node: Schema) -> Schema:
        """Return the subschema that stands behind one that only names or wraps another."""
        seen = set[int]()
        while isinstance(node, dict) and id(node) not in seen:
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
            inner += value if isinstance(value, list) else []
        target = self.target(node) if "$ref" in keywords else None
        return inner if target is None else [*inner, target]

    def place(self, nodes: Iterable[Schema], without: Iterable[int] = ()) -> "Place":
        """Return the place for which these hold; where none does, nothing is closed."""
        resolved = map(self.resolved, nodes)
        roots = {id(one): one for one in resolved if isinstance(one, dict)}
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
            counts = isinstance(node, dict) and id(node) not in self.key[1]
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
        count = sum(bool(member.keys() & _OF_OBJECTS) for member in self._members)
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
        for name in self.declared.keys() - _properties(keywords).keys():
            for member in self._members:
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
    return list(value.values()) if isinstance(value, dict) else []


def _properties(keywords: Mapping[str, Any]) -> dict[str, Schema]:
    value = keywords.get("properties")
    return value if isinstance(value, dict) else {}


def required_names(keywords: Mapping[str, Any]) -> set[str]:
    """Return the names that are required, always or beside others."""
    lists = [keywords.get("required")]
    lists += _values(keywords.get("dependentRequired"))
    lists += _values(keywords.get("dependencies"))
    found = set[str]()
    for names in lists:
        if isinstance(names, list):
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
    if isinstance(items, list):
        return items, keywords.get("additionalItems")
    return (first if isinstance(first, list) else []), items


# --- writing


class _Writer:
    """Writes a schema anew; what references name is defined once for each place."""

    def __init__(self, root: Schema, reading: Reading) -> None:
        self._root, self._reading = root, reading
        self._subschemas = Subschemas(root)
        self._names: dict[object, str] = {}
        self._ahead: list[tuple[str, Schema, Place]] = []
        self._around: list[Schema] = []
        self._count = 0

    def document(self, part: Schema) -> dict[str, Any]:
        place = self._subschemas.place([part] if self._reading.closed else [])
        written = self._schema(part, place)
        if not isinstance(written, dict):
            written = (
                {}
                if written is True
                else {"enum": []}
                if written is False
                else {"allOf": [written]}
            )
        definitions = dict[str, Schema]()
        while self._ahead:
            name, node, its = self._ahead.pop()
            definitions[name] = self._schema(node, its)
        if isinstance(self._root, dict) and "$schema" in self._root:
            written = {"$schema": self._root["$schema"]} | written
        return written | {"$defs": definitions} if definitions else written

    def _schema(self, node: Schema, place: Place) -> Schema:
        self._count += 1
        if self._count > _MOST_WRITTEN and self._reading.closed:
            raise _TooLarge
        if not isinstance(node, dict):
            return node
        keywords = self._subschemas.plain(node)
        if not isinstance(keywords, dict):
            return keywords
        written = dict[str, Any]()
        for key, value in keywords.items():
            if key == "oneOf" and isinstance(value, list):
                choice, branches = self._one_of(value, keywords, place)
                written[choice] = branches
            else:
                written[key] = self._keyword(key, value, keywords, place)
        if "$ref" in keywords:
            written["$ref"] = self._reference(node, place)
        if isinstance(keywords.get("properties"), dict):
            _close(written, place)
        return written

    def _keyword(self, key: str, value: Any, keywords: dict[str, Any], place: Place) -> Any:
        match key, value:
            case "properties", dict():
                return {
                    name: self._schema(one, place.property(name)) for name, one in value.items()
                }
            case "patternProperties", dict():
                others = place.others(keywords)
                return {name: self._schema(one, others) for name, one in value.items()}
            case "additionalProperties", dict():
                return self._schema(value, place.others(keywords))
            case "prefixItems" | "items", list():
                return [self._schema(one, place.item(at)) for at, one in enumerate(value)]
            case "items" | "additionalItems", dict():
                return self._schema(value, place.rest(keywords))
            case "allOf" | "anyOf", list():
                return [self._schema(one, place) for one in value]
            case _:
                return value

    def _one_of(
        self, branches: list[Schema], keywords: dict[str, Any], place: Place
    ) -> tuple[str, list[Schema]]:
        """Write a `oneOf`; where its branches exclude each other it is an `anyOf`."""
        taken = keywords.keys() & {"allOf", "anyOf"}
        if len(taken) < 2 and self._exclusive(branches, keywords):
            written = [self._schema(one, place) for one in branches]
            return ("allOf", [{"anyOf": written}]) if "anyOf" in taken else ("anyOf", written)
        if not self._reading.apart:
            return "oneOf", [self._schema(one, place) for one in branches]
        written = []
        for branch in branches:
            others = [one for one in branches if one is not branch]
            written.append(self._inlined(branch, place.apart(others)))
        return "oneOf", written

    def _exclusive(self, branches: list[Schema], within: dict[str, Any]) -> bool:
        exclude = Exclusion(self._subschemas.behind)
        pairs = list(combinations(branches[:_MOST_BRANCHES], 2))
        known = len(branches) <= _MOST_BRANCHES
        return known and all(exclude(one, other, within) for one, other in pairs)

    def _inlined(self, branch: Schema, place: Place) -> Schema:
        """Write what a branch refers to in its place, where the library compares it with others."""
        target = self._subschemas.resolved(branch)
        if any(target is one for one in self._around):
            return self._schema(branch, place)
        self._around.append(target)
        written = self._schema(target, place)
        self._around.pop()
        return written

    def _reference(self, node: dict[str, Any], place: Place) -> Any:
        target = self._subschemas.target(node)
        if target is None:
            return node["$ref"]
        key = id(target), place.key
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._ahead.append((self._names[key], target, place))
        return f"#/$defs/{self._names[key]}"


def _close(written: dict[str, Any], place: Place) -> None:
    """Forbid an object's names that nobody declares. Where there may be others, forbid that a
    declared one is among them in another spelling: the library compares letters, not names."""
    declared = written["properties"]
    others = written.get("additionalProperties", True)
    if place.names is not None and "additionalProperties" not in written:
        more = {name: True for name in place.names if name not in declared}
        written["properties"] = declared | more
        written["additionalProperties"] = False
    elif place.single and others is not False and "patternProperties" not in written:
        required = sorted(required_names(written) - declared.keys())
        taken = [*declared, *required]
        if 0 < sum(map(len, taken)) < _MOST_LETTERS and max(map(len, taken)) < _LONGEST_NAME:
            written["properties"] = declared | dict.fromkeys(required, others)
            written["patternProperties"] = {whole(all_but(taken)): others}
            written["additionalProperties"] = False
