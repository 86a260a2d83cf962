"""A JSON schema and the subschemas that references name in it."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard
from urllib.parse import unquote, urldefrag, urljoin

Schema = Any
"""A JSON object or a boolean; the library refuses other values."""

Path = tuple[str | int, ...]
"""The names and numbers that lead to a subschema."""


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def as_list(value: object) -> list[Any]:
    """Return a list; an empty one for other values."""
    return value if is_list(value) else []


def as_object(value: object) -> dict[str, Any]:
    """Return an object; an empty one for other values."""
    return value if is_object(value) else {}


class Document:
    """A schema, and the subschemas that references name in it."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._named: dict[str, Schema] = {}
        self._bases: dict[int, str] = {}
        self._paths: dict[int, Path] = {}
        ahead: list[tuple[Any, str, Path]] = [(root, "", ())]
        while ahead:
            value, base, path = ahead.pop()
            inner = list[tuple[str | int, Any]]()
            if is_object(value):
                base = self._note(value, base)
                self._paths[id(value)] = path
                inner += value.items()
            elif is_list(value):
                inner += enumerate(value)
            for step, part in inner:
                ahead.append((part, base, (*path, step)))

    def _note(self, node: dict[str, Any], base: str) -> str:
        """Note the names of a subschema; return the base of the references in it."""
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
        """Return the subschema that `$ref` names; None if it is not in this document."""
        base = self._bases.get(id(node), "")
        named = urljoin(base, node["$ref"])
        if named in self._named:
            return self._named[named]
        address, pointer = urldefrag(named)
        found = _follow(self._named.get(address), unquote(pointer))
        if found is None and node["$ref"].startswith("#"):
            found = _follow(self.root, unquote(pointer))  # also out of a part with its own name
        return found

    def path(self, node: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the path of the subschema that `$ref` names, if it is in this document."""
        target = self.target(node)
        if id(target) in self._paths:
            yield self._paths[id(target)]


def _id_of(node: dict[str, Any]) -> str:
    name = node.get("$id", node.get("id"))
    if not isinstance(name, str):
        return ""
    return name.removesuffix("#")


def _follow(value: Schema, pointer: str) -> Schema:
    """Return the subschema at a JSON pointer, if there is one."""
    if not pointer or value is None:
        return value
    head, *keys = pointer.split("/")
    if head:
        return None
    for key in keys:
        name = key.replace("~1", "/").replace("~0", "~")
        if is_object(value):
            value = value.get(name)
        elif is_list(value) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value if is_object(value) or isinstance(value, bool) else None
