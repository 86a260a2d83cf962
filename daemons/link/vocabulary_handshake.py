"""The verifier's vocabulary at the drafter: fetched, kept on disk, compared with the draft model's own."""

import base64
import contextlib
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh.core.vocabulary.match import MatchKind, VocabularyMatch, compare, compare_encodings
from specmesh.core.vocabulary.vocabulary import Vocabulary, framed
from specmesh.daemons.runtime.shared_cores import SharedCores
from specmesh.engines.base import DraftEngine, Encoder
from specmesh.engines.load import RemappedDrafter
from specmesh.errors import ConfigError, RemoteProtocolError, SpecmeshError
from specmesh.paths import write_whole
from specmesh.wire.messages import Hello, Vocab, Welcome

log = structlog.get_logger("specmesh.drafter")

CHUNK_BYTES = 128 * 1024  # about how many bytes of pieces one VOCAB carries
MAX_VOCAB = 2**20  # tokens of a vocabulary that is believed
MAX_VOCAB_BYTES = 64 * 2**20  # bytes of its pieces, in base64
MAX_FILES = 16  # vocabularies kept on disk; the ones longest unused go first
RETRY = 1.0  # seconds after which an unanswered VOCAB is asked again
MAX_PROBES, MAX_PROBE = 32, 512  # texts of a verifier that are tried, and characters of each

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".vocabulary"
_MAX_FILE_BYTES = MAX_VOCAB_BYTES + 4 * MAX_VOCAB


def vocabulary_chunk(vocabulary: Vocabulary, start: int) -> Vocab:
    """Return the VOCAB answer from id `start` on; empty past the end."""
    pieces: list[str] = []
    size = 0
    for piece in vocabulary.pieces[start:]:
        pieces.append(base64.b64encode(piece).decode())
        size += len(pieces[-1]) + 3
        if size >= CHUNK_BYTES:
            break
    return Vocab(start, pieces)


class VocabularyCache:
    """Vocabularies on disk, by fingerprint. No call raises: where the folder is of no use, they are fetched each time.

    A file holds exactly the bytes that the fingerprint is the SHA-256 of (PROTOCOL.md section 6.1), so its name tells
    whether it is whole. What is damaged counts as absent.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or user_cache_path("specmesh") / "vocabularies"

    def load(self, fingerprint: str, n_vocab: int) -> tuple[bytes, ...] | None:
        """Return the pieces with this fingerprint; None where they are not here, not whole or not `n_vocab`."""
        path = self._path(fingerprint)
        if path is None:
            return None
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                return None
            raw = path.read_bytes()
        except OSError:
            return None
        pieces = _pieces(raw) if hashlib.sha256(raw).hexdigest() == fingerprint else None
        if pieces is None or len(pieces) != n_vocab:
            log.warning("vocabulary_cache_damaged", file=str(path))
            return None
        with contextlib.suppress(OSError):  # in a folder that can only be read nothing is removed either
            path.touch()
        return pieces

    def store(self, fingerprint: str, pieces: tuple[bytes, ...]) -> None:
        """Keep pieces, whose fingerprint was checked: whole or not at all, whatever interrupts."""
        path = self._path(fingerprint)
        if path is None:
            return
        try:
            write_whole(path, b"".join(framed(pieces)))
            files = self._folder.glob(f"*{_SUFFIX}")
            for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[MAX_FILES:]:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("vocabulary_not_cached", folder=str(self._folder), reason=error.strerror)

    def _path(self, fingerprint: str) -> Path | None:
        """The file of a fingerprint; None for what is none: a peer's text never names a path."""
        return self._folder / f"{fingerprint}{_SUFFIX}" if _FINGERPRINT.fullmatch(fingerprint) else None


def _pieces(raw: bytes) -> tuple[bytes, ...] | None:
    """The pieces in a file's bytes; None where they do not end where the file does."""
    pieces: list[bytes] = []
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if end > len(raw) or at + 4 > len(raw):
            return None
        pieces.append(raw[at + 4 : end])
        at = end
    return tuple(pieces)


class VocabularyHandshake:
    """A drafter getting to know its verifier.

    `vocabulary` is the verifier's and `engine` the draft engine in its ids; None until they are known. Comparing takes
    seconds for large ones: a thread does it, and calls `wake` when `settle` has something to take over.
    """

    def __init__(
        self,
        engine: DraftEngine,
        address: str,
        least_overlap: float,
        cache: VocabularyCache | None,
        wake: Callable[[], None],
        cores: SharedCores,
    ) -> None:
        self._own, self._address, self._least, self._cache = engine, address, least_overlap, cache
        self._fingerprint = engine.vocabulary.fingerprint() if engine.vocabulary is not None else ""
        self.vocabulary: Vocabulary | None = None
        self.engine: DraftEngine | None = None
        self.comparison: VocabularyMatch | None = None
        self._welcome: Welcome | None = None
        self._pieces: list[bytes] | None = None  # so far, while they are fetched
        self._size = 0  # of these in base64
        self._wake, self._cores = wake, cores
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
        self._comparing: Future[tuple[Vocabulary, DraftEngine, VocabularyMatch]] | None = None
        self._asked = 0.0

    def hello(self, drafter: str) -> Hello:
        info, vocabulary = self._own.info, self._own.vocabulary
        engine = type(self._own).__name__.removesuffix("Drafter").lower()
        n_vocab = len(vocabulary) if vocabulary is not None else 0
        host, threads = self._cores.host, self._cores.share(1)
        return Hello(drafter, engine, info.model, self._fingerprint, n_vocab, info.n_ctx, host, threads)

    def welcomed(self, welcome: Welcome, now: float) -> Vocab | None:
        """Begin with a verifier; return what to ask it for.

        Raises RemoteProtocolError for a vocabulary nobody can have.
        """
        known, self._welcome, self._pieces = self._welcome, welcome, None
        if self.vocabulary is not None and known is not None and _key(known) == _key(welcome):
            return None
        self.vocabulary = self.engine = self.comparison = self._comparing = None
        if welcome.n_vocab > MAX_VOCAB:
            raise RemoteProtocolError(f"the verifier claims a vocabulary of {welcome.n_vocab} tokens")
        pieces = self._at_hand(welcome)
        if pieces is not None:
            self._compare(Vocabulary(pieces, frozenset(welcome.eog_ids)), welcome)
            return None
        self._pieces, self._size = [], 0
        return self._ask(now)

    def answered(self, answer: Vocab, now: float) -> Vocab | None:
        """Take the next part of the vocabulary; return what to ask for next.

        Raises RemoteProtocolError where it is not what WELCOME promised.
        """
        welcome, pieces = self._welcome, self._pieces
        if welcome is None or pieces is None or answer.start != len(pieces) or not answer.pieces:
            return None
        try:
            pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except ValueError:  # binascii.Error is one, and what is not ASCII raises another
            raise RemoteProtocolError("the verifier's vocabulary is not base64") from None
        self._size += sum(map(len, answer.pieces))
        if len(pieces) > welcome.n_vocab or self._size > MAX_VOCAB_BYTES:
            raise RemoteProtocolError("the verifier sends more vocabulary than it has")
        if len(pieces) < welcome.n_vocab:
            return self._ask(now)
        vocabulary = Vocabulary(tuple(pieces), frozenset(welcome.eog_ids))
        if vocabulary.fingerprint() != welcome.vocab_fingerprint:
            raise RemoteProtocolError("the verifier's vocabulary does not match its own fingerprint")
        self._pieces = None
        log.info("vocabulary_fetched", tokens=len(vocabulary))
        if self._cache is not None:
            self._cache.store(welcome.vocab_fingerprint, vocabulary.pieces)
        self._compare(vocabulary, welcome)
        return None

    def settle(self) -> None:
        """Take over what the comparison found, once it has. Raises ConfigError where the vocabularies do not suit."""
        if self._comparing is not None and self._comparing.done():
            compared, self._comparing = self._comparing, None
            self.vocabulary, self.engine, self.comparison = compared.result()

    def overdue(self, now: float) -> Vocab | None:
        """Return what to ask for again, where an answer does not come."""
        return self._ask(now) if now - self._asked > RETRY else None

    def _ask(self, now: float) -> Vocab | None:
        self._asked = now
        return Vocab(len(self._pieces)) if self._pieces is not None else None

    def _at_hand(self, welcome: Welcome) -> tuple[bytes, ...] | None:
        own = self._own.vocabulary
        if own is not None and self._fingerprint == welcome.vocab_fingerprint and len(own) == welcome.n_vocab:
            return own.pieces
        pieces = self._cache.load(welcome.vocab_fingerprint, welcome.n_vocab) if self._cache is not None else None
        if pieces is not None:
            log.info("vocabulary_from_cache", tokens=len(pieces))
        return pieces

    def _compare(self, vocabulary: Vocabulary, welcome: Welcome) -> None:
        own = self._own.vocabulary
        if own is None:
            self.vocabulary, self.engine = vocabulary, self._own
            return
        self._comparing = self._executor.submit(self._translated, own, vocabulary, welcome)
        self._comparing.add_done_callback(lambda _: self._wake())

    def _translated(
        self, own: Vocabulary, vocabulary: Vocabulary, welcome: Welcome
    ) -> tuple[Vocabulary, DraftEngine, VocabularyMatch]:
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
        return vocabulary, engine, found

    def _compare_encoders(self, own: Vocabulary, vocabulary: Vocabulary, welcome: Welcome) -> None:
        """Warn where the draft model's encoder splits the verifier's texts otherwise, as far as these can be used."""
        if not isinstance(self._own, Encoder):
            return
        encodings: list[tuple[str, list[int], list[int]]] = []
        for text, told in list(welcome.probes.items())[:MAX_PROBES]:
            theirs = _ids(told, len(vocabulary))
            if theirs is None or len(text) > MAX_PROBE:
                continue
            with contextlib.suppress(SpecmeshError):
                ids = self._own.encode(text)
                if all(token < len(own) for token in ids):
                    encodings.append((text, ids, theirs))
        probed = compare_encodings(own, vocabulary, encodings)
        if probed.agreed < probed.compared:
            alike = f"{probed.agreed} of {probed.compared} texts"
            meaning = "the text is right all the same; fewer drafts will be accepted"
            log.warning("encoders_differ", alike=alike, first=probed.first, meaning=meaning)


def _key(welcome: Welcome) -> tuple[object, ...]:
    """What of a verifier decides how its ids are translated."""
    return welcome.vocab_fingerprint, welcome.n_vocab, frozenset(welcome.eog_ids)


def _ids(told: object, n_vocab: int) -> list[int] | None:
    """A list of ids out of a peer's JSON; None for anything else."""
    if not isinstance(told, list) or len(told) > 8 * MAX_PROBE:
        return None
    return told if all(type(token) is int and 0 <= token < n_vocab for token in told) else None
