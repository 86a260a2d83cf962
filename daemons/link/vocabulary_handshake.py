"""What follows WELCOME at the drafter: the verifier's vocabulary, and an engine that speaks its ids.

The vocabulary is the engine's own where the fingerprints agree, else it comes from the cache, else from the verifier.
How well the two fit is for specmesh.core to say, on a thread beside the loop: large vocabularies take seconds to
compare, and the verifier takes a drafter that is silent for seconds for dead.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from specmesh.core.vocabulary.match import LEAST_OVERLAP, MatchKind, VocabularyMatch, compare, compare_encodings
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.vocabulary_transfer import VocabularyCache, VocabularyDownload
from specmesh.daemons.runtime.shared_cores import SharedCores
from specmesh.engines.base import DraftEngine, Encoder
from specmesh.engines.remapped import RemappedDrafter
from specmesh.errors import ConfigError, SpecmeshError
from specmesh.wire.messages import Hello, Vocab, Welcome

log = structlog.get_logger("specmesh.drafter")

RETRY = 1.0  # seconds after which an unanswered VOCAB is asked again
MAX_PROBES, MAX_PROBE = 32, 512  # most texts of a verifier that are tried, and their most characters


@dataclass(frozen=True, slots=True)
class _Met:
    """What a comparison found: the draft engine in the verifier's ids."""

    vocabulary: Vocabulary
    engine: DraftEngine
    comparison: VocabularyMatch | None


class VocabularyHandshake:
    """A drafter getting to know its verifier.

    `vocabulary` is the verifier's and `engine` the draft engine in its ids; None until they are known. `address`, the
    verifier's, is for messages. Vocabularies are compared on `executor`; `wake` is called from there when `settle` has
    something to take over.
    """

    def __init__(
        self,
        engine: DraftEngine,
        address: str = "",
        least_overlap: float = LEAST_OVERLAP,
        cache: VocabularyCache | None = None,
        wake: Callable[[], None] = lambda: None,
        cores: SharedCores | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._own, self._address, self._least, self._cache = engine, address, least_overlap, cache
        self._fingerprint = engine.vocabulary.fingerprint() if engine.vocabulary is not None else ""
        self.vocabulary: Vocabulary | None = None
        self.engine: DraftEngine | None = None
        self.comparison: VocabularyMatch | None = None
        self._download: VocabularyDownload | None = None
        self._welcome: Welcome | None = None
        self._wake, self._cores = wake, cores
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
        self._meeting: Future[_Met] | None = None
        self._asked = 0.0
        self._frames = 0

    def hello(self, drafter: str) -> Hello:
        """Who this is, under the name `drafter`."""
        info, vocabulary = self._own.info, self._own.vocabulary
        engine = type(self._own).__name__.removesuffix("Drafter").lower()
        n_vocab = len(vocabulary) if vocabulary is not None else 0
        host, threads = (self._cores.host, self._cores.share(1)) if self._cores is not None else ("", 0)
        return Hello(drafter, engine, info.model, self._fingerprint, n_vocab, info.n_ctx, host, threads)

    def welcomed(self, welcome: Welcome, now: float) -> Vocab | None:
        """Begin with a verifier; what to ask it for. Raises RemoteProtocolError for a vocabulary nobody can have."""
        known = self._welcome
        self._download = None
        if self.vocabulary is not None and known is not None and _key(known) == _key(welcome):
            self._welcome = welcome
            return None
        self._welcome, self.vocabulary, self.engine, self.comparison = welcome, None, None, None
        self._meeting = None
        download = VocabularyDownload(welcome)
        pieces = self._at_hand(welcome)
        if pieces is not None:
            self._meet(Vocabulary(pieces, frozenset(welcome.eog_ids)), welcome)
            return None
        self._download, self._frames = download, 0
        return self._ask(now)

    def answered(self, answer: Vocab, now: float) -> Vocab | None:
        """Take a part of the vocabulary in; what to ask for next. Raises as `welcomed` does."""
        if self._download is None or self._welcome is None:
            return None
        before = self._download.next_request()
        vocabulary = self._download.add(answer)
        if vocabulary is None:
            progress = self._download.next_request() != before
            self._frames += progress
            return self._ask(now) if progress else None
        self._download = None
        log.info("vocabulary_fetched", tokens=len(vocabulary), frames=self._frames + 1)
        if self._cache is not None:
            self._cache.store(self._welcome.vocab_fingerprint, vocabulary.pieces)
        self._meet(vocabulary, self._welcome)
        return None

    def settle(self) -> None:
        """Take over what the comparison found, once it has. Raises ConfigError where the vocabularies do not suit."""
        if self._meeting is None or not self._meeting.done():
            return
        meeting, self._meeting = self._meeting, None
        met = meeting.result()
        self.vocabulary, self.engine, self.comparison = met.vocabulary, met.engine, met.comparison

    def overdue(self, now: float) -> Vocab | None:
        """What to ask for again, where an answer does not come."""
        return self._ask(now) if self._download is not None and now - self._asked > RETRY else None

    def lost(self) -> None:
        """The verifier is gone. What was learnt of its vocabulary is kept: it may come back with the same."""
        self._download = None

    def _ask(self, now: float) -> Vocab | None:
        self._asked = now
        return self._download.next_request() if self._download is not None else None

    def _at_hand(self, welcome: Welcome) -> tuple[bytes, ...] | None:
        own = self._own.vocabulary
        if own is not None and self._fingerprint == welcome.vocab_fingerprint and len(own) == welcome.n_vocab:
            return own.pieces
        pieces = self._cache.load(welcome.vocab_fingerprint, welcome.n_vocab) if self._cache is not None else None
        if pieces is not None:
            log.info("vocabulary_from_cache", tokens=len(pieces))
        return pieces

    def _meet(self, vocabulary: Vocabulary, welcome: Welcome) -> None:
        own = self._own.vocabulary
        if own is None:
            self.vocabulary, self.engine = vocabulary, self._own
            return
        self._meeting = self._executor.submit(self._translated, own, vocabulary, welcome)
        self._meeting.add_done_callback(lambda _: self._wake())

    def _translated(self, own: Vocabulary, vocabulary: Vocabulary, welcome: Welcome) -> _Met:
        """The engine in the verifier's ids; raises ConfigError where too few have a counterpart. Runs on the thread."""
        found = compare(own, vocabulary, self._least)
        model, theirs = self._own.info.model, welcome.model
        if found.remap is None:
            raise ConfigError(
                f"the vocabulary of the draft model {model} does not suit that of {theirs}, the model of the verifier "
                f"at {self._address}: {found}. Draft with a model of the same family"
            )
        say = log.warning if found.verdict is MatchKind.PARTIAL else log.info
        say(f"vocabulary_{found.verdict}", model=model, verifier_model=theirs, meaning=str(found))
        self._compare_encoders(own, vocabulary, welcome)
        engine = self._own if found.remap.identity else RemappedDrafter(self._own, found.remap, vocabulary)
        return _Met(vocabulary, engine, found)

    def _compare_encoders(self, own: Vocabulary, vocabulary: Vocabulary, welcome: Welcome) -> None:
        probed = compare_encodings(own, vocabulary, self._encodings(len(own), len(vocabulary), welcome))
        if probed.agreed < probed.compared:
            log.warning(
                "encoders_differ",
                alike=f"{probed.agreed} of {probed.compared} texts",
                first=probed.first,
                meaning="the text is right all the same; fewer drafts will be accepted",
            )

    def _encodings(self, n_own: int, n_vocab: int, welcome: Welcome) -> Iterator[tuple[str, list[int], list[int]]]:
        """Texts with the own ids and the verifier's, as far as what the verifier sent can be used."""
        engine = self._own
        if not isinstance(engine, Encoder):
            return
        for text, told in list(welcome.probes.items())[:MAX_PROBES]:
            theirs = _ids(told, n_vocab)
            if theirs is None or len(text) > MAX_PROBE:
                continue
            try:
                own = engine.encode(text)
            except SpecmeshError:
                continue
            if all(token < n_own for token in own):
                yield text, own, theirs


def _key(welcome: Welcome) -> tuple[object, ...]:
    """What of a verifier decides how its ids are translated."""
    return welcome.vocab_fingerprint, welcome.n_vocab, frozenset(welcome.eog_ids)


def _ids(told: object, n_vocab: int) -> list[int] | None:
    """A list of ids out of a peer's JSON; None for anything else."""
    if not isinstance(told, list) or len(told) > 8 * MAX_PROBE:
        return None
    return told if all(type(token) is int and 0 <= token < n_vocab for token in told) else None
