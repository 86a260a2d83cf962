"""A vocabulary as bytes per id: what text and fingerprints are made of, how a drafter gets its verifier's, and how ids
are translated."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from specmesh.errors import InvalidTransition
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
MOST_KEPT = 2  # vocabularies of verifiers that are kept: one may change its model back and forth


class VocabularyState(Enum):
    """How well a drafter knows the vocabulary of its verifier."""

    NEW = "new"  # no WELCOME has come
    FETCHING = "fetching"  # its parts are asked for, one after the other
    COMPARING = "comparing"  # it is whole, and compared with that of the draft model
    KNOWN = "known"  # it is compared: it may suit or not
    UNUSABLE = "unusable"  # what came is no vocabulary, or not the one that was announced


_BEGUN = {VocabularyState.FETCHING, VocabularyState.COMPARING, VocabularyState.UNUSABLE}
VOCABULARY_STATES: Mapping[VocabularyState, set[VocabularyState]] = {
    VocabularyState.NEW: _BEGUN,
    VocabularyState.FETCHING: _BEGUN,
    VocabularyState.COMPARING: _BEGUN | {VocabularyState.KNOWN},
    VocabularyState.KNOWN: _BEGUN,
    VocabularyState.UNUSABLE: _BEGUN,
}
"""What each may become. Every WELCOME begins anew, unless the vocabulary is known, or unusable,
and still the same; one that is the draft model's own, or was here of late, need not be fetched."""

Claim = tuple[str, int]  # fingerprint and size of a vocabulary


class VocabularyExchange:
    """A drafter's part in getting to know a verifier; own: the draft model's vocabulary, None
    where that knows ids only. What a call returns is to be done: VOCAB is to be sent, or a
    vocabulary to be compared until it is known. trouble: why the verifier's is unusable, empty
    where it is not."""

    def __init__(self, own: Vocabulary | None) -> None:
        self._own = own
        self.fingerprint = own.fingerprint() if own is not None else ""
        self.state = VocabularyState.NEW  # changed by `move` only
        self.trouble = ""
        # what of a verifier decides how its ids are translated
        self._theirs: tuple[Claim, frozenset[int]] = ("", 0), frozenset()
        self._whose = ""  # verifier it is
        self._kept = dict[Claim, tuple[bytes, ...]]()
        self._pieces = list[bytes]()  # that came
        self._size = 0  # in base64
        self._sent_at = 0.0

    def move(self, to: VocabularyState) -> None:
        """Change its state; raise InvalidTransition, and change nothing, where VOCABULARY_STATES does not have it."""
        if to not in VOCABULARY_STATES[self.state]:
            raise InvalidTransition("vocabulary", self.state, to)
        self.state = to

    def welcomed(self, welcome: Welcome, now: float) -> Vocab | Vocabulary | None:
        """Begin with a verifier."""
        claim, end_ids = (welcome.vocab_fingerprint, welcome.n_vocab), frozenset(welcome.end_ids)
        same = self._theirs == (claim, end_ids)
        if same and self.state is VocabularyState.KNOWN:
            return None
        if same and self.state is VocabularyState.UNUSABLE and self._whose == welcome.verifier:
            return None  # it was asked once
        self._theirs, self._whose, self.trouble = (claim, end_ids), welcome.verifier, ""
        self._pieces, self._size = [], 0
        pieces = self._kept.get(claim)
        if self._own is not None and claim == (self.fingerprint, len(self._own)):
            pieces = self._own.pieces
        if pieces is not None:
            self.move(VocabularyState.COMPARING)
            return Vocabulary(pieces, end_ids)
        if welcome.n_vocab > MAX_VOCAB:
            self._unusable(f"the verifier claims a vocabulary of {welcome.n_vocab} tokens")
            return None
        self.move(VocabularyState.FETCHING)
        return self._ask(now)

    def answered(self, answer: Vocab, now: float) -> Vocab | Vocabulary | None:
        """Take the next part."""
        if (
            self.state is not VocabularyState.FETCHING
            or not answer.pieces
            or answer.start != len(self._pieces)
        ):
            return None
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except ValueError:  # binascii.Error is one, and what is not ASCII raises another
            self._unusable("the verifier's vocabulary is not base64")
            return None
        claim, end_ids = self._theirs
        fingerprint, n_vocab = claim
        self._size += sum(map(len, answer.pieces))
        if len(self._pieces) > n_vocab or self._size > MAX_VOCAB_BYTES:
            self._unusable("the verifier sends more vocabulary than it has")
            return None
        if len(self._pieces) < n_vocab:
            return self._ask(now)
        vocabulary = Vocabulary(tuple(self._pieces), end_ids)
        if vocabulary.fingerprint() != fingerprint:
            self._unusable("the verifier's vocabulary does not match its own fingerprint")
            return None
        self._keep(claim, vocabulary.pieces)
        self.move(VocabularyState.COMPARING)
        return vocabulary

    def _keep(self, claim: Claim, pieces: tuple[bytes, ...]) -> None:
        """Keep a vocabulary that was fetched, and drop the oldest of too many."""
        self._kept[claim] = pieces
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def _unusable(self, trouble: str) -> None:
        self.trouble, self._pieces = trouble, []
        self.move(VocabularyState.UNUSABLE)

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
