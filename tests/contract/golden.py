"""Schemas of JSON values, compared with those recorded in golden/: the path of every value, and its type.

`a.b` is a key, `a[]` the items of an array, `a.*` the values of an object whose keys are data. A value that may also be
null is recorded as "null|number", one that may be missing as "absent|number". `make golden` rewrites the files and
keeps both; "absent" is written by hand. A change to a golden file is a decision: tell it in CHANGELOG.md.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
REWRITE = bool(os.environ.get("REWRITE_GOLDEN"))
MAPPINGS = {"steps_ms", "drafters", "rejected", "handshake_failures", "top_logprobs"}
"""Objects whose keys are data: numbers of rows, names of peers, reasons, tokens."""

TYPES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
Schema = dict[str, set[str]]


def check(name: str, value: object) -> None:
    """Hold a value's schema against golden/NAME.json, or record it there."""
    path, seen = FOLDER / f"{name}.json", Schema()
    for at, kind in _walk(value, "$"):
        seen.setdefault(at, set()).add(kind)
    recorded = (
        {at: set(kinds.split("|")) for at, kinds in json.loads(path.read_text()).items()} if path.exists() else {}
    )
    if REWRITE:
        told = {at: "|".join(sorted(kinds)) for at, kinds in sorted(_recorded(recorded, seen).items())}
        path.write_text(json.dumps(told, indent=1) + "\n")
        return
    differences = list(_differences(recorded, seen))
    assert not differences, f"{path.name} differs; if that is meant, run `make golden`:\n" + "\n".join(differences)


def check_facts(name: str, facts: dict[str, object]) -> None:
    """The same for facts that are recorded themselves."""
    path = FOLDER / f"{name}.json"
    if REWRITE:
        lines = [f" {json.dumps(key)}: {json.dumps(fact)}" for key, fact in facts.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert json.loads(path.read_text()) == facts, f"{path.name} differs; if that is meant, run `make golden`"


def _walk(value: object, at: str, key: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            yield at, "object"
            data = key in MAPPINGS
            for name, one in value.items():
                yield from _walk(one, f"{at}.*" if data else f"{at}.{name}", key if data else name)
        case list():
            yield at, "array"
            for one in value:
                yield from _walk(one, f"{at}[]", key)
        case _:
            yield at, TYPES[type(value)]


def _parent(at: str) -> str:
    return at.removesuffix("[]") if at.endswith("[]") else at.rpartition(".")[0]


def _is_data(at: str) -> bool:
    """Whether there may be none of these: items, or values of a mapping."""
    return at.endswith(("[]", ".*"))


def _differences(recorded: Schema, seen: Schema) -> Iterator[str]:
    for at, kinds in seen.items():
        if at not in recorded:
            yield f"new: {at}"
        elif kinds - recorded[at]:
            yield f"{at} is {'|'.join(sorted(kinds))}, was {'|'.join(sorted(recorded[at]))}"
    for at, kinds in recorded.items():
        if at not in seen and "absent" not in kinds and not _is_data(at) and "object" in seen.get(_parent(at), ()):
            yield f"gone: {at}"


def _recorded(recorded: Schema, seen: Schema) -> Schema:
    """What was seen, and what of it may be null or missing as was known before."""
    result = {at: kinds | (recorded.get(at, set()) & {"null", "absent"}) for at, kinds in seen.items()}
    for at in sorted(recorded.keys() - seen.keys(), key=len):
        parent = seen.get(_parent(at), set())
        unseen = _parent(at) in result and (_is_data(at) or "object" not in parent)
        if unseen or "absent" in recorded[at]:
            result[at] = recorded[at]
    return result
