"""What a text may be: a grammar or a JSON schema, and what follows from it for the next id.

The target's law is conditioned row by row: of each row only the ids that the grammar allows after the ids before it are
left, before anything else is done to it, and the sampler chooses among these. Nothing of it depends on drafts. (It is
not the target's law over whole texts given that they are in the language: that would need all continuations.)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specmesh.core.candidates import Logits
from specmesh.errors import RequestError

MAX_GRAMMAR = 2**16
"""Bytes of the longest grammar or schema."""

SIMPLER = "ask for a simpler grammar: a JSON schema, or alternatives that differ early"
"""What to do about one that takes more than it may."""

_BARRED = np.float32(-1e30)
"""In the place of a logit that is not allowed: less than any bias or penalty makes of another, and a number, so that
filters can go on calculating."""


class GrammarKind(StrEnum):
    """What language a grammar is written in: llama.cpp's GBNF, or JSON schema."""

    GBNF = "gbnf"
    JSON_SCHEMA = "json_schema"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a client wants a text to be. A schema is the text of a JSON object."""

    kind: GrammarKind
    text: str

    @property
    def field(self) -> str:
        """What a request calls it."""
        return "grammar" if self.kind is GrammarKind.GBNF else "json_schema"


def check_grammar(grammar: Grammar) -> Grammar:
    """The same grammar; raises RequestError for one that is too long, no Unicode, or, of a schema, no JSON object."""
    field = grammar.field
    try:
        size = len(grammar.text.encode())
        schema = json.loads(grammar.text) if grammar.kind is GrammarKind.JSON_SCHEMA and size <= MAX_GRAMMAR else {}
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} is not valid Unicode: {error.reason}", field) from None
    except RecursionError:
        raise RequestError(f"{field} is nested too deeply", field) from None
    except ValueError as error:
        raise RequestError(f"{field} is not JSON: {error}", field) from None
    if size > MAX_GRAMMAR:
        raise RequestError(f"{field} has {size} bytes, and {MAX_GRAMMAR} are the most", field)
    if not grammar.text.strip():
        raise RequestError(f"{field} is empty", field)
    if not isinstance(schema, dict):
        raise RequestError(f"{field} must be a JSON object", field)
    return grammar


class Constraint(Protocol):
    """A grammar after the ids that a text has so far. What the library runs out of raises in `allowed` alone."""

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing can follow."""

    @property
    def spent(self) -> str | None:
        """What the library ran out of, in its words; None where it answers. For good: then nothing `fits` any more, or
        nothing is allowed either."""

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next, (n_vocab,), end ids where the text may end here; at least one.

        Raises RequestError where there is none, or the grammar takes more than it may.
        """

    def allows(self, token: int) -> bool:
        """Whether `allowed` has this id; False where it raises."""

    def take(self, token: int) -> None:
        """Go on by an id that is allowed and ends nothing."""

    def back(self, count: int) -> None:
        """Take back the last `count` ids."""

    def fits(self, ids: Sequence[int]) -> int:
        """How many of these ids may come next, in this order; an id that ends the text counts where it may end.

        Whatever is asked here changes no other answer; fewer may be counted where that takes too much.
        """

    def forced(self) -> tuple[int, ...]:
        """Ids that come next whatever the target says: each is the only one that is allowed after those before it."""


def masked(logits: Logits, allowed: NDArray[np.bool_]) -> Logits:
    """A copy of a row in which only the `allowed` ids can be chosen; not what a row has beyond the vocabulary."""
    left = np.full_like(logits, _BARRED)
    n_vocab = min(len(logits), len(allowed))
    np.copyto(left[:n_vocab], logits[:n_vocab], where=allowed[:n_vocab])
    return left
