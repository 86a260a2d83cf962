"""Grammars in sessions: rows are masked, drafts are cut, and forced ids are drafted.

If a grammar allows one id only, again and again, these ids are drafts that cost no drafter anything
and are always accepted. They are verified like any other. So they change how soon a text comes, and
never the text.
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
MAX_TOOLS = 2**21  # bytes of the longest description of tools, as many as a request may have
SIMPLER = "ask for a simpler grammar: a JSON schema, or alternatives that differ early"
CHANGING_IDS = 64
"""Latest ids of a drafter's text that may have changed since its last draft. A chain is shorter."""
_FORBIDDEN_LOGIT = np.float32(-1e30)
"""Stands for the logit of an id that is not allowed: less than any bias or penalty makes of another
logit, and still a number to filters.
"""
_CONTROL_CHARACTERS = re.compile(r"[\0-\b\v\f\x0e-\x1f]")
"""JSON needs six bytes for each, so a frame might not hold them."""


Ignored = Callable[[str, Sequence[str]], None]
"""Takes the name of a tool, and in words the parts of its schema that no grammar keeps to."""


class GrammarKind(StrEnum):
    """The languages of grammars: llama.cpp's GBNF, JSON schema, or calls of tools."""

    GBNF = "gbnf"
    JSON_SCHEMA = "json_schema"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A client's grammar for its text.

    text: in GBNF, or the text of a JSON object: a schema, or a description of tools. The latter has
        - `tools`: `name`, `description` and `parameters` of each;
        - `choice`: "auto", "required" or {"name": ...};
        - `parallel`, and the names of a model's `format` of calls and its `thinking`;
        - perhaps `strict`: names of tools whose schemas must be kept to;
        - perhaps `schema`: that of a text without calls.
    thinking: marks of a thought that may come before, as core.text.reasoning.before_answer names
        them. For tools they stand in the text.
    """

    kind: GrammarKind
    text: str
    thinking: str = ""

    @property
    def field(self) -> str:
        """Return the name of the request's field that it came in."""
        return "grammar" if self.kind is GrammarKind.GBNF else self.kind.value


def compact(value: object) -> str:
    """Return a description of tools as the wire has it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_grammar(grammar: Grammar) -> Grammar:
    """Return the same grammar.

    Raise RequestError for one that is too long, empty, no text, or no JSON object if it must be
    one.
    """
    field = grammar.field
    most = MAX_TOOLS if grammar.kind is GrammarKind.TOOLS else MAX_GRAMMAR
    parsed: object = {}
    try:
        # The length comes before the parser: that takes memory many times the text's.
        size = len(grammar.text.encode())
        if grammar.kind is not GrammarKind.GBNF and size <= most:
            parsed = json.loads(grammar.text)
    except UnicodeEncodeError as error:
        raise RequestError(f"{field} is not valid Unicode: {error.reason}", field) from None
    except RecursionError:
        raise RequestError(f"{field} is nested too deeply", field) from None
    except ValueError as error:
        raise RequestError(f"{field} is not JSON: {error}", field) from None
    if size > most:
        raise RequestError(f"{field} has {size} bytes, and {most} are the most", field)
    if _CONTROL_CHARACTERS.search(grammar.text):
        raise RequestError(f"{field} has control characters", field)
    if not grammar.text.strip():
        raise RequestError(f"{field} is empty", field)
    if not isinstance(parsed, dict):
        raise RequestError(f"{field} must be a JSON object", field)
    return grammar


class Constraint(Protocol):
    """A grammar after the ids that a text has so far.

    Only `allowed` raises if the grammar library has reached a limit.
    """

    @property
    def complete(self) -> bool:
        """Return True if the text is whole and nothing can follow."""
        ...

    @property
    def exhausted(self) -> str | None:
        """Return the limit that the library has reached, for good; None while it answers.

        No draft counts as allowed from then on.
        """

    def allowed(self) -> NDArray[np.bool_]:
        """Return the mask of ids that may come next, (n_vocab,); at least one is allowed.

        End ids are among them if the text may end here. Raise RequestError if there is none, or if
        the grammar takes more than it may.
        """
        ...

    def allows(self, token: int) -> bool:
        """Return True if `allowed` has this id; False if that raises."""
        ...

    def accept(self, token: int) -> None:
        """Advance by an id that is allowed and ends nothing."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` ids."""

    def count_allowed(self, ids: Sequence[int]) -> int:
        """Return how many of these ids may come next, in this order.

        An id that ends the text counts if the text may end there. Fewer are counted if counting
        takes too much. This changes no other answer.
        """
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the ids each of which is the only one allowed after those before it."""
        ...


def masked(logits: Logits, allowed: NDArray[np.bool_]) -> Logits:
    """Return a copy of a row in which only the `allowed` ids can be chosen.

    An id that the row has beyond the vocabulary cannot be chosen either.
    """
    left = np.full_like(logits, _FORBIDDEN_LOGIT)
    n_vocab = min(len(logits), len(allowed))
    np.copyto(left[:n_vocab], logits[:n_vocab], where=allowed[:n_vocab])
    return left


def choose_allowed(constraint: Constraint, sampler: Sampler, logits: Logits, position: int) -> int:
    """Return the choice out of a masked row; raise RequestError if no id is allowed.

    A sampler that weighs each id by itself needs no mask if its best id is allowed. A mask can cost
    more than the rest of the step.
    """
    if not sampler.filters:
        # The choice without a mask is the best of all ids. If it is allowed, it is the best of
        # those allowed.
        token = sampler.choose(logits, position)
        if constraint.allows(token):
            return token
    return sampler.choose(masked(logits, constraint.allowed()), position)


class DraftConstraint:
    """The constraint of a drafter's session, which goes on with drafts and back after a rejection.

    end_ids: ids that end the text.
    """

    def __init__(self, constraint: Constraint, end_ids: Iterable[int]) -> None:
        self._constraint = constraint
        self._end_ids = frozenset(end_ids)
        self._ids: list[int] = []  # that the constraint has accepted

    @property
    def exhausted(self) -> str | None:
        """Return the limit that the grammar library has reached; None while it answers."""
        return self._constraint.exhausted

    def sampler(
        self, plain: Sampler, length: int, latest: Callable[[int], Sequence[int]]
    ) -> Sampler:
        """Return the sampler of the id after a text of `length` ids, prompt not included.

        latest: returns the last so many ids of the text.
        It is the `plain` sampler if the grammar does not allow the text: no draft after that can be
        accepted.
        """
        unseen = max(length - len(self._ids), 0)
        # Drafts are replaced near the end only. To compare the whole text each time would take
        # longer with each id.
        window = min(length, unseen + CHANGING_IDS)
        tail = latest(window)
        start = length - window
        kept = start + common_length(self._ids[start:], tail)
        self._constraint.rollback(len(self._ids) - kept)
        del self._ids[kept:]
        rest = tail[kept - start :]
        # Counting changes nothing, so a text that breaks the grammar leaves it as it was.
        allowed = self._constraint.count_allowed(rest) == len(rest)
        if not allowed or not self._end_ids.isdisjoint(rest):
            return plain
        for token in rest:
            self._constraint.accept(token)
        self._ids += rest
        return _MaskingSampler(plain, self._constraint)


class _MaskingSampler(Sampler):
    """A sampler that keeps to a constraint while that allows an id."""

    __slots__ = ("_constraint", "_plain")

    def __init__(self, plain: Sampler, constraint: Constraint) -> None:
        super().__init__(plain.params)
        self._plain = plain
        self._constraint = constraint
        self.argmax = False

    def choose(self, logits: Logits, position: int) -> int:
        """Choose as the verifier will; freely where the grammar allows nothing: it is a draft."""
        try:
            return choose_allowed(self._constraint, self._plain, logits, position)
        except RequestError:
            return self._plain.choose(logits, position)
