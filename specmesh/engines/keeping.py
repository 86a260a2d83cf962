"""How much of a tool's schema its arguments keep to."""

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, assert_never

from llguidance import regex_to_lark

from specmesh.engines.json_schema import ANNOTATIONS, SchemaFault
from specmesh.engines.schema_faults import (
    Compiled,
    Path,
    describe,
    lenient,
    matcher_of,
    rule_of,
    strict,
)
from specmesh.engines.schema_strings import ANYTHING, FORMATS, full_match, literal


class Keeping(Enum):
    """How a schema becomes a rule."""

    UNTRIED = auto()  # all of it, if the library takes it
    ALL = auto()  # all of it, or SchemaFault
    SOME = auto()  # what can be kept to
    NOTHING = auto()


def json_rule(keeping: Keeping, root: Any, path: Path = ()) -> Compiled | None:
    """Return the subschema at a path as a part of a rule; None where it is any JSON. Raise
    SchemaFault for what cannot be kept to and must."""
    match keeping:
        case Keeping.UNTRIED:
            return Compiled(rule_of(root, path))
        case Keeping.ALL:
            return Compiled(strict(root, path))
        case Keeping.SOME:
            return lenient(root, path)
        case Keeping.NOTHING:
            return None
        case _:
            assert_never(keeping)


def text_rule(keeping: Keeping, schema: Mapping[str, Any], end: str) -> Compiled:
    """Return a terminal of the texts that fit a schema, and have not in them what ends them; "" for
    any text. Raise SchemaFault as `json_rule` does."""
    parts, ignored = _parts(schema)
    if keeping is Keeping.NOTHING:
        return Compiled("")
    if ignored and keeping is not Keeping.SOME:
        raise SchemaFault(ignored[0])
    if not parts:
        return Compiled("", ignored)
    within = f"{ANYTHING}{literal(end)}{ANYTHING}"
    terminal = " & ".join([*map(_lark, parts), f"~{_lark(within)}"])
    if keeping is Keeping.UNTRIED:
        return Compiled(terminal, ignored)
    tried = matcher_of(f"start: t\nt[lazy]: T {json.dumps(end)}\nT: {terminal}")
    if not tried.is_error():
        return Compiled(terminal, ignored)
    why = describe(tried.get_error())
    if keeping is Keeping.ALL:
        raise SchemaFault(why)
    return Compiled("", (*ignored, why))


def _parts(schema: Mapping[str, Any]) -> tuple[list[str], tuple[str, ...]]:
    """Return expressions for whole texts that a schema's keywords stand for, and in words those that
    have none."""
    parts, ignored = list[str](), list[str]()
    for key, value in schema.items():
        match key, value:
            case "minLength", int():
                parts.append(f"(?s:.{{{value},}})")
            case "maxLength", int():
                parts.append(f"(?s:.{{0,{value}}})")
            case "format", str() if value in FORMATS:
                parts.append(FORMATS[value])
            case "pattern", str() if (regex := full_match(value)) is not None:
                parts.append(regex)
            case _ if key not in ANNOTATIONS and key != "type":
                ignored.append(f"{key} {json.dumps(value)[:100]} of a text between marks")
            case _:
                pass
    return parts, tuple(ignored)


def _lark(regex: str) -> str:
    return f"/{regex_to_lark(regex, '')}/"
