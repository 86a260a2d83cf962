"""JSON schemas as rules of a grammar, tried by llguidance, and where it cannot keep to them."""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specmesh.engines.json_schema import Reading, for_library
from specmesh.engines.schema_document import Document, Path, is_list, is_object
from specmesh.engines.schema_keywords import ANNOTATIONS, SchemaFault
from specmesh.engines.schema_places import required_names

LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000)
"""Besides the library's own: a state is 0.35 to 0.85 kilobytes."""

ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: a model cannot emit blanks without end, and the schema forces
more of the text."""

_MOST_TRIED = (
    1_000_000  # letters of the rules that are tried to find a fault, some microseconds each
)
_MOST_FAULTS = 8  # that one schema is freed from
_READINGS = (Reading(), Reading(apart=True), Reading(closed=False))
"""How a schema is written, one after the other, until the library takes it. The second is for
`oneOf`."""

_ONE_OF = "a oneOf can be kept to where a type or a required const tells its branches apart"
_NO_TEXT = (
    "no text fits it: a rule that begins with itself needs another way to begin (left recursion)"
)
_UNFIT = "Unsatisfiable"  # how the library's errors begin where no value fits


@dataclass(frozen=True, slots=True)
class Fault:
    """A subschema that cannot be kept to, or one of its keywords ("" for all), and the reason."""

    path: Path
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class Compiled:
    """A schema as a part of a rule. ignored: in words, what the rule does not keep to."""

    rule: str
    ignored: tuple[str, ...] = ()


def shown(path: Path) -> str:
    """Write a path as people do: properties.a.anyOf[0]."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).removeprefix(".")


_bytes = cache(partial(LLTokenizer, "byte"))
"""A vocabulary of all bytes, which takes longer to make than many a matcher."""


def matcher_of(lark: str) -> LLMatcher:
    """Return a matcher of bytes that has taken its first step."""
    matcher = LLMatcher(_bytes(), lark, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def describe(error: str) -> str:
    """Shorten the library's error: positions are in its own language, and so are its settings."""
    first, _, rest = re.sub(
        r"^(at )?[0-9()]+: (failed to compile JSON schema: )?", "", error
    ).partition("\n")
    if first.startswith("oneOf constraints"):
        return _ONE_OF
    if first.startswith("panic: "):
        return "it is too large"
    if (outside := re.match(r"Resource '(.+)' is not present", first)) is not None:
        return f"{outside[1][:200]} is not in this schema"
    if (cause := re.search(r"^error: (.+)", rest, re.MULTILINE)) is not None:
        return f"{first[:200]} {cause[1]}: {rest.partition(chr(10))[0].strip()[:100]}"
    return _NO_TEXT if "NoExtension" in first else first[:300]


def rule_of(
    root: Any, path: Path = (), *, lenient: bool = False, reading: Reading = _READINGS[0]
) -> str:
    """Return the subschema at a path as a part of a rule. Raise SchemaFault if it cannot be one."""
    try:
        document = for_library(root, _at(root, path), reading)
    except RecursionError:
        raise SchemaFault("it is nested too deeply") from None
    except (TypeError, AttributeError, ValueError) as error:
        raise SchemaFault(f"it is no JSON schema: {error}") from None
    options = ON_ONE_LINE | {"lenient": lenient}
    return f"%json {json.dumps(document | {'x-guidance': options})}"


def strict(root: Any, path: Path = ()) -> str:
    """Return the subschema at a path as a part of a rule that keeps to all of it.

    Raise SchemaFault with the place of what cannot be kept to.
    """
    search = _Search(root, reading=_READINGS[0])
    error = search.error(path)
    others = _READINGS[1:] if error == _ONE_OF else _READINGS[-1:]
    for reading in others:
        if error is None:
            break
        search = _Search(root, reading=reading)
        error = search.error(path)
    if error is not None:
        raise SchemaFault(str(search.fault(path)))
    return search.rule


def lenient(root: Any, path: Path = ()) -> Compiled | None:
    """Return the subschema at a path as a part of a rule that keeps to as much of it as can be;
    None where that is nothing."""
    with suppress(SchemaFault):
        return Compiled(strict(root, path))
    ignored = list[str]()
    for _ in range(_MOST_FAULTS):
        search = _Search(root, lenient=True)
        if search.error(path) is None:
            warnings = matcher_of(f"start: {search.rule}").get_grammar_warnings()
            return Compiled(search.rule, (*ignored, *dict.fromkeys(map(_warning, warnings))))
        fault = search.fault(path)
        if fault.path == path and not fault.keyword:
            break
        root = _without(root, fault)
        ignored.append(str(fault))
    return None


def _warning(text: str) -> str:
    return "oneOf is taken for anyOf" if text.startswith("oneOf ") else text


def _at(root: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        root = root[step]
    return root


def _without(root: Any, fault: Fault) -> Any:
    """Return a schema without a keyword, or with a subschema that allows everything."""
    root = copy.deepcopy(root)
    if fault.keyword:
        del _at(root, fault.path)[fault.keyword]
    else:
        *before, last = fault.path
        _at(root, before)[last] = True
    return root


class _Search:
    """Looks for the fault of a schema, by trying its parts."""

    def __init__(
        self, root: Any, *, lenient: bool = False, reading: Reading = _READINGS[0]
    ) -> None:
        self.rule = ""  # the last one that was tried
        self._root, self._lenient, self._reading = root, lenient, reading
        self._document = Document(root)
        self._tried = 0

    def error(self, path: Path) -> str | None:
        """Return why the subschema at a path cannot be used, if it cannot."""
        try:
            rule = rule_of(self._root, path, lenient=self._lenient, reading=self._reading)
        except SchemaFault as fault:
            return str(fault)
        self._tried += len(rule)
        self.rule = rule
        matcher = matcher_of(f"start: {rule}")
        return describe(matcher.get_error()) if matcher.is_error() else None

    def fault(self, path: Path) -> Fault:
        """Return where the subschema at a path, which cannot be used, has its fault: as exactly as
        few enough trials show it."""
        reason = self.error(path) or ""
        seen = {path}
        while (part := self._cause(path, reason, seen)) is not None:
            path = part
            reason = self.error(path) or reason
        return Fault(path, self._keyword(path) if self._lenient else "", reason)

    def _cause(self, path: Path, reason: str, seen: set[Path]) -> Path | None:
        """Return the first part that cannot be used for the same reason."""
        unfit = reason.startswith(_UNFIT)
        for part in self._parts(path, unfit=unfit):
            if part in seen or self._tried > _MOST_TRIED:
                continue
            seen.add(part)
            error = self.error(part)
            if error is not None and (error == reason or (unfit and error.startswith(_UNFIT))):
                return part
        return None

    def _parts(self, path: Path, *, unfit: bool) -> Iterator[Path]:
        """Yield the paths of a subschema's own subschemas; with `unfit` those without which no
        value fits it."""
        node = _at(self._root, path)
        if not is_object(node):
            return
        required = required_names(node)
        least = node.get("minItems", 0)
        for key, value in node.items():
            inside = (*path, key)
            if key == "$ref" and isinstance(value, str):
                yield from self._document.path(node)
            elif key == "properties" and is_object(value):
                yield from ((*inside, name) for name in value if not unfit or name in required)
            elif key == "patternProperties" and is_object(value):
                yield from ((*inside, name) for name in value if not unfit)
            elif key in ("prefixItems", "items") and is_list(value):
                some = least if unfit else len(value)
                yield from ((*inside, at) for at in range(len(value)) if at < some)
            elif key in ("allOf", "anyOf", "oneOf") and is_list(value):
                yield from ((*inside, at) for at in range(len(value)))
            elif key in ("items", "additionalItems", "additionalProperties"):
                needed = key == "items" and bool(least)
                yield from [inside] * (needed or not unfit)

    def _keyword(self, path: Path) -> str:
        """Return the keyword without which a subschema could be used; "" where it takes more."""
        node = _at(self._root, path)
        keywords = list(node) if is_object(node) else []
        for keyword in sorted(map(str, keywords), key=_STRUCTURE.__contains__):
            rest = _without(self._root, Fault(path, keyword, ""))
            if keyword not in ANNOTATIONS and _Search(rest, lenient=True).error(path) is None:
                return keyword
        return ""


_STRUCTURE = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems", "properties", "type"))
"""Keywords that say most, so the last to be left out."""
