"""Grammars and JSON schemas as constraints, by llguidance, whose home is here and in `grammar_child`.

It walks a trie of the vocabulary with a lexer and an Earley parser, so that a mask does not cost a look at each token.
"""

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from specmesh.child import Child, Limits
from specmesh.core.constraint import Grammar
from specmesh.core.vocabulary import Vocabulary
from specmesh.engines.grammar_child import LIMITS, told
from specmesh.errors import ChildFailed, RequestError

LOOKING = Limits(memory=2**29, seconds=3.0)
"""What looking at a grammar may take."""

KEPT = 16
"""Grammars that are not looked at again: clients ask with the same one again and again."""

LOOK_EVERY = 256
"""Ids after which a matcher has to make a mask: only then does the library see that it took more than it may."""

LOOK_AFTER = 16
"""Drafts refused one after the other, whatever they were, after which it has to as well: one that has run out refuses
all of them, and only a mask tells why. A mask for each would cost too much where drafts know nothing of the grammar."""


class Grammars:
    """Compiles grammars for one vocabulary. Used from one thread; what it compiles may go to another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._child = Child("specmesh.engines.grammar_child", LOOKING)
        self._looked = functools.lru_cache(KEPT)(self._look)

    def compile(self, grammar: Grammar) -> "GrammarConstraint":
        """The grammar at its beginning; raises RequestError where it is none, or takes more than it may.

        Made anew each time: copies by the library share a lexer and all that it may take, so that what one text took
        would be missing to another.
        """
        field, lark = grammar.field, self._looked(grammar)
        matcher, scout = (LLMatcher(self._spelling.tokenizer, lark, log_level=0, limits=LIMITS) for _ in range(2))
        if matcher.is_error():
            raise RequestError(f"{field} cannot be used: {told(matcher.get_error())}", field)
        return GrammarConstraint(matcher, scout, self._spelling, field)

    def close(self) -> None:
        """End the process that looks at grammars."""
        self._child.close()

    def _look(self, grammar: Grammar) -> str:
        """The grammar in the library's language, once the child has tried it."""
        field = grammar.field
        try:
            looked = self._child.ask({"kind": grammar.kind.value, "text": grammar.text})
        except ChildFailed as error:
            raise RequestError(f"{field} takes too much to compile: {error}", field) from error
        if "lark" not in looked:
            raise RequestError(f"{field} cannot be used: {looked.get('refused')}", field)
        return str(looked["lark"])

    @functools.cached_property
    def _spelling(self) -> "_Spelling":
        return _Spelling(self._vocabulary)


class GrammarConstraint:
    """`Constraint` by the library. What is asked of it more than once before it goes on is calculated once.

    A matcher that has run out of what it may take stays so; `spent` is what it said then. `scout` is another one, for
    ids that may never be said.
    """

    def __init__(self, matcher: LLMatcher, scout: LLMatcher, spelling: "_Spelling", field: str) -> None:
        self._matcher, self._scout, self._spelling, self._field = matcher, scout, spelling, field
        self.spent: str | None = None
        self._taken = self._tried = self._refused = 0
        self._allowed: NDArray[np.bool_] | None = None
        self._forced: tuple[int, ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return _complete(self._matcher)

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next, (n_vocab,); raises RequestError where there is none, or it takes too much."""
        if self._allowed is None:
            settled = self._settled(self._matcher)
            if settled is None:
                self._allowed = self._mask(self._matcher)
            else:
                self._allowed = np.zeros(self._spelling.n_vocab, np.bool_)
                self._allowed[settled] = True
        return self._allowed

    def _settled(self, matcher: LLMatcher) -> int | None:
        """The one id that comes next where only one text can follow, or None.

        Not at the end of that text, where a token may spell more than it: which one is the target's to say.
        """
        text, spelling = matcher.compute_ff_bytes(), self._spelling
        token = spelling.first(text)
        longer = spelling.beginning_with(text)
        return None if token is None or (len(longer) and self._mask(matcher)[longer].any()) else token

    def _mask(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        """Every id whose bytes may come next."""
        spelling = self._spelling
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if (why := self._ran_out(matcher)) is not None:
            raise RequestError(f"the {self._field} takes too much to go on with: {why}", self._field)
        mask = np.unpackbits(bits, bitorder="little", count=spelling.end + 1).view(np.bool_)
        allowed = mask[: spelling.n_vocab].copy()
        allowed[spelling.end_ids] = mask[spelling.end]
        if matcher.is_error() or not allowed.any():
            raise RequestError(f"the model has no token with which the {self._field} could go on", self._field)
        return allowed

    def allows(self, token: int) -> bool:
        """Whether this id may come next."""
        return self._fits(self._matcher, token)

    def take(self, token: int) -> None:
        """Go on by an id that is allowed and ends nothing."""
        self._matcher.consume_token(token)
        self._scout.consume_token(token)
        self._taken += 1
        if self._taken % LOOK_EVERY == 0 and not self.complete:
            self._matcher.compute_bitmask()
        self._allowed = self._forced = None

    def back(self, count: int) -> None:
        """Take back the last `count` ids."""
        if count:
            self._matcher.rollback(count)
            self._scout.rollback(count)
            self._taken -= count
            self._allowed = self._forced = None

    def fits(self, ids: Sequence[int]) -> int:
        """How many of these ids may come next, in this order; an id that ends the text where it may end."""
        fitting = taken = 0
        for token in ids:
            self._tried += 1
            if self._tried % LOOK_EVERY == 0 and not _complete(self._scout):
                self._scout.compute_bitmask()
            if not self._fits(self._scout, token):
                break
            fitting += 1
            if token in self._spelling.ends:
                break
            self._scout.consume_token(token)
            taken += 1
        self._refused = 0 if fitting else self._refused + bool(ids)
        if self._refused == LOOK_AFTER and not _complete(self._scout):
            self._refused = 0
            self._scout.compute_bitmask()
        self._ran_out(self._scout)
        self._scout.rollback(taken)
        return fitting

    def _ran_out(self, matcher: LLMatcher) -> str | None:
        """What this one has taken more of than it may. To have no token that could go on is another error of its."""
        if not matcher.is_error() or "NoExtension" in matcher.get_error():
            return None
        self.spent = told(matcher.get_error())
        return self.spent

    def _fits(self, matcher: LLMatcher, token: int) -> bool:
        if token in self._spelling.ends:
            return matcher.is_accepting()
        try:
            settled = None if _complete(matcher) else self._settled(matcher)
        except RequestError:  # it ran out of what it may take, which `allowed` tells
            return False
        return token == settled if settled is not None else matcher.validate_tokens([token]) == 1

    def forced(self) -> tuple[int, ...]:
        """Ids that come next whatever the target says."""
        if self._forced is None:
            self._forced = () if self.complete else self._spelling.tokens(self._matcher.compute_ff_bytes())
        return self._forced


def _complete(matcher: LLMatcher) -> bool:
    return matcher.is_stopped() and not matcher.is_error()


class _Spelling:
    """A vocabulary as the library knows it. `end` is its one id for every end; ids that end a text spell none."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [b"" if token in vocabulary.end_ids else piece for token, piece in enumerate(vocabulary.pieces)]
        self.n_vocab = self.end = len(pieces)
        self.ends, self.end_ids = vocabulary.end_ids, sorted(vocabulary.end_ids)
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Untokenized(pieces)))
        self._pieces = pieces
        self._order = np.array(sorted(range(len(pieces)), key=lambda token: (pieces[token], token)), np.int64)
        self._sorted = [pieces[token] for token in self._order]
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._longest = max(map(len, self._ids), default=0)

    def first(self, text: bytes) -> int | None:
        """The longest token with which a text begins, the lowest id of it; None where there is none."""
        sizes = range(min(self._longest, len(text)), 0, -1)
        return next((self._ids[text[:size]] for size in sizes if text[:size] in self._ids), None)

    def beginning_with(self, text: bytes) -> NDArray[np.int64]:
        """The ids of what begins with a text and is longer; none for no text."""
        if not text or len(text) >= self._longest:
            return self._order[:0]
        first = bisect_right(self._sorted, text)
        return self._order[first : bisect_left(self._sorted, text + bytes([255]) * (self._longest - len(text)), first)]

    def tokens(self, text: bytes) -> tuple[int, ...]:
        """Ids that spell a text, up to where a token may spell more than what is left of it."""
        found: list[int] = []
        while not len(self.beginning_with(text)) and (token := self.first(text)) is not None:
            found.append(token)
            text = text[len(self._pieces[token]) :]
        return tuple(found)


class _Untokenized:
    """A vocabulary for the library, which asks for texts as tokens only where it chooses itself how to spell them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.tokens = [*pieces, b""]
        self.eos_token_id = len(pieces)
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, _: bytes) -> list[int]:
        return []
