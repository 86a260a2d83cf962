"""Grammars and JSON schemas as constraints, by llguidance, whose home is here and in `grammar_child`.

It walks a trie of the vocabulary with a lexer and an Earley parser, so that a mask does not cost a look at each token.
"""

import functools
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from specmesh.core.prefix import common_length
from specmesh.core.sampling.constraint import SIMPLER, Grammar
from specmesh.core.session_params import MAX_DRAFTS
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar_source import LIMITS, describe
from specmesh.engines.sandbox import Child, Limits
from specmesh.errors import ChildFailed, RequestError

LOOKING = Limits(memory=2**29, seconds=3.0)
"""What looking at a grammar may take."""

KEPT = 16
"""Grammars that are not looked at again: clients ask with the same one again and again."""

START, EACH = 0.05, 0.001
"""Seconds of processor time that a grammar may take to go along a text, and for each of its ids besides; its drafts as
much again. All sessions wait for it. Common grammars take a tenth of that. Masks have bounds of the library's."""

_END = 1 << 256
"""A mask of bytes that is at least this allows an end."""


class Grammars:
    """Compiles grammars for one vocabulary. Used from one thread; what it compiles may go to another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._child = Child("specmesh.engines.grammar_source", LOOKING)
        self._looked = functools.lru_cache(KEPT)(self._look)

    def compile(self, grammar: Grammar) -> "GrammarConstraint":
        """The grammar at its beginning; raises RequestError where it is none, or takes more than it may.

        Made anew each time: copies by the library share a lexer and all that it may take, so that what one text took
        would be missing to another.
        """
        field, lark = grammar.field, self._looked(grammar)
        spelling = self._spelling
        tokens, text, drafts = (
            LLMatcher(vocabulary, lark, log_level=0, limits=LIMITS)
            for vocabulary in (spelling.tokenizer, spelling.bytes, spelling.bytes)
        )
        if tokens.is_error():
            raise RequestError(f"{field} cannot be used: {describe(tokens.get_error())}", field)
        constraint = GrammarConstraint(tokens, walk := _Walk(text), _Walk(drafts), spelling, field)
        constraint.allowed()  # on this thread, and in its time
        constraint.forced()
        walk.seconds = 0.0
        return constraint

    def close(self) -> None:
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

    A matcher that has run out of what it may take stays so; `spent` is what it said then. `tokens` makes masks, `text`
    goes along the text, `drafts` along ids that may never be said: what these take is missing to no text.
    """

    def __init__(self, tokens: LLMatcher, text: "_Walk", drafts: "_Walk", spelling: "_Spelling", field: str) -> None:
        self._tokens, self._text, self._drafts = tokens, text, drafts
        self._spelling, self._field = spelling, field
        self.spent: str | None = None
        self._ids: list[int] = []
        self._steps = 0
        self._allowed: NDArray[np.bool_] | None = None
        self._forced: tuple[int, ...] = ()
        self._forks = False  # after what is forced

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return self._tokens.is_stopped() and not self._tokens.is_error()

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next, (n_vocab,); raises RequestError where there is none, or it takes too much."""
        if self._allowed is None:
            with self._text:
                settled = self._settled(self._text, b"")
            allowed = self._mask() if settled is None else np.zeros(self._spelling.n_vocab, np.bool_)
            if (why := self._ran_out(self._text, self._tokens)) is not None:
                raise RequestError(f"the {self._field} takes too much to go on with: {why}; {SIMPLER}", self._field)
            if settled is not None:
                allowed[settled] = True
            elif self._tokens.is_error() or not allowed.any():
                raise RequestError(f"the model has no token with which the {self._field} could go on", self._field)
            self._allowed = allowed
        return self._allowed

    def _settled(self, walk: "_Walk", said: bytes) -> int | None:
        """The one id that comes next where only one text can follow, or None.

        Not at the end of that text, where a token may spell more than it: which one is the target's to say.
        """
        spelling = self._spelling
        text = walk.forced(said, spelling.longest)
        token = spelling.first(text)
        if token is None or len(text) == spelling.longest:
            return token
        return None if any(map(walk.goes_on, spelling.beyond(text, walk.following()))) else token

    def _mask(self) -> NDArray[np.bool_]:
        """Every id whose bytes may come next."""
        bits = np.frombuffer(self._tokens.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, bitorder="little", count=self._spelling.end + 1).view(np.bool_)
        mask[self._spelling.end_ids] = mask[-1]
        return mask[:-1]

    def allows(self, token: int) -> bool:
        with self._text:
            fits = self._fits(self._text, b"", token)
        return fits and self._ran_out(self._text, self._tokens) is None

    def take(self, token: int) -> None:
        piece = self._spelling.pieces[token]
        with self._text:
            self._tokens.consume_token(token)
            self._text.take(piece)
        with self._drafts:
            self._drafts.take(piece)
        self._ids.append(token)
        self._steps += 1
        known = self._forced[:1] == (token,)
        self._allowed, self._forced, self._forks = None, self._forced[1:] if known else (), known and self._forks

    def back(self, count: int) -> None:
        if count:
            size = sum(len(self._spelling.pieces[token]) for token in self._ids[-count:])
            del self._ids[-count:]
            self._tokens.rollback(count)
            self._text.back(size)
            self._drafts.back(size)
            self._allowed, self._forced, self._forks = None, (), False

    def fits(self, ids: Sequence[int]) -> int:
        """How many of these ids may come next, in this order; an id that ends the text where it may end."""
        said, fitting = b"", 0
        self._steps = max(self._steps, len(ids))
        for token in ids:
            with self._drafts:
                fits = self._fits(self._drafts, said, token)
            if self._ran_out(self._drafts) is not None or not fits:
                break
            fitting += 1
            if token in self._spelling.ends:
                break
            said += self._spelling.pieces[token]
        return fitting

    def _ran_out(self, walk: "_Walk", *more: LLMatcher) -> str | None:
        """What was taken more of than may be. To have no token that could go on is another error of the library's."""
        errors = (matcher.get_error() for matcher in (walk.matcher, *more) if matcher.is_error())
        why = next((describe(error) for error in errors if "NoExtension" not in error), None)
        if walk.seconds > START + EACH * self._steps:
            why = f"more than {EACH * 1e3:g} ms of processor time for each token"
        self.spent = why or self.spent
        return why

    def _fits(self, walk: "_Walk", said: bytes, token: int) -> bool:
        if token in self._spelling.ends:
            return walk.at(said) and walk.matcher.is_accepting()
        settled = self._settled(walk, said)
        return token == settled if settled is not None else walk.at(said) and walk.goes_on(self._spelling.pieces[token])

    def forced(self) -> tuple[int, ...]:
        """Ids that come next whatever the target says, as many as a step can have."""
        said = b"".join(self._spelling.pieces[token] for token in self._forced)
        while not self._forks and len(self._forced) < MAX_DRAFTS:
            with self._text:
                token = self._settled(self._text, said)
            self._forks = token is None
            if token is not None:
                self._forced, said = (*self._forced, token), said + self._spelling.pieces[token]
        return self._forced


class _Walk:
    """A grammar byte by byte: it goes ahead of the text that is taken only as far as it is asked, and comes back.

    From the `_free`th byte of what is `_ahead` on, each is the only one that can follow those before it. `seconds` of
    the processor's were taken within `with`.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.seconds = 0.0
        self._ahead, self._free = b"", 0

    def __enter__(self) -> None:
        self.seconds -= time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time()

    def take(self, text: bytes) -> None:
        if self._ahead.startswith(text):
            self._ahead, self._free = self._ahead[len(text) :], max(self._free - len(text), 0)
        else:
            self.at(b"")
            self.matcher.consume_tokens(list(text))

    def back(self, size: int) -> None:
        self.at(b"")
        self.matcher.rollback(size)

    def at(self, said: bytes) -> bool:
        """Go where these bytes lead from the text's end; whether the grammar goes there."""
        shared = min(len(said), len(self._ahead))
        kept = shared if said[:shared] == self._ahead[:shared] else common_length(said, self._ahead)
        if kept < len(self._ahead):
            self.matcher.rollback(len(self._ahead) - kept)
            self._ahead, self._free = said[:kept], min(self._free, kept)
        rest = said[kept:]
        if self.goes_on(rest):
            self.matcher.consume_tokens(list(rest))
            self._ahead, self._free = said, len(said)
        return self._ahead == said

    def forced(self, said: bytes, most: int) -> bytes:
        """What alone can follow these bytes, at most so much of it; unless that is cut, this stands at its end then."""
        if not (self._ahead.startswith(said) and self._free <= len(said)) and not self.at(said):
            return b""
        while len(self._ahead) < len(said) + most and (bits := self.following()).bit_count() == 1 and bits < _END:
            self._ahead += bytes((bits.bit_length() - 1,))
            self.matcher.consume_token(self._ahead[-1])
        return self._ahead[len(said) :][:most]

    def following(self) -> int:
        """A bit for each byte that may come where this stands; another where the text may end."""
        return int.from_bytes(self.matcher.compute_bitmask(), "little")

    def goes_on(self, text: bytes) -> bool:
        """Whether this may come where it stands."""
        return 0 < len(text) == self.matcher.validate_tokens(list(text))


class _Spelling:
    """A vocabulary as the library knows it. `end` is its one id for every end; ids that end a text spell none."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [b"" if token in vocabulary.end_ids else piece for token, piece in enumerate(vocabulary.pieces)]
        self.n_vocab = self.end = len(pieces)
        self.ends, self.end_ids = vocabulary.end_ids, sorted(vocabulary.end_ids)
        self.tokenizer, self.bytes = LLTokenizer(TokenizerWrapper(_Untokenized(pieces))), LLTokenizer("byte")
        self.pieces = pieces
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._sorted = sorted(self._ids)
        self.longest = max(map(len, self._ids), default=0)

    def first(self, text: bytes) -> int | None:
        """The longest token with which a text begins, the lowest id of it; None where there is none."""
        sizes = range(min(self.longest, len(text)), 0, -1)
        return next((self._ids[text[:size]] for size in sizes if text[:size] in self._ids), None)

    def beyond(self, text: bytes, following: int) -> Iterator[bytes]:
        """What tokens that begin with a text spell after it, where one of the `following` bytes comes next."""
        index = bisect_right(self._sorted, text)
        while index < len(self._sorted) and (piece := self._sorted[index]).startswith(text):
            if following >> piece[len(text)] & 1:
                yield piece[len(text) :]
                index += 1
            else:
                index = bisect_right(self._sorted, piece[: len(text) + 1] + b"\xff" * self.longest)


class _Untokenized:
    """A vocabulary for the library, which asks for texts as tokens only where it chooses itself how to spell them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.tokens = [*pieces, b""]
        self.eos_token_id = len(pieces)
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, _: bytes) -> list[int]:
        return []
