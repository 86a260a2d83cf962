"""JSON schemas rewritten for llguidance: the same language, except that objects are closed.

llguidance, like JSON Schema, lets an object have any property that nothing forbids, and a model
that was asked for two would invent more. So an object is closed to undeclared names:

- All subschemas count that hold for one place in a document, through `allOf`, `anyOf`, `oneOf`,
  `$ref` and conditions. So a document whose names are all declared still fits.
- A place stays open if a schema mentions other names, or requires one that it does not declare.

Keywords that the library understands differently from JSON Schema are rewritten, or raise
SchemaFault.
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

    closed: objects have no undeclared names.
    apart: an object in a branch of a `oneOf` has the names of that branch only. By these the
        library can distinguish the branches.
    """

    closed: bool = True
    apart: bool = False


def for_library(root: Schema, part: Schema, reading: Reading) -> dict[str, Any]:
    """Return a schema, or a part of one, as a document of its own.

    Raises SchemaFault, and RecursionError for a schema that is nested too deeply.
    """
    try:
        return _Writer(root, reading).document(part)
    except _TooLarge:
        return _Writer(root, Reading(closed=False)).document(part)


class _TooLarge(Exception):
    pass


class _Writer:
    """Writes a schema anew; the target of references is defined once for each place."""

    def __init__(self, root: Schema, reading: Reading) -> None:
        self._root = root
        self._reading = reading
        self._subschemas = Subschemas(root)
        self._names: dict[object, str] = {}
        self._ahead: list[tuple[str, Schema, Place]] = []
        self._around: list[Schema] = []
        self._count = 0

    def document(self, part: Schema) -> dict[str, Any]:
        """Return a part of the schema, with all that it refers to."""
        roots = [part] if self._reading.closed else []
        place = self._subschemas.place(roots)
        body = self._schema(part, place)
        written = dict[str, Any]()
        if is_object(self._root) and "$schema" in self._root:
            written["$schema"] = self._root["$schema"]
        written |= body if is_object(body) else {"allOf": [body]}
        definitions = dict[str, Schema]()
        while self._ahead:
            name, node, node_place = self._ahead.pop()
            definitions[name] = self._schema(node, node_place)
        if definitions:
            written["$defs"] = definitions
        return written

    def _schema(self, node: Schema, place: Place) -> Schema:
        """Write a subschema as it is for a place. Raises _TooLarge."""
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
            return self._each(value, place)
        if is_list(value) and key in ("items", "prefixItems"):
            return [self._schema(item, place.item(at)) for at, item in enumerate(value)]
        return value

    def _each(self, nodes: list[Schema], place: Place) -> list[Schema]:
        return [self._schema(node, place) for node in nodes]

    def _object_of(
        self, key: str, value: dict[str, Any], keywords: dict[str, Any], place: Place
    ) -> Schema:
        """Write a keyword's object: a subschema, or one for each name."""
        match key:
            case "properties":
                return {
                    name: self._schema(node, place.property(name)) for name, node in value.items()
                }
            case "patternProperties":
                others = place.others(keywords)
                return {regex: self._schema(node, others) for regex, node in value.items()}
            case "additionalProperties":
                return self._schema(value, place.others(keywords))
            case "items" | "additionalItems":
                return self._schema(value, place.rest(keywords))
            case _:
                return value

    def _one_of(
        self, branches: list[Schema], keywords: dict[str, Any], place: Place
    ) -> tuple[str, list[Schema]]:
        """Write a `oneOf`, as an `anyOf` if its branches exclude each other."""
        taken = keywords.keys() & {"allOf", "anyOf"}
        if len(taken) < 2 and self._exclusive(branches, keywords):
            written = self._each(branches, place)
            if "anyOf" in taken:
                return "allOf", [{"anyOf": written}]
            return "anyOf", written
        if not self._reading.apart:
            return "oneOf", self._each(branches, place)
        apart = list[Schema]()
        for branch in branches:
            others = [other for other in branches if other is not branch]
            apart.append(self._inlined(branch, place.apart(others)))
        return "oneOf", apart

    def _exclusive(self, branches: list[Schema], within: dict[str, Any]) -> bool:
        """Return True if no value fits two of the branches and the schema around them."""
        if len(branches) > _MOST_BRANCHES:
            return False
        exclude = Exclusion(self._subschemas.behind)
        return all(exclude(first, second, within) for first, second in combinations(branches, 2))

    def _inlined(self, branch: Schema, place: Place) -> Schema:
        """Write the target of a branch in its place, so that the library can compare branches."""
        target = self._subschemas.resolved(branch)
        if any(target is outer for outer in self._around):
            return self._schema(branch, place)
        self._around.append(target)
        written = self._schema(target, place)
        self._around.pop()
        return written

    def _reference(self, node: dict[str, Any], place: Place) -> Any:
        """Return the reference to the target of a subschema, as it is for a place."""
        target = self._subschemas.target(node)
        if target is None:
            return node["$ref"]
        key = (id(target), place.key)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._ahead.append((self._names[key], target, place))
        return f"#/$defs/{self._names[key]}"


def _close(written: dict[str, Any], place: Place) -> None:
    """Forbid the undeclared names of an object.

    If other names are allowed, forbid declared ones among them in another spelling: the library
    compares letters, not names.
    """
    declared = written["properties"]
    others = written.get("additionalProperties", True)
    if place.names is not None and "additionalProperties" not in written:
        written["properties"] = declared | {
            name: True for name in place.names if name not in declared
        }
        written["additionalProperties"] = False
    elif place.single and others is not False and "patternProperties" not in written:
        required = sorted(required_names(written) - declared.keys())
        taken = [*declared, *required]
        if 0 < sum(map(len, taken)) < _MOST_LETTERS and max(map(len, taken)) < _LONGEST_NAME:
            written["properties"] = declared | dict.fromkeys(required, others)
            written["patternProperties"] = {whole(all_but(taken)): others}
            written["additionalProperties"] = False
