"""A vocabulary as bytes per id: what text and fingerprints are made of, how a drafter gets its verifier's, and how ids
are translated."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from specmesh.errors import InvalidTransition, RemoteProtocolError
from specmesh.wire.messages import Vocab, Welcome

MAX_VOCAB = 2**20  # tokens of a vocabulary that is believed
MAX_VOCAB_BYTES = 64 * 2**20  # bytes of its pieces, in base64
CHUNK_BYTES = 128 * 1024  # about how many bytes of pieces one answer carries


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """pieces[id] are the bytes an id stands for (empty for control tokens); end_ids end a generation."""

    pieces: tuple[bytes, ...]
    end_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.pieces)

    def fingerprint(self) -> str:
        """SHA-256 over the ordered pieces, each preceded by its length: equal means same ids, same bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()


def chunk(vocabulary: Vocabulary, start: int) -> list[str]:
    """Return pieces from id `start` on in base64, as many as one answer carries; none past the end."""
    pieces: list[str] = []
    size = 0
    for piece in vocabulary.pieces[start:]:
        pieces.append(base64.b64encode(piece).decode())
        size += len(pieces[-1]) + 3
        if size >= CHUNK_BYTES:
            break
    return pieces


RETRY = 1.0  # seconds after which an unanswered VOCAB is asked again


class VocabularyState(Enum):
    """How well a drafter knows the vocabulary of its verifier."""

    NEW = "new"  # no WELCOME has come
    FETCHING = "fetching"  # its parts are asked for, one after the other
    COMPARING = "comparing"  # it is whole, and compared with that of the draft model
    KNOWN = "known"


VOCABULARY_STATES: Mapping[VocabularyState, set[VocabularyState]] = {
    VocabularyState.NEW: {VocabularyState.FETCHING, VocabularyState.COMPARING},
    VocabularyState.FETCHING: {VocabularyState.FETCHING, VocabularyState.COMPARING},
    VocabularyState.COMPARING: {
        VocabularyState.FETCHING,
        VocabularyState.COMPARING,
        VocabularyState.KNOWN,
    },
    VocabularyState.KNOWN: {VocabularyState.FETCHING, VocabularyState.COMPARING},
}
"""What each may become. Every WELCOME begins anew, unless the vocabulary is known and still the same; one that is the
draft model's own need not be fetched."""


class VocabularyExchange:
    """A drafter's part in getting to know a verifier; own: the draft model's vocabulary, None where that knows ids
    only. What a call returns is to be done: VOCAB is to be sent, or a vocabulary to be compared until it is known."""

    def __init__(self, own: Vocabulary | None) -> None:
        self._own = own
        self.fingerprint = own.fingerprint() if own is not None else ""
        self.state = VocabularyState.NEW  # changed by `move` only
        self._theirs = (
            ("", 0),
            frozenset[int](),
        )  # what of a verifier decides how its ids are translated
        self._pieces = list[bytes]()  # that came
        self._size = 0  # in base64
        self._sent_at = 0.0

    def move(self, to: VocabularyState) -> None:
        """Change its state; raise InvalidTransition, and change nothing, where VOCABULARY_STATES does not have it."""
        if to not in VOCABULARY_STATES[self.state]:
            raise InvalidTransition("vocabulary", self.state, to)
        self.state = to

    def welcomed(self, welcome: Welcome, now: float) -> Vocab | Vocabulary | None:
        """Begin with a verifier. Raises RemoteProtocolError for a vocabulary that nobody can have."""
        own, n_vocab = self._own, welcome.n_vocab
        claimed, end_ids = theirs = (welcome.vocab_fingerprint, n_vocab), frozenset(welcome.end_ids)
        if self.state is VocabularyState.KNOWN and self._theirs == theirs:
            return None
        if own is not None and (self.fingerprint, len(own)) == claimed:
            self._theirs = theirs
            self.move(VocabularyState.COMPARING)
            return Vocabulary(own.pieces, end_ids)
        if n_vocab > MAX_VOCAB:
            raise RemoteProtocolError(f"the verifier claims a vocabulary of {n_vocab} tokens")
        self._theirs, self._pieces, self._size = theirs, [], 0
        self.move(VocabularyState.FETCHING)
        return self._ask(now)

    def answered(self, answer: Vocab, now: float) -> Vocab | Vocabulary | None:
        """Take the next part. Raises RemoteProtocolError where it is not what WELCOME promised."""
        if (
            self.state is not VocabularyState.FETCHING
            or not answer.pieces
            or answer.start != len(self._pieces)
        ):
            return None
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except ValueError:  # binascii.Error is one, and what is not ASCII raises another
            raise RemoteProtocolError("the verifier's vocabulary is not base64") from None
        (fingerprint, n_vocab), end_ids = self._theirs
        self._size += sum(map(len, answer.pieces))
        if len(self._pieces) > n_vocab or self._size > MAX_VOCAB_BYTES:
            raise RemoteProtocolError("the verifier sends more vocabulary than it has")
        if len(self._pieces) < n_vocab:
            return self._ask(now)
        vocabulary = Vocabulary(tuple(self._pieces), end_ids)
        if vocabulary.fingerprint() != fingerprint:
            raise RemoteProtocolError(
                "the verifier's vocabulary does not match its own fingerprint"
            )
        self.move(VocabularyState.COMPARING)
        return vocabulary

    def late(self, now: float) -> Vocab | None:
        """Ask again where an answer does not come."""
        return (
            self._ask(now)
            if self.state is VocabularyState.FETCHING and now - self._sent_at > RETRY
            else None
        )

    def _ask(self, now: float) -> Vocab:
        self._sent_at = now
        return Vocab(len(self._pieces))


NONE = -1  # for an id of the draft model that has no counterpart


class Remap:
    """Translates between a verifier's ids and a draft model's.

    fed[v]:  the draft model's id that is fed where the verifier says v; a space where v has no counterpart.
    said[d]: the verifier's id that the draft model's id d means, or NONE.
    """

    __slots__ = ("_fed", "_said", "_source", "n_draft", "n_verifier")

    def __init__(self, fed: NDArray[np.int64], said: NDArray[np.int64]) -> None:
        self.n_verifier, self.n_draft = len(fed), len(said)
        self._fed: list[int] = fed.tolist()
        self._said = said
        meaning = np.flatnonzero(said >= 0)
        tokens, firsts = np.unique(said[meaning], return_index=True)
        self._source = np.full(
            self.n_verifier, self.n_draft
        )  # where no id says it: behind the last logit
        self._source[tokens] = meaning[firsts]

    @property
    def identity(self) -> bool:
        """Whether nothing is to be translated: each id means itself, and both sides have as many."""
        ids = list(range(self.n_verifier))
        return (
            self.n_draft == self.n_verifier and self._fed == ids and bool((self._said == ids).all())
        )

    def feed(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._fed[token] for token in ids)

    def say(self, token: int) -> int:
        """The verifier's id that a draft model's id means; NONE where it has no counterpart."""
        return int(self._said[token]) if token < self.n_draft else NONE

    def scatter(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A draft model's row of logits in the order of the verifier's ids; -inf for those it cannot say."""
        own = np.full(self.n_draft + 1, -np.inf, np.float32)
        count = min(self.n_draft, len(logits))
        own[:count] = logits[:count]
        row: NDArray[np.float32] = own[self._source]
        return row
