"""Grammars and JSON schemas as constraints, by llguidance."""

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fields import Json, list_at, object_at, objects_at
from specmesh.core.sampling.constraint import SIMPLER, Grammar, GrammarKind, Ignored
from specmesh.core.vocabulary.spelling import Spelling
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.sandbox import Child
from specmesh.engines.schema_faults import LIMITS, describe
from specmesh.errors import ChildFailed, ChildLate, RequestError
from specmesh.free_memory import give_back_freed

_SOURCE = "specmesh.engines.grammar_source"

MOST_REPORTED = 1024  # tools remembered as reported
CACHED = 16  # usable grammars remembered: clients send the same one again and again
REFUSED = 256  # refused grammars remembered
REMEMBERED = 300.0
"""Seconds for which a grammar that took too much is refused: the machine may have been busy."""

# Common grammars take a tenth of these.
COMPILE_SECONDS = 3.0  # that a grammar may take to compile
QUICK_SECONDS = 0.5  # that it gets at first
QUICK_CPU = 0.05  # seconds of processor time among these

START = 0.05
EACH = 0.001
"""Seconds of CPU time that a text may take, and additional seconds per id.

Its drafts may take as much again. All sessions wait for it. Common grammars take a tenth of that.
Masks have the library's own limits.
"""


TABLE_BYTES = 370  # of memory that an id takes, about: 18 MB of 49,000, 97 MB of 262,000
TABLE_SHARE = 0.05  # of a model's size that all ids may take while the model loads


class Grammars:
    """Compiles grammars for one vocabulary.

    Safe from any thread. Each compiled constraint belongs to one thread.

    ignored: called once for each tool whose schema is ignored in parts, with the tool's name and
        these parts in words.
    """

    def __init__(self, vocabulary: Vocabulary, ignored: Ignored | None = None) -> None:
        self._vocabulary = vocabulary
        self._made: _Tokens | None = None
        options: Any = {"memory": 2**29, "forks": True}
        self._quick = Child(_SOURCE, seconds=QUICK_SECONDS, cpu=QUICK_CPU, **options)
        self._patient = Child(_SOURCE, seconds=COMPILE_SECONDS, **options)
        self._lock = threading.Lock()
        self._usable = OrderedDict[bytes, _Verdict]()  # by digest, the latest last
        self._refused = OrderedDict[bytes, _Verdict]()
        self._ignored = ignored
        self._reported = set[int]()  # hashes of tools

    def prepare(self) -> None:
        """Make now what the first grammar would wait for, see `prepared`."""
        self._tokens()

    def compile(self, grammar: Grammar, *, patient: bool = True) -> "GrammarConstraint":
        """Return the grammar at its start.

        Each text compiles its own: the library's copies share a lexer and its limits. Raises
        RequestError for a grammar that is invalid or exceeds the limits, and unless `patient`
        ChildLate for one that takes longer than most.
        """
        return GrammarConstraint(self._lark(grammar, patient), self._tokens(), grammar.field)

    def close(self) -> None:
        self._quick.close()
        self._patient.close()

    def _lark(self, grammar: Grammar, patient: bool) -> str:
        """Return a grammar in the library's language; earlier verdicts are remembered."""
        named = f"{grammar.kind} {grammar.thinking} {grammar.text}"
        digest = hashlib.sha256(named.encode()).digest()
        with self._lock:
            verdict = self._usable.get(digest) or self._refused.get(digest)
        if verdict is None or time.monotonic() >= verdict.until:
            verdict = self._compiled(grammar, patient)
        elif verdict.slow and not patient:
            raise ChildLate("it took long before")
        with self._lock:
            if verdict.lark is not None:
                _remember(self._usable, digest, verdict, CACHED)
            else:
                _remember(self._refused, digest, verdict, REFUSED)
        if verdict.lark is None:
            raise RequestError(verdict.reason, verdict.field)
        return verdict.lark

    def _compiled(self, grammar: Grammar, patient: bool) -> "_Verdict":
        child = self._patient if patient else self._quick
        field = grammar.field
        request: Json = {"kind": grammar.kind, "text": grammar.text, "thinking": grammar.thinking}
        try:
            answer = child.ask(request)
        except ChildFailed as error:
            if isinstance(error, ChildLate) and not patient:
                raise
            loose = self._loosely(grammar, request)
            if loose is None:
                reason = f"{field} takes too much to compile: {error}"
                until = time.monotonic() + REMEMBERED
                return _Verdict(lark=None, reason=reason, field=field, until=until)
            answer = loose
        if "lark" not in answer:
            field = str(answer.get("field", field))
            reason = f"{field} cannot be used: {answer.get('refused')}"
            return _Verdict(lark=None, reason=reason, field=field)
        self._report(grammar, object_at(answer, "ignored"))
        return _Verdict(lark=str(answer["lark"]), slow=patient)

    def _loosely(self, grammar: Grammar, request: Json) -> Json | None:
        """Compile tools that take too long without most of their schemas."""
        if grammar.kind is GrammarKind.TOOLS:
            with suppress(ChildFailed):
                return self._patient.ask(request | {"loose": True})
        return None

    def _report(self, grammar: Grammar, ignored: Json) -> None:
        """Report the ignored parts of tools that were not reported before."""
        if not ignored or self._ignored is None:
            return
        for tool in objects_at(json.loads(grammar.text), "tools"):
            name = str(tool.get("name"))
            if name not in ignored:
                continue
            digest = hash(json.dumps(tool, sort_keys=True))
            with self._lock:
                is_new = digest not in self._reported
                if len(self._reported) >= MOST_REPORTED:
                    self._reported.clear()
                self._reported.add(digest)
            if is_new:
                self._ignored(name, list(map(str, list_at(ignored, name))))

    def _tokens(self) -> "_Tokens":
        """Return the library's form of the vocabulary."""
        if self._made is None:
            self._made = _tokens_of(self._vocabulary)
        return self._made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """The result of compiling a grammar.

    lark: the grammar in the library's language; None if it cannot be used.
    reason, field: why it cannot be used, and the request's field to name.
    slow: it may take longer than most.
    until: time of the monotonic clock after which it is tried again.
    """

    lark: str | None
    reason: str = ""
    field: str = ""
    slow: bool = False
    until: float = math.inf


def _remember(
    known: OrderedDict[bytes, _Verdict], digest: bytes, verdict: _Verdict, most: int
) -> None:
    """Note a verdict; forget the oldest beyond `most`."""
    known[digest] = verdict
    known.move_to_end(digest)
    if len(known) > most:
        known.popitem(last=False)


class GrammarConstraint:
    """`Constraint` by llguidance.

    `_text` follows the text, `_drafts` follows drafts. A matcher that exceeded its limits never
    answers again, and drafts must not cost the text its own. `exhausted` is that matcher's error.
    """

    def __init__(self, lark: str, tokens: "_Tokens", field: str) -> None:
        self._text = _Matcher(lark, tokens)
        self._drafts = _Matcher(lark, tokens)
        if self._text.library.is_error():
            error = describe(self._text.library.get_error())
            raise RequestError(f"{field} cannot be used: {error}", field)
        self._tokens = tokens
        self._field = field
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
        if self._allowed is not None:
            return self._allowed
        field = self._field
        forced = self._text.forced()
        if forced:
            allowed: NDArray[np.bool_] = np.arange(self._tokens.eos_token_id) == forced[0]
        else:
            allowed = self._tokens.mask(self._text.library)
        limit = self._ran_out(self._text)
        if limit is not None:
            reason = f"the {field} takes too much to go on with: {limit}; {SIMPLER}"
            raise RequestError(reason, field)
        if self._text.library.is_error() or not allowed.any():  # in error it allows an end
            raise RequestError(f"the model has no token with which the {field} could go on", field)
        self._allowed = allowed
        return allowed

    def allows(self, token: int) -> bool:
        return self._text.fits(token) and self._ran_out(self._text) is None

    def accept(self, token: int) -> None:
        # Runs of forced ids must depend on the text only, so that a resumed text has the same.
        self._text.forced()
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
        consumed = 0
        ended = 0
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
        """Return the limit that was exceeded, if any.

        A vocabulary without a fitting token is another error.
        """
        limit = None
        error = matcher.library.get_error()
        if error and "NoExtension" not in error:
            limit = describe(error)
        if matcher.seconds > START + EACH * self._steps:
            limit = f"more than {EACH * 1e3:g} ms of processor time for each token"
        self.exhausted = limit or self.exhausted
        return limit


class _Matcher:
    """The library's matcher.

    seconds: processor time that it took for all except masks.
    run: the only ids that can follow, one after the other; None: not computed at this position.
    """

    def __init__(self, lark: str, tokens: "_Tokens") -> None:
        self.library = LLMatcher(tokens.library, lark, log_level=0, limits=LIMITS)
        self.seconds = 0.0
        self.run: list[int] | None = None
        self._tokens = tokens

    def fits(self, token: int) -> bool:
        if token in self._tokens.ends:
            return self.library.is_accepting()
        forced = self.forced()
        if forced:
            return token == forced[0]
        with self._timed():
            return bool(self._tokens.pieces[token]) and self.library.validate_tokens([token]) == 1

    def forced(self) -> list[int]:
        """Return the ids that spell the only text that can follow.

        An end is left out if a token may spell more than it.
        """
        if self.run is None:
            with self._timed():
                self.library.compute_ff_bytes()  # else it finds none
                self.run = self.library.compute_ff_tokens()
        return self.run

    def consume(self, token: int) -> None:
        with self._timed():
            self.library.consume_token(token)
        # The rest of a run holds; without a rest another run begins.
        run = self.run
        self.run = None
        if run and run[0] == token:
            self.run = run[1:] or None

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
    """A vocabulary for llguidance, with one id, `n_vocab`, for all end ids.

    End ids have no text there.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.ends = vocabulary.end_ids
        self._end_ids = sorted(vocabulary.end_ids)
        self.pieces = vocabulary.pieces
        self._spelling = Spelling(vocabulary.pieces, vocabulary.end_ids)
        tokens = [*vocabulary.pieces, b""]
        for token in self._end_ids:
            tokens[token] = b""
        # The library reads these fields, and calls __call__.
        self.tokens: Sequence[bytes] = tokens
        self.eos_token_id = len(vocabulary.pieces)
        self.special_token_ids = [self.eos_token_id]
        wrapper = TokenizerWrapper(self)
        self.library = LLTokenizer(wrapper)
        # It has read them, and keeps the wrapper.
        self.tokens = ()
        wrapper.tokens = ()

    def __call__(self, text: bytes) -> list[int]:
        """Spell a forced text by its longest tokens; of equal ones by that of the lowest id."""
        return self._spelling.spell(text)

    def mask(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=self.eos_token_id + 1).view(np.bool_)
        allowed[self._end_ids] = allowed[-1]
        return allowed[:-1]


def is_prepared(n_vocab: int, model_bytes: int) -> bool:
    """Return True if what grammars of a vocabulary need is made while the model loads.

    A small model loads too fast for that: a daemon then makes it once there are no requests.
    """
    return n_vocab * TABLE_BYTES <= model_bytes * TABLE_SHARE


def prepared(vocabulary: Vocabulary) -> object:
    """Return what grammars of a vocabulary need; it is made once, as long as it is kept.

    All threads would wait for it with the first grammar: where a vocabulary is large, the library
    keeps the interpreter's lock for a second.
    """
    return _tokens_of(vocabulary)


_BUILDING = threading.Lock()
_built = WeakValueDictionary[Vocabulary, _Tokens]()


def _tokens_of(vocabulary: Vocabulary) -> _Tokens:
    """Return the library's form of a vocabulary.

    It takes seconds and much memory, so equal vocabularies share one.
    """
    with _BUILDING:
        tokens = _built.get(vocabulary)
        if tokens is None:
            tokens = _Tokens(vocabulary)
            give_back_freed()
            _built[vocabulary] = tokens
        return tokens
