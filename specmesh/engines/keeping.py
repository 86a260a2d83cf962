"""How closely the rules of a tool's arguments keep to its schema."""

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, assert_never

from llguidance import regex_to_lark

from specmesh.engines.schema_document import Path
from specmesh.engines.schema_faults import (
    Compiled,
    describe,
    lenient,
    matcher_of,
    rule_of,
    strict,
)
from specmesh.engines.schema_keywords import OF_TEXTS, SchemaFault
from specmesh.engines.schema_strings import ANYTHING, FORMAT_REGEXES, full_match, literal

_LONGEST = 100_000
_LONGEST_BY_PATTERN = 256
"""Letters of a text that are counted; a text that has a pattern as well needs more states."""


class Keeping(Enum):
    """How a schema becomes a rule."""

    UNTRIED = auto()  # all of it, if the library takes it
    ALL = auto()  # all of it, or SchemaFault
    SOME = auto()  # as much as the library takes
    NOTHING = auto()


def json_rule(keeping: Keeping, root: Any, path: Path = ()) -> Compiled | None:
    """Return the subschema at a path as a part of a rule; None if any JSON fits.

    Raises SchemaFault for a part that must be kept to and cannot.
    """
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
    """Return a terminal of the texts that fit a schema, with their end; "" for any text.

    The terminal is for a lazy lexeme. Raises SchemaFault as `json_rule`.
    """
    parts, least, ignored = _parts(schema)
    if keeping is Keeping.NOTHING:
        return Compiled("")
    if ignored and keeping is not Keeping.SOME:
        raise SchemaFault(ignored[0])
    if not parts:
        return Compiled("", ignored)
    terminal = _ended(parts, least, end)
    if keeping is Keeping.UNTRIED:
        return Compiled(terminal, ignored)
    matcher = matcher_of(f"start: t\nt[lazy]: T\nT: {terminal}")
    if not matcher.is_error():
        return Compiled(terminal, ignored)
    reason = describe(matcher.get_error())
    if keeping is Keeping.ALL:
        raise SchemaFault(reason)
    return Compiled("", (*ignored, reason))


def _ended(parts: Mapping[str, str], least: int, end: str) -> str:
    """Return the terminal of texts that fit all parts, up to the first `end`.

    A lazy lexeme ends there if the text before fits. If not, it must not go on beyond. Formats have
    no letter of `end`.
    """
    mark = literal(end)
    fitting = [f"(?:{regex}){mark}" for regex in parts.values()]
    if "pattern" in parts and "format" not in parts:
        fitting.append(f"~{ANYTHING}{mark}(?s:.+)")
    elif least and "format" not in parts:
        fitting.append(f"~(?s:.{{0,{least - 1}}}){mark}(?s:.+)")
    return " & ".join(map(_lark, fitting))


def _parts(schema: Mapping[str, Any]) -> tuple[dict[str, str], int, tuple[str, ...]]:
    """Return expressions for whole texts by keyword, the least length, and the rest in words.

    The rest are the keywords without an expression.
    """
    parts = dict[str, str]()
    ignored = list[str]()
    longest = _LONGEST_BY_PATTERN if "pattern" in schema else _LONGEST
    least = 0
    most = ""
    for key, value in schema.items():
        match key, value:
            case "minLength", int() if value <= longest:
                least = value
            case "maxLength", int() if value <= longest:
                most = str(value)
            case "format", str() if value in FORMAT_REGEXES:
                parts[key] = FORMAT_REGEXES[value]
            case "pattern", str() if (regex := full_match(value)) is not None:
                parts[key] = regex
            case _ if key in OF_TEXTS:
                ignored.append(f"{key} {json.dumps(value)[:100]} of a text between marks")
            case _:
                pass
    if least > 0 or most:
        parts["length"] = f"(?s:.{{{least},{most}}})"
    return parts, least, tuple(ignored)


def _lark(regex: str) -> str:
    sign = "~" if regex.startswith("~") else ""
    return f"{sign}/{regex_to_lark(regex.removeprefix('~'), '')}/"
