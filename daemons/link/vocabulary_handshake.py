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
    """The vocabulary of one verifier, as it becomes known.

    Comparing large ones takes seconds. A thread does it, and `look` takes the result over.

    vocabulary: the verifier's; None until it is known.
    engine: the draft engine in the verifier's ids; None until they are known, or if the two models
        have too few tokens in common.
    comparison: None until they are compared.
    """

    def __init__(
        self,
        *,
        engine: DraftEngine,
        address: str,
        cores: ThreadShare,
        ask: Callable[[Vocab], object],
        prepare: Callable[[Vocabulary], object],
        any_length: bool = False,
    ) -> None:
        """Begin without a verifier.

        address: of the verifier. cores: the drafter's. ask: sends a VOCAB.
        prepare: makes what takes long in a vocabulary, on the thread, before it is known.
        any_length: no text is too long for drafts.
        """
        self._any_length = any_length
        self._own = engine
        self._address = address
        self._cores = cores
        self._send = ask
        self._prepare = prepare
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
        """Return why nothing can be drafted in the verifier's vocabulary; empty if it can."""
        found = self.comparison
        if found is None or found.remap is not None:
            return ""
        ours = f"the draft model {self._own.info.model}"
        theirs = f"that of {self._model}"
        return (
            f"the vocabulary of {ours} does not suit {theirs}, the model of the verifier at "
            f"{self._address}: {found.meaning}. Draft with a model of the same family"
        )

    def hello(self, drafter: str) -> Hello:
        """Return the HELLO of a drafter with this name."""
        info = self._own.info
        engine = type(self._own).__name__.removesuffix("Drafter").lower()
        return Hello(
            drafter=drafter,
            engine=engine,
            model=info.model,
            vocab_fingerprint=self._exchange.fingerprint,
            n_vocab=len(self._own.vocabulary or ()),
            n_ctx=info.n_ctx,
            host=self._cores.host,
            cpu_threads=self._cores.threads_beside(1),
            any_length=self._any_length,
        )

    def welcomed(self, welcome: Welcome, now: float) -> None:
        """Begin with a verifier, or go on with the one that was there."""
        self._model = welcome.model
        before = self.unusable
        follows = self._exchange.welcomed(welcome, now)
        self._note(before)
        if self._exchange.state is not VocabularyState.KNOWN:
            self.vocabulary = None
            self.engine = None
            self.comparison = None
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
        """Take over the result of a comparison; ask again if an answer does not come.

        there: the verifier is there to be asked.
        """
        if self._exchange.state is VocabularyState.COMPARING and self._comparing.done():
            self._know(*self._comparing.result())
        if there:
            self._follow(self._exchange.late(now))

    def close(self) -> None:
        """Compare no more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _note(self, before: str) -> None:
        """Log that the vocabulary is unusable, unless it was so before."""
        if self.unusable and self.unusable != before:
            log.error("vocabulary_unusable", connect=self._address, error=self.unusable)

    def _follow(self, follows: Vocab | Vocabulary | None) -> None:
        """Send a question for the next part, or compare a vocabulary that is complete."""
        own = self._own.vocabulary
        if follows is None:
            return
        if isinstance(follows, Vocab):
            self._send(follows)
        elif own is None:
            self._know(follows, self._own, None)
        else:
            self._comparing = self._executor.submit(self._compared, own, follows, self._model)

    def _know(
        self,
        vocabulary: Vocabulary,
        engine: DraftEngine | None,
        comparison: VocabularyMatch | None,
    ) -> None:
        self._exchange.compared()
        self.vocabulary = vocabulary
        self.engine = engine
        self.comparison = comparison

    def _compared(self, own: Vocabulary, vocabulary: Vocabulary, theirs: str) -> Compared:
        """Return the engine in the verifier's ids, None if too few of them have a counterpart.

        It runs on the thread.
        """
        found = compare(own, vocabulary)
        note = getattr(log, _LEVELS.get(found.verdict, "info"))
        note(
            f"vocabulary_{found.verdict}",
            model=self._own.info.model,
            verifier_model=theirs,
            meaning=found.meaning,
        )
        if found.remap is None:
            return vocabulary, None, found
        if found.remap.identity:
            self._prepare(own)
            return vocabulary, self._own, found
        self._prepare(vocabulary)
        return vocabulary, RemappedDrafter(self._own, found.remap, vocabulary), found
