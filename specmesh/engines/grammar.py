"""Grammars and JSON schemas as constraints, by llguidance."""

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fields import Json, list_at, object_at, objects_at
from specmesh.core.sampling.constraint import SIMPLER, Grammar, GrammarKind
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.sandbox import Child
from specmesh.engines.schema_faults import LIMITS, describe
from specmesh.errors import ChildFailed, ChildLate, RequestError

_SOURCE = "specmesh.engines.grammar_source"

Ignored = Callable[[str, Sequence[str]], None]

MOST_REPORTED = 1024  # tools that are known to have been reported
CACHED = 16  # grammars that are known to compile: clients send the same one again and again
REFUSED = 256  # and that are known not to
REMEMBERED = (
    300.0  # seconds for which that counts of one that took too much: the machine may have been busy
)

COMPILE_SECONDS, QUICK_SECONDS, QUICK_CPU = 3.0, 0.5, 0.05
"""Seconds that a grammar may take to compile; that it gets at first, and the processor's among
these. Common ones take a tenth of that."""

START, EACH = 0.05, 0.001
"""Seconds of CPU time that one text may take, and additional seconds per id; its drafts as much again. All sessions
wait for it. Common grammars take a tenth of that. Masks have the library's own limits."""


class Grammars:
    """Compiles grammars for one vocabulary. Safe from any thread; each thing that it compiles is
    for one.

    ignored: called once for each tool whose schema is ignored in parts, with the tool's name and
        these parts in words.
    """

    def __init__(self, vocabulary: Vocabulary, ignored: Ignored | None = None) -> None:
        self._vocabulary = vocabulary
        self._made: _Tokens | None = None
        how: Any = {"memory": 2**29, "forks": True}
        self._quick = Child(_SOURCE, seconds=QUICK_SECONDS, cpu=QUICK_CPU, **how)
        self._patient = Child(_SOURCE, seconds=COMPILE_SECONDS, **how)
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._usable = OrderedDict[bytes, _Verdict]()  # by digest, the latest last
        self._refused = OrderedDict[bytes, _Verdict]()
        self._ignored = ignored
        self._reported = set[int]()  # hashes of tools

    def prepare(self) -> None:
        """Make now what the first grammar would wait for, and all other threads with it: the
        library keeps the interpreter's lock for seconds where a vocabulary is large."""
        self._tokens()

    def compile(self, grammar: Grammar, *, patient: bool = True) -> "GrammarConstraint":
        """Return the grammar at its start. Raises RequestError for an invalid one, or one that
        exceeds the limits; where this is not to be patient, ChildLate for one that takes longer
        than most. Each text compiles its own: the library's copies share a lexer and its limits."""
        return GrammarConstraint(self._lark(grammar, patient), self._tokens(), grammar.field)

    def close(self) -> None:
        self._quick.close()
        self._patient.close()

    def _lark(self, grammar: Grammar, patient: bool) -> str:
        """Return a grammar in the library's language. What was found out about it before is not
        asked again."""
        named = f"{grammar.kind} {grammar.thinking} {grammar.text}"
        digest = hashlib.sha256(named.encode()).digest()
        with self._lock:
            verdict = self._usable.get(digest) or self._refused.get(digest)
        if verdict is None or time.monotonic() >= verdict.until:
            verdict = self._tried(grammar, patient)
        elif verdict.lark is not None and verdict.slow and not patient:
            raise ChildLate("it took long before")
        with self._lock:
            if verdict.lark is not None:
                _remember(self._usable, digest, verdict, CACHED)
            else:
                _remember(self._refused, digest, verdict, REFUSED)
        if verdict.lark is None:
            raise RequestError(verdict.why, verdict.field)
        return verdict.lark

    def _tried(self, grammar: Grammar, patient: bool) -> "_Verdict":
        child, field = self._patient if patient else self._quick, grammar.field
        asked: Json = {"kind": grammar.kind, "text": grammar.text, "thinking": grammar.thinking}
        try:
            answer = child.ask(asked)
        except ChildFailed as error:
            if isinstance(error, ChildLate) and not patient:
                raise
            loose = self._loosely(grammar, asked)
            if loose is None:
                why = f"{field} takes too much to compile: {error}"
                return _Verdict(None, why, field, until=time.monotonic() + REMEMBERED)
            answer = loose
        if "lark" not in answer:
            field = str(answer.get("field", field))
            return _Verdict(None, f"{field} cannot be used: {answer.get('refused')}", field)
        self._report(grammar, object_at(answer, "ignored"))
        return _Verdict(str(answer["lark"]), slow=patient)

    def _loosely(self, grammar: Grammar, asked: Json) -> Json | None:
        """Ask again for tools that take too long, without most of their schemas."""
        if grammar.kind is GrammarKind.TOOLS:
            with suppress(ChildFailed):
                return self._patient.ask(asked | {"loose": True})
        return None

    def _report(self, grammar: Grammar, ignored: Json) -> None:
        """Report what is ignored of tools that were not reported before."""
        if not ignored or self._ignored is None:
            return
        for tool in objects_at(json.loads(grammar.text), "tools"):
            name, known = str(tool.get("name")), hash(json.dumps(tool, sort_keys=True))
            if name not in ignored:
                continue
            with self._lock:
                new = known not in self._reported
                if len(self._reported) >= MOST_REPORTED:
                    self._reported.clear()
                self._reported.add(known)
            if new:
                self._ignored(name, [str(one) for one in list_at(ignored, name)])

    def _tokens(self) -> "_Tokens":
        """Return the vocabulary as the library has it, which takes long and much memory, and is
        made once."""
        with self._building:
            if self._made is None:
                self._made = _Tokens(self._vocabulary)
            return self._made


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A grammar in the library's language, or why it cannot be used. slow: it may take longer than
    most. until: when it is to be tried again, by the monotonic clock."""

    lark: str | None
    why: str = ""
    field: str = ""
    slow: bool = False
    until: float = math.inf


def _remember(known: OrderedDict[bytes, _Verdict], name: bytes, what: _Verdict, most: int) -> None:
    """Note what was found out; forget the oldest beyond `most`."""
    known[name] = what
    known.move_to_end(name)
    if len(known) > most:
        known.popitem(last=False)


class GrammarConstraint:
    """`Constraint` by llguidance. `_text` follows the text, `_drafts` follows drafts: a matcher that exceeded its
    limits never answers again, and drafts must not cost the text its own. `exhausted` is that matcher's error."""

    def __init__(self, lark: str, tokens: "_Tokens", field: str) -> None:
        self._text, self._drafts = _Matcher(lark, tokens), _Matcher(lark, tokens)
        if self._text.library.is_error():
            raise RequestError(
                f"{field} cannot be used: {describe(self._text.library.get_error())}", field
            )
        self._tokens, self._field = tokens, field
        self.exhausted: str | None = None
        self._steps = 0
        self._allowed: NDArray[np.bool_] | None = None
        self.forced()  # computed on this thread, as long as it takes
        self._text.seconds = 0.0
        self.allowed()

    @property
    def complete(self) -> bool:
        return self._text.library.is_stopped() and not self._text.library.is_error()

    def allowed(self) -> NDArray[np.bool_]:
        if self._allowed is None:
            forced = self._text.forced()
            if forced:
                allowed: NDArray[np.bool_] = np.arange(self._tokens.eos_token_id) == forced[0]
            else:
                allowed = self._tokens.mask(self._text.library)
            if (why := self._ran_out(self._text)) is not None:
                raise RequestError(
                    f"the {self._field} takes too much to go on with: {why}; {SIMPLER}", self._field
                )
            if self._text.library.is_error() or not allowed.any():  # in error it allows an end
                raise RequestError(
                    f"the model has no token with which the {self._field} could go on", self._field
                )
            self._allowed = allowed
        return self._allowed

    def allows(self, token: int) -> bool:
        return self._text.fits(token) and self._ran_out(self._text) is None

    def accept(self, token: int) -> None:
        self._text.forced()  # where one run ends and the next begins may depend on the text only, for a resumed one
        self._text.consume(token)
        self._drafts.consume(token)
        self._allowed = None
        self._steps += 1

    def rollback(self, count: int) -> None:
        if count:
            self._text.rollback(count)
            self._drafts.rollback(count)
            self._allowed = None

    def count_allowed(self, ids: Sequence[int]) -> int:
        self._steps = max(self._steps, len(ids))
        self._drafts.run = self._text.forced()
        consumed = ended = 0
        for token in ids:
            if not self._drafts.fits(token) or self._ran_out(self._drafts) is not None:
                break
            if token in self._tokens.ends:
                ended = 1
                break
            self._drafts.consume(token)
            consumed += 1
        self._drafts.rollback(consumed)
        return consumed + ended

    def forced(self) -> tuple[int, ...]:
        return tuple(self._text.forced()[:MAX_DRAFTS])

    def _ran_out(self, matcher: "_Matcher") -> str | None:
        """Return which limit was exceeded, if any. A vocabulary without a fitting token is another error."""
        error = matcher.library.get_error()
        why = describe(error) if error and "NoExtension" not in error else None
        if matcher.seconds > START + EACH * self._steps:
            why = f"more than {EACH * 1e3:g} ms of processor time for each token"
        self.exhausted = why or self.exhausted
        return why


class _Matcher:
    """The library's matcher, and the seconds of processor time that it took for other things than masks. run: the ids
    that alone can follow, of which each is allowed after those before it; None: not computed here."""

    def __init__(self, lark: str, tokens: "_Tokens") -> None:
        self.library = LLMatcher(tokens.library, lark, log_level=0, limits=LIMITS)
        self.seconds = 0.0
        self.run: list[int] | None = None
        self._tokens = tokens

    def fits(self, token: int) -> bool:
        if token in self._tokens.ends:
            return self.library.is_accepting()
        if forced := self.forced():
            return token == forced[0]
        with self._timed():
            return bool(self._tokens.pieces[token]) and self.library.validate_tokens([token]) == 1

    def forced(self) -> list[int]:
        """Return the ids that spell what alone can follow, but for an end that a token may spell more than."""
        if self.run is None:
            with self._timed():
                self.library.compute_ff_bytes()  # else it finds none
                self.run = self.library.compute_ff_tokens()
        return self.run

    def consume(self, token: int) -> None:
        with self._timed():
            self.library.consume_token(token)
        # The rest of a run holds; where there is none, another begins.
        rest = self.run[1:] if self.run and self.run[0] == token else []
        self.run = rest or None

    def rollback(self, count: int) -> None:
        if count:
            self.library.rollback(count)
            self.run = None

    @contextmanager
    def _timed(self) -> Generator[None]:
        self.seconds -= time.thread_time()
        yield
        self.seconds += time.thread_time()


class _Tokens:
    """A vocabulary for llguidance, with one id, `n_vocab`, for all ends, whose own pieces are empty."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.pieces = [
            b"" if token in vocabulary.end_ids else piece
            for token, piece in enumerate(vocabulary.pieces)
        ]
        self.ends, self._end_ids = vocabulary.end_ids, sorted(vocabulary.end_ids)
        self._ids = {
            piece: token for token, piece in reversed(list(enumerate(self.pieces))) if piece
        }
        self._longest = max(map(len, self._ids), default=0)
        self.tokens = [*self.pieces, b""]  # these and __call__ are what the library asks for
        self.eos_token_id = len(self.pieces)
        self.special_token_ids = [self.eos_token_id]
        self.library = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: bytes) -> list[int]:
        """Spell a text that is forced: by its longest tokens, of several the one of the lowest id."""
        ids, at = list[int](), 0
        while at < len(text):
            sizes = range(min(self._longest, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._ids), None)
            if size is None:
                break
            ids.append(self._ids[text[at : at + size]])
            at += size
        return ids

    def mask(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=self.eos_token_id + 1).view(np.bool_)
        allowed[self._end_ids] = allowed[-1]
        return allowed[:-1]
