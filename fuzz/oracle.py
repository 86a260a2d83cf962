"""A target model as a hash of what its memory holds, and what it says alone.

A wrong position or a missed trim changes its rows, and so the text: whoever compares with `alone` sees it.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.session_params import SessionParams

N_VOCAB = 16
END = 0
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
MAX_TOKENS = 24
MOST_HELD = 256  # drafts that a session keeps at most, whatever its drafter sends
PIECES = (b"", *(bytes([97 + token]) for token in range(1, N_VOCAB)))
"""The bytes of each id, for stop strings: b to p."""


def row(crc: int, n_vocab: int = N_VOCAB, end_bias: float = -3.5) -> NDArray[np.float32]:
    """The target's logits after the prefix with this CRC: a hash, with an end id that is possible but rare."""
    digest = blake2b(b"%d" % crc, digest_size=n_vocab).digest()
    logits = np.frombuffer(digest, np.uint8).astype(np.float32) / np.float32(32)
    logits[END] += end_bias
    return logits


@lru_cache(4096)
def alone(
    params: SessionParams, n_ctx: int, *, prompt: tuple[int, ...] = PROMPT, end_bias: float = -3.5
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """What the target says after a prompt, one row at a time: (all ids, an end id included; ids shown; reason)."""
    prefix, sampler, shown, text, reason = Prefix(prompt), Sampler(params.sampling), list[int](), b"", ""
    while not reason:
        token = sampler.after(prefix[0:]).choose(row(prefix.crc, end_bias=end_bias), len(prefix))
        prefix.extend([token])
        shown += [token] if token != END else []
        text += PIECES[token]
        if token == END or any(stop.encode() in text for stop in params.stop):
            reason = "stop"
        elif len(shown) == params.max_tokens or len(prefix) == n_ctx:
            reason = "length"
    return tuple(prefix[0:]), tuple(shown), reason


class Memory:
    """The ids that a model holds; asserts what an engine would refuse."""

    def __init__(self, n_ctx: int, end_bias: float = -3.5) -> None:
        self.held = Prefix()
        self._n_ctx, self._end_bias = n_ctx, end_bias

    def append(self, ids: Sequence[int]) -> None:
        assert all(0 <= token < N_VOCAB for token in ids), "an id outside the vocabulary reaches the model"
        self.held.extend(ids)
        assert len(self.held) <= self._n_ctx, "the model's memory is full"

    def trim(self, length: int) -> None:
        assert 0 <= length <= len(self.held), "a trim cannot add ids"
        self.held.truncate(length)

    def logits(self) -> NDArray[np.float32]:
        return row(self.held.crc, end_bias=self._end_bias)

    def rows(self, ids: Sequence[int]) -> NDArray[np.float32]:
        rows = []
        for token in ids:
            self.append((token,))
            rows.append(self.logits())
        return np.stack(rows)
