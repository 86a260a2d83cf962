"""A vocabulary as bytes per id: what text and fingerprints are made of."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
        for part in framed(self.pieces):
            digest.update(part)
        return digest.hexdigest()

    def text(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "replace")


def framed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes that a fingerprint is taken over: each piece behind its length as u32."""
    return (len(piece).to_bytes(4, "little") + piece for piece in pieces)


NONE = -1  # in `said`: this id of the draft model has no counterpart


class Remap:
    """Translates between a verifier's ids and a draft model's.

    fed[v]:  the draft model's id that is fed where the verifier says v; a stand-in where v has no counterpart.
    said[d]: the verifier's id that the draft model's id d means, or NONE.
    """

    __slots__ = ("_extra", "_fed", "_said", "_source", "n_draft", "n_verifier")

    def __init__(self, fed: NDArray[np.int64], said: NDArray[np.int64]) -> None:
        self.n_verifier, self.n_draft = len(fed), len(said)
        self._fed: list[int] = fed.tolist()
        self._said = said
        meaning = np.flatnonzero(said >= 0)
        tokens, firsts = np.unique(said[meaning], return_index=True)
        self._source = np.full(self.n_verifier, self.n_draft)  # where no id says it: behind the last logit
        self._source[tokens] = meaning[firsts]
        self._extra = np.delete(meaning, firsts)  # further ids of a token that the verifier has once

    @property
    def identity(self) -> bool:
        """Whether nothing is to be translated: each id means itself, and both sides have as many."""
        ids = list(range(self.n_verifier))
        return self.n_draft == self.n_verifier and self._fed == ids and bool((self._said == ids).all())

    def feed(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._fed[token] for token in ids)

    def say(self, token: int) -> int | None:
        """The verifier's id that a draft model's id means; None where it has no counterpart."""
        meant = int(self._said[token]) if 0 <= token < self.n_draft else NONE
        return meant if meant != NONE else None

    def scatter(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A draft model's row of logits in the order of the verifier's ids; -inf for those it cannot say."""
        own = np.full(self.n_draft + 1, -np.inf, np.float32)
        count = min(self.n_draft, len(logits))
        own[:count] = logits[:count]
        row: NDArray[np.float32] = own[self._source]
        if len(self._extra):
            np.maximum.at(row, self._said[self._extra], own[self._extra])
        return row
