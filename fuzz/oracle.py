"""A target model whose logits are a hash of its memory, its texts, and its probabilistic steps.

A wrong position or a missed trim changes its rows, and so the text.
A comparison with `alone` shows it.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from specmesh.core.prefix import Prefix
from specmesh.core.sampling.noise import NoiseStream, derived, uniform
from specmesh.core.sampling.proposal import SampledDraft
from specmesh.core.sampling.sampler import Logits, Sampler, SamplingParams
from specmesh.core.session_params import SessionParams

N_VOCAB = 16
END = 0
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
MAX_TOKENS = 24
MOST_HELD = 256  # drafts that a session keeps at most, whatever its drafter sends
PIECES = (b"", *(bytes([97 + token]) for token in range(1, N_VOCAB)))
"""The bytes of each id, for stop strings: b to p."""


def row(crc: int, n_vocab: int = N_VOCAB, end_bias: float = -3.5) -> NDArray[np.float32]:
    """Return the target's logits after a prefix by its CRC. The end id is possible but rare."""
    digest = blake2b(b"%d" % crc, digest_size=n_vocab).digest()
    logits = np.frombuffer(digest, np.uint8).astype(np.float32) / np.float32(32)
    logits[END] += end_bias
    return logits


@lru_cache(4096)
def alone(
    params: SessionParams, n_ctx: int, *, prompt: tuple[int, ...] = PROMPT, end_bias: float = -3.5
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return the target's text after a prompt, one row at a time.

    It is (all ids with an end id, shown ids, finish reason).
    """
    prefix = Prefix(prompt)
    sampler = Sampler(params.sampling)
    shown: list[int] = []
    text = b""
    reason = ""
    while not reason:
        logits = row(prefix.crc, end_bias=end_bias)
        token = sampler.after(prefix[0:]).choose(logits, len(prefix))
        prefix.extend([token])
        text += PIECES[token]
        if token == END:
            reason = "stop"
            break
        shown.append(token)
        if any(stop.encode() in text for stop in params.stop):
            reason = "stop"
        elif len(shown) == params.max_tokens or len(prefix) == n_ctx:
            reason = "length"
    return tuple(prefix[0:]), tuple(shown), reason


class Memory:
    """The ids that a model holds, with the assertions of an engine."""

    def __init__(self, n_ctx: int, end_bias: float = -3.5) -> None:
        self.held = Prefix()
        self._n_ctx = n_ctx
        self._end_bias = end_bias

    def append(self, ids: Sequence[int]) -> None:
        for token in ids:
            assert 0 <= token < N_VOCAB, "an id outside the vocabulary reaches the model"
        self.held.extend(ids)
        assert len(self.held) <= self._n_ctx, "the model's memory is full"

    def trim(self, length: int) -> None:
        assert 0 <= length <= len(self.held), "a trim cannot add ids"
        self.held.truncate(length)

    def logits(self) -> NDArray[np.float32]:
        return row(self.held.crc, end_bias=self._end_bias)

    def rows(self, ids: Sequence[int]) -> NDArray[np.float32]:
        rows: list[Logits] = []
        for token in ids:
            self.append((token,))
            rows.append(self.logits())
        return np.stack(rows)


# --- block verification once more, by the formulas of its module docstring


def said(
    params: SamplingParams, prefix: Prefix, rows: Sequence[Logits], offers: Sequence[SampledDraft]
) -> list[int]:
    """Return the accepted drafts and the token after them, whatever ends the text.

    It uses dictionaries and sums in order; only distributions and noise are the product's.

    rows: the one after `prefix`, and one after each verified draft.
    offers: these drafts, and one more if another was at hand for the last row.
    """
    ids = prefix[0 : len(prefix)]
    tokens = [offer.token for offer in offers]
    kept = [1.0]
    left: list[list[float]] = []
    for i, offer in enumerate(offers):
        sampler = Sampler(params).after([*ids, *tokens[:i]])
        probs = sampler.distribution(rows[i]).tolist()
        shares = _shares(offer)
        residual: list[float] = []
        for token, prob in enumerate(probs):
            residual.append(max(kept[i] * prob - shares.get(token, 0.0), 0.0))
        left.append(residual)
        token = offer.token
        kept.append(min(kept[i] * probs[token] / shares[token], 1.0))
    seed = derived(params.seed, NoiseStream.COINS)
    coins = uniform(seed, len(ids), np.arange(len(offers)))
    accepted = 0
    for i in range(1, len(offers) + 1):
        if coins[i - 1] <= _height(kept, left, i):
            accepted = i
    if accepted < len(offers):
        residuals = derived(params.seed, NoiseStream.RESIDUALS)
        coin = uniform(residuals, len(ids), np.zeros(1, np.int64))[0]
        return [*tokens[:accepted], _drawn(left[accepted], coin)]
    if len(offers) == len(rows):
        return tokens
    known = Prefix([*ids, *tokens])
    own = Sampler(params).after(known[0:]).keyed(known.crc)
    last = own.choose(rows[len(tokens)], len(known))
    return [*tokens, last]


def _drawn(weights: Sequence[float], coin: float) -> int:
    """Return the token that a coin in [0, 1) draws."""
    below = list(accumulate(weights))
    token = 0
    while below[token] <= coin * below[-1]:
        token += 1
    return token


def _shares(offer: SampledDraft) -> dict[int, float]:
    ids, shares = offer.shares()
    return dict(zip(ids.tolist(), shares.tolist(), strict=True))


def _height(kept: Sequence[float], left: Sequence[Sequence[float]], i: int) -> float:
    if i == len(left) or kept[i] == 1:
        return kept[i]
    total = sum(left[i])
    return total / (total + 1 - kept[i])
