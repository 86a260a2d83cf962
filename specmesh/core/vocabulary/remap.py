"""The translation between a verifier's ids and a draft model's."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

NONE = -1  # stands for the missing counterpart of an id of the draft model


class Remap:
    """Tables from a verifier's ids to a draft model's and back.

    n_verifier, n_draft: ids of each side.
    """

    __slots__ = ("_source", "_to_draft", "_to_verifier", "n_draft", "n_verifier")

    def __init__(self, to_draft: NDArray[np.int64], to_verifier: NDArray[np.int64]) -> None:
        """Translate by two tables.

        to_draft: (n_verifier,) the draft model's id that stands for each id of the verifier; a
            space for an id without a counterpart.
        to_verifier: (n_draft,) the verifier's id that each id of the draft model means, or NONE.
        """
        self.n_verifier = len(to_draft)
        self.n_draft = len(to_verifier)
        self._to_draft: list[int] = to_draft.tolist()
        self._to_verifier = to_verifier
        # For each id of the verifier: the first id of the draft model that means it, or the place
        # behind the last logit.
        meaning = np.flatnonzero(to_verifier >= 0)
        tokens, firsts = np.unique(to_verifier[meaning], return_index=True)
        self._source = np.full(self.n_verifier, self.n_draft)
        self._source[tokens] = meaning[firsts]

    @property
    def identity(self) -> bool:
        """Return True if each id means itself and both sides have as many."""
        ids = list(range(self.n_verifier))
        if self.n_draft != self.n_verifier or self._to_draft != ids:
            return False
        return bool((self._to_verifier == ids).all())

    def to_draft(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the draft model's ids for the verifier's."""
        return tuple([self._to_draft[token] for token in ids])

    def to_verifier(self, token: int) -> int:
        """Return the verifier's id that a draft model's id means; NONE without a counterpart."""
        if token >= self.n_draft:
            return NONE
        return int(self._to_verifier[token])

    def reordered(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a draft model's row of logits in the order of the verifier's ids.

        A verifier's id without a counterpart gets -inf.
        """
        own = np.full(self.n_draft + 1, -np.inf, np.float32)
        count = min(self.n_draft, len(logits))
        own[:count] = logits[:count]
        row: NDArray[np.float32] = own[self._source]
        return row
