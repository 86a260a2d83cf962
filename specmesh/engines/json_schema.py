"""JSON schemas as llguidance is to have them: the same language, but for objects that are closed.

llguidance, like JSON Schema, lets an object have any property that nothing forbids, and a model
that was asked for two would invent more. So an object is closed to names that no subschema declares
for it. All subschemas count that hold for one place in a document, through `allOf`, `anyOf`,
`oneOf`, `$ref` and conditions: no document is lost whose names are all declared. A place stays open
where a schema mentions other names, or requires one that it does not declare.

What the library reads in another way than JSON Schema is put in other words, or raises SchemaFault.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from specmesh.engines.schema_choices import Exclusion
from specmesh.engines.schema_document import Schema, is_list, is_object
from specmesh.engines.schema_places import Place, Subschemas, required_names
from specmesh.engines.schema_strings import all_but, whole

_MOST_WRITTEN = 30_000  # subschemas of one schema; beyond them its objects stay open
_MOST_BRANCHES = 100  # of a oneOf that are compared with each other
_MOST_LETTERS = 4_000  # of the names that an open object keeps from coming again
_LONGEST_NAME = 100  # of these, in letters


@dataclass(frozen=True, slots=True)
class Reading:
    """How a schema is written.

    closed: objects have no names that nobody declares.
    apart: an object in a branch of a `oneOf` has the names of that branch only. By these the
        library can tell the branches apart.
    """

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
        """Return a part of the schema, with all that it refers to."""
        place = self._subschemas.place([part] if self._reading.closed else [])
        whole_part = self._schema(part, place)
        written: dict[str, Any] = whole_part if is_object(whole_part) else {"allOf": [whole_part]}
        definitions = dict[str, Schema]()
        while self._ahead:
            name, node, its = self._ahead.pop()
            definitions[name] = self._schema(node, its)
        if is_object(self._root) and "$schema" in self._root:
            written = {"$schema": self._root["$schema"]} | written
        return written | {"$defs": definitions} if definitions else written

    def _schema(self, node: Schema, place: Place) -> Schema:
        """Write a subschema as it is for a place. Raise _TooLarge."""
        self._count += 1
        if self._count > _MOST_WRITTEN and self._reading.closed:
            raise _TooLarge
        if not is_object(node):
            return node
        keywords = self._subschemas.plain(node)
        if not is_object(keywords):
            return keywords
        written = dict[str, Any]()
        for key, value in keywords.items():
            if key == "oneOf" and is_list(value):
                choice, branches = self._one_of(value, keywords, place)
                written[choice] = branches
            else:
                written[key] = self._keyword(key, value, keywords, place)
        if "$ref" in keywords:
            written["$ref"] = self._reference(node, place)
        if is_object(keywords.get("properties")):
            _close(written, place)
        return written

    def _keyword(self, key: str, value: Any, keywords: dict[str, Any], place: Place) -> Any:
        """Write a keyword's value, with the subschemas in it."""
        if is_object(value):
            return self._object_of(key, value, keywords, place)
        if is_list(value) and key in ("allOf", "anyOf"):
            return [self._schema(one, place) for one in value]
        if is_list(value) and key in ("items", "prefixItems"):
            return [self._schema(one, place.item(at)) for at, one in enumerate(value)]
        return value

    def _object_of(
        self, key: str, value: dict[str, Any], keywords: dict[str, Any], place: Place
    ) -> Schema:
        """Write a keyword's object: a subschema, or one for each name."""
        match key:
            case "properties":
                return {
                    name: self._schema(one, place.property(name)) for name, one in value.items()
                }
            case "patternProperties":
                others = place.others(keywords)
                return {name: self._schema(one, others) for name, one in value.items()}
            case "additionalProperties":
                return self._schema(value, place.others(keywords))
            case "items" | "additionalItems":
                return self._schema(value, place.rest(keywords))
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
        apart = list[Schema]()
        for branch in branches:
            others = [one for one in branches if one is not branch]
            apart.append(self._inlined(branch, place.apart(others)))
        return "oneOf", apart

    def _exclusive(self, branches: list[Schema], within: dict[str, Any]) -> bool:
        """Return whether no value fits two of the branches, and what they stand within."""
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
        """Return the reference to what a subschema refers to, as that is for a place."""
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
