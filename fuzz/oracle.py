"""A target model as a hash of what its memory holds, what it says alone, and what a step of probabilistic texts says.

A wrong position or a missed trim changes its rows, and so the text: whoever compares with `alone` sees it.
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
    prefix, sampler, shown, text, reason = (
        Prefix(prompt),
        Sampler(params.sampling),
        list[int](),
        b"",
        "",
    )
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
        assert all(0 <= token < N_VOCAB for token in ids), (
            "an id outside the vocabulary reaches the model"
        )
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


# --- block verification once more, by the text of core.block


def said(
    params: SamplingParams, prefix: Prefix, rows: Sequence[Logits], offers: Sequence[SampledDraft]
) -> list[int]:
    """The drafts that stand and what follows them, after a text `prefix`, whatever ends it: by dictionaries and sums in
    order, with nothing in common with the machine but distributions and noise. rows: one for the place after it and one
    after each draft that was verified. offers: these drafts; one more where another was in hand for the last row."""
    ids, tokens = prefix[0 : len(prefix)], [offer.token for offer in offers]
    samplers = [Sampler(params).after([*ids, *tokens[:i]]) for i in range(len(offers) + 1)]
    distributions = [samplers[i].distribution(rows[i]).tolist() for i in range(len(offers))]
    asked = [_shares(offer) for offer in offers]
    kept = list(accumulate(zip(distributions, asked, tokens, strict=True), _kept, initial=1.0))
    left = [
        [
            max(kept[i] * share - asked[i].get(token, 0.0), 0.0)
            for token, share in enumerate(distributions[i])
        ]
        for i in range(len(offers))
    ]
    coins = uniform(derived(params.seed, NoiseStream.COINS), len(ids), np.arange(len(offers)))
    stood = max(
        (i for i in range(1, len(offers) + 1) if coins[i - 1] <= _height(kept, left, i)), default=0
    )
    if stood < len(offers):
        coin = uniform(
            derived(params.seed, NoiseStream.RESIDUALS), len(ids), np.zeros(1, np.int64)
        )[0]
        below = list(accumulate(left[stood]))
        return [
            *tokens[:stood],
            next(token for token, sum_ in enumerate(below) if sum_ > coin * below[-1]),
        ]
    if len(offers) == len(rows):
        return tokens
    own = samplers[-1].keyed(Prefix([*ids, *tokens]).crc)
    return [*tokens, own.choose(rows[len(tokens)], len(ids) + len(tokens))]


def _shares(offer: SampledDraft) -> dict[int, float]:
    ids, shares = offer.shares()
    return dict(zip(ids.tolist(), shares.tolist(), strict=True))


def _kept(before: float, draft: tuple[list[float], dict[int, float], int]) -> float:
    probs, asked, token = draft
    return min(before * probs[token] / asked[token], 1.0)


def _height(kept: Sequence[float], left: Sequence[Sequence[float]], i: int) -> float:
    if i == len(left) or kept[i] == 1:
        return kept[i]
    return sum(left[i]) / (sum(left[i]) + 1 - kept[i])
