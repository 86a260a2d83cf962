"""The verifier's vocabulary at the drafter: fetched, and compared with the draft model's own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from specmesh.core.scheduling.batch import ThreadShare
from specmesh.core.vocabulary.match import MatchKind, VocabularyMatch, compare
from specmesh.core.vocabulary.vocabulary import Vocabulary, VocabularyFetch
from specmesh.engines.base import DraftEngine
from specmesh.engines.load import RemappedDrafter
from specmesh.errors import ConfigError
from specmesh.wire.messages import Hello, Vocab, Welcome

log = structlog.get_logger("specmesh.drafter")

RETRY = 1.0  # seconds after which an unanswered VOCAB is asked again


class VocabularyHandshake:
    """A drafter getting to know its verifier. `vocabulary` is the verifier's and `engine` the draft engine in its ids;
    None until they are known. Comparing takes seconds for large ones: a thread does it, and `settle` takes over what
    that found. ask: sends a VOCAB."""

    def __init__(self, engine: DraftEngine, address: str, cores: ThreadShare, ask: Callable[[Vocab], object]) -> None:
        self._own, self._address, self._send = engine, address, ask
        self._fingerprint = engine.vocabulary.fingerprint() if engine.vocabulary is not None else ""
        self.vocabulary: Vocabulary | None = None
        self.engine: DraftEngine | None = None
        self.comparison: VocabularyMatch | None = None
        self._welcome: Welcome | None = None
        self._fetch: VocabularyFetch | None = None
        self._cores = cores
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
        self._comparing: Future[tuple[Vocabulary, DraftEngine, VocabularyMatch]] | None = None
        self._sent_at = 0.0

    def hello(self, drafter: str) -> Hello:
        info, vocabulary = self._own.info, self._own.vocabulary
        engine = type(self._own).__name__.removesuffix("Drafter").lower()
        n_vocab = len(vocabulary) if vocabulary is not None else 0
        host, threads = self._cores.host, self._cores.share(1)
        return Hello(drafter, engine, info.model, self._fingerprint, n_vocab, info.n_ctx, host, threads)

    def welcomed(self, welcome: Welcome, now: float) -> None:
        """Begin with a verifier. Raises RemoteProtocolError for a vocabulary nobody can have."""
        known, self._welcome, self._fetch = self._welcome, welcome, None
        if self.vocabulary is not None and known is not None and _key(known) == _key(welcome):
            return
        self.vocabulary = self.engine = self.comparison = self._comparing = None
        own, theirs = self._own.vocabulary, (welcome.vocab_fingerprint, welcome.n_vocab)
        if own is not None and (self._fingerprint, len(own)) == theirs:
            self._compare(Vocabulary(own.pieces, frozenset(welcome.end_ids)), welcome)
            return
        self._fetch = VocabularyFetch(*theirs, welcome.end_ids)
        self._ask(now)

    def answered(self, answer: Vocab, now: float) -> None:
        """Take the next part of the vocabulary. Raises RemoteProtocolError where it is not what WELCOME promised."""
        welcome, fetch = self._welcome, self._fetch
        if welcome is None or fetch is None or not answer.pieces or answer.start != fetch.start:
            return
        vocabulary = fetch.add(answer.pieces)
        if vocabulary is None:
            self._ask(now)
            return
        self._fetch = None
        log.info("vocabulary_fetched", tokens=len(vocabulary))
        self._compare(vocabulary, welcome)

    def settle(self) -> None:
        """Take over what the comparison found, once it has. Raises ConfigError where the vocabularies do not suit."""
        if self._comparing is not None and self._comparing.done():
            compared, self._comparing = self._comparing, None
            self.vocabulary, self.engine, self.comparison = compared.result()

    def ask_again(self, now: float) -> None:
        """Ask again where an answer does not come."""
        if now - self._sent_at > RETRY:
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._sent_at = now
        if self._fetch is not None:
            self._send(Vocab(self._fetch.start))

    def _compare(self, vocabulary: Vocabulary, welcome: Welcome) -> None:
        own = self._own.vocabulary
        if own is None:
            self.vocabulary, self.engine = vocabulary, self._own
            return
        self._comparing = self._executor.submit(self._translated, own, vocabulary, welcome)

    def _translated(
        self, own: Vocabulary, vocabulary: Vocabulary, welcome: Welcome
    ) -> tuple[Vocabulary, DraftEngine, VocabularyMatch]:
        """The engine in the verifier's ids; raises ConfigError where too few have a counterpart. Runs on the thread."""
        found = compare(own, vocabulary)
        model, theirs = self._own.info.model, welcome.model
        if found.remap is None:
            raise ConfigError(
                f"the vocabulary of the draft model {model} does not suit that of {theirs}, the model of the verifier "
                f"at {self._address}: {found.meaning}. Draft with a model of the same family"
            )
        say = log.warning if found.verdict is MatchKind.PARTIAL else log.info
        say(f"vocabulary_{found.verdict}", model=model, verifier_model=theirs, meaning=found.meaning)
        engine = self._own if found.remap.identity else RemappedDrafter(self._own, found.remap, vocabulary)
        return vocabulary, engine, found


def _key(welcome: Welcome) -> tuple[object, ...]:
    """What of a verifier decides how its ids are translated."""
    return welcome.vocab_fingerprint, welcome.n_vocab, frozenset(welcome.end_ids)
