"""What sessions do with a constraint: rows masked, drafts cut, and drafts of the grammar's own.

Where a grammar leaves one id only, again and again, these ids are drafts that cost no drafter anything and always
stand. They are verified like any other all the same: so they change how soon a text comes, and never the text.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specmesh.core.prefix import common_length
from specmesh.core.sampling.sampler import Logits, Sampler
from specmesh.errors import RequestError

MAX_GRAMMAR = 2**16  # bytes of the longest grammar or schema
MAX_TOOLS = 2**21  # bytes of all that describes tools, as many as a request may have
SIMPLER = "ask for a simpler grammar: a JSON schema, or alternatives that differ early"
# in the place of a logit that is not allowed: less than any bias or penalty makes of another, and a number to filters
_BARRED = np.float32(-1e30)


class GrammarKind(StrEnum):
    """What language a grammar is written in: llama.cpp's GBNF, JSON schema, or calls of tools."""

    GBNF = "gbnf"
    JSON_SCHEMA = "json_schema"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language of a client's text.

    text: GBNF, or a JSON object: a schema, or a description of tools. That has `tools` (`name`,
        `description`, `parameters` of each), `choice` ("auto", "required", {"name": ...}),
        `parallel`, and the names of a model's `format` of calls and its `thinking`; perhaps
        `strict`, names of tools whose schemas must be kept to, and `schema`, that of a text
        without calls.
    thinking: marks of a thought that may come before, as core.reasoning.before_answer names them.
        For tools they stand in the text.
    """

    kind: GrammarKind
    text: str
    thinking: str = ""

    @property
    def field(self) -> str:
        return "grammar" if self.kind is GrammarKind.GBNF else self.kind.value


def compact(value: object) -> str:
    """Return a description of tools as the wire has it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_grammar(grammar: Grammar) -> Grammar:
    """The same grammar; raises RequestError for one that is too long, no text, or, where it should be, no JSON
    object."""
    field, most = grammar.field, MAX_TOOLS if grammar.kind is GrammarKind.TOOLS else MAX_GRAMMAR
    try:
        size = len(grammar.text.encode())
        parsed: object = (
            json.loads(grammar.text)
            if grammar.kind is not GrammarKind.GBNF and size <= most
            else {}
        )
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} is not valid Unicode: {error.reason}", field) from None
    except RecursionError:
        raise RequestError(f"{field} is nested too deeply", field) from None
    except ValueError as error:
        raise RequestError(f"{field} is not JSON: {error}", field) from None
    if size > most:
        raise RequestError(f"{field} has {size} bytes, and {most} are the most", field)
    if re.search(
        r"[\0-\b\v\f\x0e-\x1f]", grammar.text
    ):  # no frame may have to hold them as JSON, six bytes each
        raise RequestError(f"{field} has control characters", field)
    if not grammar.text.strip():
        raise RequestError(f"{field} is empty", field)
    if not isinstance(parsed, dict):
        raise RequestError(f"{field} must be a JSON object", field)
    return grammar


class Constraint(Protocol):
    """A grammar after the ids that a text has so far. What the library runs out of raises in `allowed` alone."""

    @property
    def complete(self) -> bool: ...  # the text is whole and nothing can follow

    @property
    def exhausted(self) -> str | None:
        """What the library ran out of, for good: no draft counts as allowed any more. None while it answers."""

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next, (n_vocab,), end ids where the text may end here; at least one. Raises RequestError
        where there is none, or the grammar takes more than it may."""
        ...

    def allows(self, token: int) -> bool: ...  # whether `allowed` has it; False where that raises

    def accept(self, token: int) -> None:
        """Go on by an id that is allowed and ends nothing."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` ids."""

    def count_allowed(self, ids: Sequence[int]) -> int:
        """How many of these ids may come next, in this order; an id that ends the text counts where it may end. Changes
        no other answer; counts fewer where counting takes too much."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Ids of which each is the only one allowed after those before it, whatever the target says."""
        ...


def masked(logits: Logits, allowed: NDArray[np.bool_]) -> Logits:
    """A copy of a row in which only the `allowed` ids can be chosen; not what a row has beyond the vocabulary."""
    left = np.full_like(logits, _BARRED)
    n_vocab = min(len(logits), len(allowed))
    np.copyto(left[:n_vocab], logits[:n_vocab], where=allowed[:n_vocab])
    return left


def choose_allowed(constraint: Constraint, sampler: Sampler, logits: Logits, position: int) -> int:
    """The choice out of a masked row; raises RequestError where no id is allowed. Where each id is weighed by itself,
    the best of all is the best of those that are allowed if it is one of them: a mask can cost more than the rest of
    the step."""
    if not sampler.filters:
        token = sampler.choose(logits, position)
        if constraint.allows(token):
            return token
    return sampler.choose(masked(logits, constraint.allowed()), position)


CHANGING_IDS = 64  # at the end of a drafter's text, that may have changed since its last draft: a chain is shorter


class DraftConstraint:
    """The constraint of one session at its drafter: it goes on with the drafts, and back where they did not stand."""

    def __init__(self, constraint: Constraint, end_ids: Iterable[int]) -> None:
        self._constraint, self._end_ids = constraint, frozenset(end_ids)
        self._ids: list[int] = []

    @property
    def exhausted(self) -> str | None:
        return self._constraint.exhausted

    def sampler(
        self, plain: Sampler, length: int, latest: Callable[[int], Sequence[int]]
    ) -> Sampler:
        """Return what chooses the id after a text of `length` ids without its prompt; `latest(n)` are its last n. The
        `plain` sampler where the grammar does not allow the text, so that no draft after it can be accepted."""
        window = min(length, max(length - len(self._ids), 0) + CHANGING_IDS)
        tail, start = latest(window), length - window
        kept = start + common_length(self._ids[start:], tail)
        self._constraint.rollback(len(self._ids) - kept)
        del self._ids[kept:]
        rest = tail[kept - start :]
        if self._constraint.count_allowed(rest) < len(rest) or not self._end_ids.isdisjoint(rest):
            return plain
        for token in rest:
            self._constraint.accept(token)
        self._ids += rest
        return _Masking(plain, self._constraint)


class _Masking(Sampler):
    __slots__ = ("_constraint", "_plain")

    def __init__(self, plain: Sampler, constraint: Constraint) -> None:
        super().__init__(plain.params)
        self._plain, self._constraint, self.argmax = plain, constraint, False

    def choose(self, logits: Logits, position: int) -> int:
        try:
            return choose_allowed(self._constraint, self._plain, logits, position)
        except RequestError:
            return self._plain.choose(logits, position)
