"""The verifier's vocabulary at the drafter: fetched, and compared with the draft model's own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from specmesh.core.scheduling.batch import ThreadShare
from specmesh.core.vocabulary.match import MatchKind, VocabularyMatch, compare
from specmesh.core.vocabulary.vocabulary import Vocabulary, VocabularyExchange, VocabularyState
from specmesh.engines.base import DraftEngine
from specmesh.engines.load import RemappedDrafter
from specmesh.errors import ConfigError
from specmesh.wire.messages import Hello, Vocab, Welcome

log = structlog.get_logger("specmesh.drafter")

Compared = tuple[Vocabulary, DraftEngine, VocabularyMatch | None]


class VocabularyHandshake:
    """A drafter getting to know its verifier. `vocabulary` is the verifier's and `engine` the draft engine in its ids;
    None until they are known. Comparing takes seconds for large ones: a thread does it, and `look` takes over what that
    found. ask: sends a VOCAB."""

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

    def hello(self, drafter: str) -> Hello:
        info, n_vocab = self._own.info, len(self._own.vocabulary or ())
        engine = type(self._own).__name__.removesuffix("Drafter").lower()
        host, threads = self._cores.host, self._cores.share(1)
        return Hello(
            drafter,
            engine,
            info.model,
            self._exchange.fingerprint,
            n_vocab,
            info.n_ctx,
            host,
            threads,
        )

    def welcomed(self, welcome: Welcome, now: float) -> None:
        """Begin with a verifier. Raises RemoteProtocolError for a vocabulary nobody can have."""
        self._model = welcome.model
        follows = self._exchange.welcomed(welcome, now)
        if follows is not None:
            self.vocabulary = self.engine = self.comparison = None
            self._follow(follows)

    def answered(self, answer: Vocab, now: float) -> None:
        """Take the next part of the vocabulary. Raises RemoteProtocolError where it is not what WELCOME promised."""
        follows = self._exchange.answered(answer, now)
        if isinstance(follows, Vocabulary):
            log.info("vocabulary_fetched", tokens=len(follows))
        self._follow(follows)

    def look(self, now: float, *, there: bool) -> None:
        """Take over what the comparison found, once it has; ask a verifier that is there again where an answer does not
        come. Raises ConfigError where the vocabularies do not suit."""
        if self._exchange.state is VocabularyState.COMPARING and self._comparing.done():
            self._know(*self._comparing.result())
        if there:
            self._follow(self._exchange.late(now))

    def _follow(self, what: Vocab | Vocabulary | None) -> None:
        own = self._own.vocabulary
        if isinstance(what, Vocab):
            self._send(what)
        elif what is not None and own is None:
            self._know(what, self._own, None)
        elif what is not None and own is not None:
            self._comparing = self._executor.submit(self._translated, own, what, self._model)

    def _know(
        self, vocabulary: Vocabulary, engine: DraftEngine, comparison: VocabularyMatch | None
    ) -> None:
        self._exchange.move(VocabularyState.KNOWN)
        self.vocabulary, self.engine, self.comparison = vocabulary, engine, comparison

    def _translated(self, own: Vocabulary, vocabulary: Vocabulary, theirs: str) -> Compared:
        """The engine in the verifier's ids; raises ConfigError where too few have a counterpart. Runs on the thread."""
        found, model = compare(own, vocabulary), self._own.info.model
        if found.remap is None:
            raise ConfigError(
                f"the vocabulary of the draft model {model} does not suit that of {theirs}, the model of the verifier "
                f"at {self._address}: {found.meaning}. Draft with a model of the same family"
            )
        say = log.warning if found.verdict is MatchKind.PARTIAL else log.info
        say(
            f"vocabulary_{found.verdict}", model=model, verifier_model=theirs, meaning=found.meaning
        )
        engine = (
            self._own
            if found.remap.identity
            else RemappedDrafter(self._own, found.remap, vocabulary)
        )
        return vocabulary, engine, found
