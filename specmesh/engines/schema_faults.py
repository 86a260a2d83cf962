"""JSON schemas as rules of a grammar, tried by llguidance, and the faults that it finds."""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specmesh.engines.json_schema import Reading, for_library
from specmesh.engines.schema_document import Document, Path, as_object, is_list, is_object
from specmesh.engines.schema_keywords import ANNOTATIONS, SchemaFault
from specmesh.engines.schema_places import required_names

LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000)
"""Limits beyond the library's own: a state is 0.35 to 0.85 kilobytes."""

ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it.

A model cannot emit blanks without end, and the schema forces more of the text.
"""

_MOST_TRIED = 1_000_000
"""Letters of the rules that are tried to find a fault, some microseconds each."""

_MOST_FAULTS = 8  # that one schema is freed from
_READINGS = (Reading(), Reading(apart=True), Reading(closed=False))
"""Ways to write a schema, tried one after the other. The second is for `oneOf`."""

_ONE_OF = "a oneOf can be kept to if a type or a required const distinguishes its branches"
_NO_TEXT = (
    "no text fits it: a rule that begins with itself needs another way to begin (left recursion)"
)
_UNFIT = "Unsatisfiable"  # the beginning of the library's error if no value fits


@dataclass(frozen=True, slots=True)
class Fault:
    """A subschema that cannot be kept to, or one of its keywords ("" for all), and the reason."""

    path: Path
    keyword: str
    reason: str

    def __str__(self) -> str:
        if not self.path:
            return self.reason
        return f"{shown(self.path)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A schema as a part of a rule. ignored: in words, the parts that the rule does not keep to."""

    rule: str
    ignored: tuple[str, ...] = ()


def shown(path: Path) -> str:
    """Write a path as people do: properties.a.anyOf[0]."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


_bytes = cache(partial(LLTokenizer, "byte"))
"""Makes a vocabulary of all bytes, once: that takes longer than to make many matchers."""


def matcher_of(lark: str) -> LLMatcher:
    """Return a matcher of bytes that has taken its first step."""
    matcher = LLMatcher(_bytes(), lark, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def describe(error: str) -> str:
    """Shorten the library's error: its positions and settings are in its own language."""
    message = re.sub(r"^(at )?[0-9()]+: (failed to compile JSON schema: )?", "", error)
    first, _, rest = message.partition("\n")
    if first.startswith("oneOf constraints"):
        return _ONE_OF
    if first.startswith("panic: "):
        return "it is too large"
    outside = re.match(r"Resource '(.+)' is not present", first)
    if outside is not None:
        return f"{outside[1][:200]} is not in this schema"
    cause = re.search(r"^error: (.+)", rest, re.MULTILINE)
    if cause is not None:
        line = rest.partition("\n")[0].strip()
        return f"{first[:200]} {cause[1]}: {line[:100]}"
    if "NoExtension" in first:
        return _NO_TEXT
    return first[:300]


def rule_of(
    root: Any, path: Path = (), *, lenient: bool = False, reading: Reading = _READINGS[0]
) -> str:
    """Return the subschema at a path as a part of a rule. Raises SchemaFault."""
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

    Raises SchemaFault with the place of the part that it cannot keep to.
    """
    search = _Search(root)
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


def lenient(root: Any, path: Path) -> Compiled | None:
    """Return the subschema at a path as a part of a rule that keeps to as much of it as possible.

    None if that is nothing.
    """
    with suppress(SchemaFault):
        return Compiled(strict(root, path))
    ignored = list[str]()
    for _ in range(_MOST_FAULTS):
        search = _Search(root, lenient=True)
        if search.error(path) is None:
            warnings = matcher_of(f"start: {search.rule}").get_grammar_warnings()
            different = dict.fromkeys(map(_warning, warnings))
            return Compiled(search.rule, (*ignored, *different))
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
        self._root = root
        self._lenient = lenient
        self._reading = reading
        self._document = Document(root)
        self._tried = 0

    def error(self, path: Path) -> str | None:
        """Return the reason for which the subschema at a path cannot be used, if any."""
        try:
            rule = rule_of(self._root, path, lenient=self._lenient, reading=self._reading)
        except SchemaFault as fault:
            return str(fault)
        self._tried += len(rule)
        self.rule = rule
        matcher = matcher_of(f"start: {rule}")
        if not matcher.is_error():
            return None
        return describe(matcher.get_error())

    def fault(self, path: Path) -> Fault:
        """Return the fault of the subschema at a path, which cannot be used.

        Its place is as exact as a limited number of trials shows it.
        """
        reason = self.error(path) or ""
        seen = {path}
        while (part := self._cause(path, reason, seen)) is not None:
            path = part
            reason = self.error(path) or reason
        keyword = self._keyword(path) if self._lenient else ""
        return Fault(path, keyword, reason)

    def _cause(self, path: Path, reason: str, seen: set[Path]) -> Path | None:
        """Return the first part that cannot be used for the same reason."""
        unfit = reason.startswith(_UNFIT)
        for part in self._parts(path, unfit=unfit):
            if part in seen or self._tried > _MOST_TRIED:
                continue
            seen.add(part)
            error = self.error(part)
            if error is None:
                continue
            if error == reason or (unfit and error.startswith(_UNFIT)):
                return part
        return None

    def _parts(self, path: Path, *, unfit: bool) -> Iterator[Path]:
        """Yield the paths of a subschema's own subschemas.

        unfit: only of those without which no value fits it.
        """
        node = _at(self._root, path)
        if not is_object(node):
            return
        required = required_names(node)
        least = node.get("minItems", 0)
        for key, value in node.items():
            steps: Iterable[str | int] = ()
            if key == "$ref" and isinstance(value, str):
                yield from self._document.path(node)
            elif key == "properties" and is_object(value):
                steps = [name for name in value if not unfit or name in required]
            elif key == "patternProperties" and is_object(value) and not unfit:
                steps = value
            elif key in ("prefixItems", "items") and is_list(value):
                steps = [at for at in range(len(value)) if not unfit or at < least]
            elif key in ("allOf", "anyOf", "oneOf") and is_list(value):
                steps = range(len(value))
            elif key in ("items", "additionalItems", "additionalProperties"):
                is_needed = key == "items" and bool(least)
                if is_needed or not unfit:
                    yield (*path, key)
            for step in steps:
                yield (*path, key, step)

    def _keyword(self, path: Path) -> str:
        """Return the keyword without which a subschema could be used; "" if there is none."""
        keywords = as_object(_at(self._root, path))
        for keyword in sorted(map(str, keywords), key=_STRUCTURE.__contains__):
            rest = _without(self._root, Fault(path, keyword, ""))
            if keyword not in ANNOTATIONS and _Search(rest, lenient=True).error(path) is None:
                return keyword
        return ""


_STRUCTURE = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems", "properties", "type"))
"""Keywords with the most meaning, so the last to be left out."""
