"""A vocabulary as bytes per id: what text and fingerprints are made of."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specmesh.errors import RemoteProtocolError

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


class VocabularyFetch:
    """A vocabulary that comes in chunks from a peer, which has said what it will be. `start` is the id to ask for next.
    Every call raises RemoteProtocolError for what nobody can have."""

    def __init__(self, fingerprint: str, n_vocab: int, end_ids: Iterable[int]) -> None:
        if n_vocab > MAX_VOCAB:
            raise RemoteProtocolError(f"the verifier claims a vocabulary of {n_vocab} tokens")
        self.fingerprint, self.n_vocab = fingerprint, n_vocab
        self._end_ids = frozenset(end_ids)
        self._pieces: list[bytes] = []
        self._size = 0  # in base64

    @property
    def start(self) -> int:
        return len(self._pieces)

    def add(self, chunk: Sequence[str]) -> Vocabulary | None:
        """Take the next chunk; return the vocabulary once it is whole."""
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in chunk]
        except ValueError:  # binascii.Error is one, and what is not ASCII raises another
            raise RemoteProtocolError("the verifier's vocabulary is not base64") from None
        self._size += sum(map(len, chunk))
        if len(self._pieces) > self.n_vocab or self._size > MAX_VOCAB_BYTES:
            raise RemoteProtocolError("the verifier sends more vocabulary than it has")
        if len(self._pieces) < self.n_vocab:
            return None
        vocabulary = Vocabulary(tuple(self._pieces), self._end_ids)
        if vocabulary.fingerprint() != self.fingerprint:
            raise RemoteProtocolError("the verifier's vocabulary does not match its own fingerprint")
        return vocabulary


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
        self._source = np.full(self.n_verifier, self.n_draft)  # where no id says it: behind the last logit
        self._source[tokens] = meaning[firsts]

    @property
    def identity(self) -> bool:
        """Whether nothing is to be translated: each id means itself, and both sides have as many."""
        ids = list(range(self.n_verifier))
        return self.n_draft == self.n_verifier and self._fed == ids and bool((self._said == ids).all())

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
