"""The verifier's vocabulary at the drafter: fetched, and compared with the draft model's own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.vocabulary.exchange import VocabularyExchange, VocabularyState
from specmesh.core.vocabulary.match import MatchKind, VocabularyMatch, compare
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import DraftEngine
from specmesh.engines.remapped import RemappedDrafter
from specmesh.wire.messages import Hello, Vocab, Welcome

log = structlog.get_logger("specmesh.drafter")

Compared = tuple[Vocabulary, DraftEngine | None, VocabularyMatch | None]

_LEVELS = {MatchKind.PARTIAL: "warning", MatchKind.DIFFERENT: "error"}


class VocabularyHandshake:
    """A drafter getting to know its verifier. vocabulary: the verifier's, None until it is known.
    engine: the draft engine in its ids, None until then, and if the two have too little in common.
    Comparing takes seconds for large ones: a thread does it, and `look` takes the result over.
    ask: sends a VOCAB."""

    def __init__(
        self, engine: DraftEngine, address: str, cores: ThreadShare, ask: Callable[[Vocab], object]
    ) -> None:
        self._own, self._address, self._cores, self._send = engine, address, cores, ask
        self._exchange = VocabularyExchange(engine.vocabulary)
        self.vocabulary: Vocabulary | None = None
        self.engine: DraftEngine | None = None
        self.comparison: VocabularyMatch | None = None
        self._model = ""  # the verifier's
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
        self._comparing: Future[Compared] = Future()

    @property
    def unusable(self) -> str:
        """Return why the verifier's vocabulary cannot be used; empty if it can."""
        return self._exchange.trouble

    @property
    def foreign(self) -> str:
        """Return why nothing can be drafted in the verifier's vocabulary; empty if something
        can."""
        found = self.comparison
        if found is None or found.remap is not None:
            return ""
        ours, theirs = f"the draft model {self._own.info.model}", f"that of {self._model}"
        return (
            f"the vocabulary of {ours} does not suit {theirs}, the model of the verifier at "
            f"{self._address}: {found.meaning}. Draft with a model of the same family"
        )

    def hello(self, drafter: str) -> Hello:
        info, n_vocab = self._own.info, len(self._own.vocabulary or ())
        engine = type(self._own).__name__.removesuffix("Drafter").lower()
        host, threads = self._cores.host, self._cores.share(1)
        return Hello(
            drafter=drafter,
            engine=engine,
            model=info.model,
            vocab_fingerprint=self._exchange.fingerprint,
            n_vocab=n_vocab,
            n_ctx=info.n_ctx,
            host=host,
            cpu_threads=threads,
        )

    def welcomed(self, welcome: Welcome, now: float) -> None:
        """Begin with a verifier, or go on with the one that was there."""
        self._model, before = welcome.model, self.unusable
        follows = self._exchange.welcomed(welcome, now)
        self._note(before)
        if self._exchange.state is not VocabularyState.KNOWN:
            self.vocabulary = self.engine = self.comparison = None
        self._follow(follows)

    def answered(self, answer: Vocab, now: float) -> None:
        """Take the next part of the vocabulary."""
        before = self.unusable
        follows = self._exchange.answered(answer, now)
        self._note(before)
        if isinstance(follows, Vocabulary):
            log.info("vocabulary_fetched", tokens=len(follows))
        self._follow(follows)

    def look(self, now: float, *, there: bool) -> None:
        """Take over the result of a comparison that has ended; ask a verifier that is there again
        if an answer does not come."""
        if self._exchange.state is VocabularyState.COMPARING and self._comparing.done():
            self._know(*self._comparing.result())
        if there:
            self._follow(self._exchange.late(now))

    def _note(self, before: str) -> None:
        """Log that the vocabulary is unusable, unless it was so before."""
        if self.unusable and self.unusable != before:
            log.error("vocabulary_unusable", connect=self._address, error=self.unusable)

    def _follow(self, what: Vocab | Vocabulary | None) -> None:
        own = self._own.vocabulary
        if isinstance(what, Vocab):
            self._send(what)
        elif what is not None and own is None:
            self._know(what, self._own, None)
        elif what is not None and own is not None:
            self._comparing = self._executor.submit(self._compared, own, what, self._model)

    def _know(
        self,
        vocabulary: Vocabulary,
        engine: DraftEngine | None,
        comparison: VocabularyMatch | None,
    ) -> None:
        self._exchange.move(VocabularyState.KNOWN)
        self.vocabulary, self.engine, self.comparison = vocabulary, engine, comparison

    def _compared(self, own: Vocabulary, vocabulary: Vocabulary, theirs: str) -> Compared:
        """Return the engine in the verifier's ids, none if too few ids have a counterpart. Runs on
        the thread."""
        found, model = compare(own, vocabulary), self._own.info.model
        say = getattr(log, _LEVELS.get(found.verdict, "info"))
        say(
            f"vocabulary_{found.verdict}", model=model, verifier_model=theirs, meaning=found.meaning
        )
        if found.remap is None:
            return vocabulary, None, found
        if found.remap.identity:
            return vocabulary, self._own, found
        return vocabulary, RemappedDrafter(self._own, found.remap, vocabulary), found
