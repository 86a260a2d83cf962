"""Grammars and JSON schemas as constraints, by llguidance."""

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

COMPILING = Limits(memory=2**29, seconds=3.0)

CACHED = 16
"""Grammars that are known to compile: clients send the same one again and again."""

START, EACH = 0.05, 0.001
"""Seconds of CPU time that one text may take, and additional seconds per id; its drafts as much again. All sessions
wait for it. Common grammars take a tenth of that. Masks have the library's own limits."""

_END = 1 << 256
"""A byte mask that is at least this allows an end."""


class Grammars:
    """Compiles grammars for one vocabulary. Used from one thread; what it compiles may go to another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._child = Child("specmesh.engines.grammar_source", COMPILING)
        self._lark = functools.lru_cache(CACHED)(self._to_lark)

    def compile(self, grammar: Grammar) -> "GrammarConstraint":
        """Return the grammar at its start. Raises RequestError for an invalid one, or one that exceeds the limits.

        Each text compiles its own: the library's copies share a lexer and its limits.
        """
        return GrammarConstraint(self._lark(grammar), self._spelling, grammar.field)

    def close(self) -> None:
        self._child.close()

    def _to_lark(self, grammar: Grammar) -> str:
        field = grammar.field
        try:
            answer = self._child.ask({"kind": grammar.kind.value, "text": grammar.text})
        except ChildFailed as error:
            raise RequestError(f"{field} takes too much to compile: {error}", field) from error
        if "lark" not in answer:
            raise RequestError(f"{field} cannot be used: {answer.get('refused')}", field)
        return str(answer["lark"])

    @functools.cached_property
    def _spelling(self) -> "_Spelling":
        return _Spelling(self._vocabulary)


class GrammarConstraint:
    """`Constraint` by llguidance.

    `_tokens` computes masks, `_text` follows the text, `_drafts` follows drafts: a matcher that exceeded its limits
    never answers again, and drafts must not cost the text its own. `exhausted` is that matcher's error.
    """

    def __init__(self, lark: str, spelling: "_Spelling", field: str) -> None:
        self._tokens, text, drafts = (
            LLMatcher(vocabulary, lark, log_level=0, limits=LIMITS)
            for vocabulary in (spelling.tokenizer, spelling.bytes, spelling.bytes)
        )
        if self._tokens.is_error():
            raise RequestError(f"{field} cannot be used: {describe(self._tokens.get_error())}", field)
        self._text, self._drafts = _ByteMatcher(text), _ByteMatcher(drafts)
        self._spelling, self._field = spelling, field
        self.exhausted: str | None = None
        self._ids: list[int] = []
        self._steps = 0
        self._allowed: NDArray[np.bool_] | None = None
        self._forced: tuple[int, ...] = ()
        self._forks = False  # after what is forced
        self.allowed()  # computed on this thread
        self.forced()
        self._text.seconds = 0.0

    @property
    def complete(self) -> bool:
        return self._tokens.is_stopped() and not self._tokens.is_error()

    def allowed(self) -> NDArray[np.bool_]:
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

    def _settled(self, walk: "_ByteMatcher", said: bytes) -> int | None:
        """Return the only id where only one text can follow, or None.

        None at the end of that text if a token spells more than it: the choice is the target's.
        """
        spelling = self._spelling
        text = walk.forced(said, spelling.longest)
        token = spelling.first(text)
        if token is None or len(text) == spelling.longest:
            return token
        return None if any(map(walk.goes_on, spelling.beyond(text, walk.following()))) else token

    def _mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._tokens.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, bitorder="little", count=self._spelling.n_vocab + 1).view(np.bool_)
        mask[self._spelling.end_ids] = mask[-1]
        return mask[:-1]

    def allows(self, token: int) -> bool:
        with self._text:
            fits = self._fits(self._text, b"", token)
        return fits and self._ran_out(self._text, self._tokens) is None

    def accept(self, token: int) -> None:
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

    def rollback(self, count: int) -> None:
        if count:
            size = sum(len(self._spelling.pieces[token]) for token in self._ids[-count:])
            del self._ids[-count:]
            self._tokens.rollback(count)
            self._text.back(size)
            self._drafts.back(size)
            self._allowed, self._forced, self._forks = None, (), False

    def count_allowed(self, ids: Sequence[int]) -> int:
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

    def _ran_out(self, walk: "_ByteMatcher", *more: LLMatcher) -> str | None:
        """Return which limit was exceeded, if any. A vocabulary without a fitting token is another error."""
        errors = (matcher.get_error() for matcher in (walk.matcher, *more) if matcher.is_error())
        why = next((describe(error) for error in errors if "NoExtension" not in error), None)
        if walk.seconds > START + EACH * self._steps:
            why = f"more than {EACH * 1e3:g} ms of processor time for each token"
        self.exhausted = why or self.exhausted
        return why

    def _fits(self, walk: "_ByteMatcher", said: bytes, token: int) -> bool:
        if token in self._spelling.ends:
            return walk.at(said) and walk.matcher.is_accepting()
        settled = self._settled(walk, said)
        return token == settled if settled is not None else walk.at(said) and walk.goes_on(self._spelling.pieces[token])

    def forced(self) -> tuple[int, ...]:
        said = b"".join(self._spelling.pieces[token] for token in self._forced)
        while not self._forks and len(self._forced) < MAX_DRAFTS:
            with self._text:
                token = self._settled(self._text, said)
            self._forks = token is None
            if token is not None:
                self._forced, said = (*self._forced, token), said + self._spelling.pieces[token]
        return self._forced


class _ByteMatcher:
    """A grammar byte by byte: the matcher stands `_ahead` of the text, and rolls back where other bytes are asked for.

    From the `_free`th byte of `_ahead` on each is the only one possible. `seconds` counts CPU time within `with`.
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
        """Move to these bytes after the text; False where the grammar does not allow them."""
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
        """Return the only text possible after these bytes, at most `most` bytes; stand at its end unless it is cut."""
        if not (self._ahead.startswith(said) and self._free <= len(said)) and not self.at(said):
            return b""
        while len(self._ahead) < len(said) + most and (bits := self.following()).bit_count() == 1 and bits < _END:
            self._ahead += bytes((bits.bit_length() - 1,))
            self.matcher.consume_token(self._ahead[-1])
        return self._ahead[len(said) :][:most]

    def following(self) -> int:
        """Return a bit per possible next byte, and another for an end."""
        return int.from_bytes(self.matcher.compute_bitmask(), "little")

    def goes_on(self, text: bytes) -> bool:
        return 0 < len(text) == self.matcher.validate_tokens(list(text))


class _Spelling:
    """A vocabulary for llguidance, with one id, `n_vocab`, for all ends, whose own pieces are empty."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [b"" if token in vocabulary.end_ids else piece for token, piece in enumerate(vocabulary.pieces)]
        self.n_vocab, self.pieces = len(pieces), pieces
        self.ends, self.end_ids = vocabulary.end_ids, sorted(vocabulary.end_ids)
        self.tokenizer, self.bytes = LLTokenizer(TokenizerWrapper(_Untokenized(pieces))), LLTokenizer("byte")
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._sorted = sorted(self._ids)
        self.longest = max(map(len, self._ids), default=0)

    def first(self, text: bytes) -> int | None:
        """Return the longest token with which a text begins, by its lowest id; None where there is none."""
        sizes = range(min(self.longest, len(text)), 0, -1)
        return next((self._ids[text[:size]] for size in sizes if text[:size] in self._ids), None)

    def beyond(self, text: bytes, following: int) -> Iterator[bytes]:
        """Yield the rest of tokens that begin with a text, where one of the `following` bytes comes next."""
        index = bisect_right(self._sorted, text)
        while index < len(self._sorted) and (piece := self._sorted[index]).startswith(text):
            if following >> piece[len(text)] & 1:
                yield piece[len(text) :]
                index += 1
            else:
                index = bisect_right(self._sorted, piece[: len(text) + 1] + b"\xff" * self.longest)


class _Untokenized:
    """A vocabulary that tokenizes nothing: llguidance asks only where it chooses a spelling itself."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.tokens = [*pieces, b""]
        self.eos_token_id = len(pieces)
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, _: bytes) -> list[int]:
        return []
