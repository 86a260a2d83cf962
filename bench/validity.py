"""Documents that are written at random by a grammar, and faults of them by their schema."""

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
from jsonschema.validators import validator_for

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar import GrammarConstraint
from specmesh.errors import RequestError

END = 256  # the id that ends a text, after one for each byte
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), frozenset({END}))
"""A vocabulary that can write every text in every way."""

FORMATS = ("date", "ipv4", "ipv6", "uuid")
"""Formats that jsonschema checks by the standard library, and that the grammars have."""

IGNORED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
        "format",
    }
)
"""Keywords of tools' schemas that do not bind a call's arguments."""

_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LOOK_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")


def without_ignored(schema: Any) -> Any:
    """Return a tool's schema without the parts that its grammar ignores: keywords, and patterns
    with look-around."""
    if isinstance(schema, list):
        return list(map(without_ignored, schema))
    if not isinstance(schema, dict):
        return schema
    kept = dict[str, Any]()
    for keyword, value in schema.items():
        if keyword in IGNORED:
            continue
        if keyword == "pattern" and _LOOK_AROUND.search(str(value)):
            continue
        if keyword in ("enum", "const", "default", "examples"):
            kept[keyword] = value
        elif keyword in _NAMED and isinstance(value, dict):
            kept[keyword] = {name: without_ignored(one) for name, one in value.items()}
        else:
            kept[keyword] = without_ignored(value)
    return kept


def violation(schema: Any, text: str) -> str:
    """Return the fault of a JSON text by its schema, in the words of jsonschema; empty for a valid
    text, or if jsonschema cannot use the schema."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = jsonschema.FormatChecker(FORMATS)
    try:
        errors = kind(schema, format_checker=checker).iter_errors(document)
        wrong = jsonschema.exceptions.best_match(errors)
    except Exception:  # noqa: BLE001 - references, patterns and types that jsonschema cannot use
        return ""
    if wrong is None:
        return ""
    path = "/".join(map(str, wrong.absolute_path))
    return f"/{path}: {wrong.validator}: {wrong.message[:120]}"


def repeated_names(text: str) -> list[str]:
    """Return the names that an object of a JSON text has twice: readers keep one value of them."""
    repeated = set[str]()

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in pairs:
            if name in kept:
                repeated.add(name)
            kept[name] = value
        return kept

    with suppress(ValueError):
        json.loads(text, object_pairs_hook=checked)
    return sorted(repeated)


@dataclass(frozen=True, slots=True)
class Written:
    """A text; complete if the grammar lets it end there."""

    text: str
    complete: bool


class Writer:
    """Writes texts at random, in which brackets and quotes close the sooner the longer the text is.

    phrases: texts that it tries as a whole, for marks that single bytes would hardly ever spell.
    """

    def __init__(self, seed: int, phrases: Sequence[str] = (), most: int = 2000) -> None:
        self._random = random.Random(seed)
        self._phrases: list[list[int]] = []
        for phrase in filter(None, phrases):
            self._phrases.append(list(phrase.encode()))
        self._most = most
        self._weights = np.full(END + 1, 0.02)  # bytes of other alphabets, control characters
        self._weights[32:127] = 1.0
        self._weights[ord("\\")] = 0.3
        self._closing = [*b'"}]', END]

    def write(self, constraint: GrammarConstraint) -> Written:
        """Return a text of the grammar. Raise RequestError if the grammar cannot go on."""
        ids = list[int]()
        while len(ids) < self._most:
            if constraint.complete:
                return _written(ids, complete=True)
            phrase = self._fitting(constraint)
            for token in phrase or [self._chosen(constraint, len(ids))]:
                if token == END:
                    return _written(ids, complete=True)
                constraint.accept(token)
                ids.append(token)
        return _written(ids, complete=False)

    def _fitting(self, constraint: GrammarConstraint) -> list[int]:
        """Return a phrase that may come next; none of them most of the time."""
        if not self._phrases or self._random.random() > 0.2:
            return []
        phrase = self._random.choice(self._phrases)
        if constraint.count_allowed(phrase) < len(phrase):
            return []
        return phrase

    def _chosen(self, constraint: GrammarConstraint, length: int) -> int:
        """Return one of the ids that may come next."""
        weights = np.where(constraint.allowed(), self._weights, 0.0)
        weights[self._closing] *= 4.0 + length / 10
        total = float(weights.sum())
        if not total:
            raise RequestError("nothing can follow")
        point = self._random.random() * total
        return int(np.searchsorted(weights.cumsum(), point, side="right"))


def _written(ids: list[int], *, complete: bool) -> Written:
    """Return the text of these bytes."""
    return Written(bytes(ids).decode("utf-8", "replace"), complete)
