"""What a step of a probabilistic text must say: block verification once more, by the text of core.block.

Dictionaries and sums in their order: slow, and with nothing in common with the machine but distributions and noise.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from specmesh.core.prefix import Prefix
from specmesh.core.sampling.noise import NoiseStream, derived, uniform
from specmesh.core.sampling.proposal import SampledDraft
from specmesh.core.sampling.sampler import Logits, Sampler, SamplingParams


def said(params: SamplingParams, prefix: Prefix, rows: Sequence[Logits], offers: Sequence[SampledDraft]) -> list[int]:
    """The drafts that stand and what follows them, after a text `prefix`, whatever ends it. rows: one for the place
    after it and one after each draft that was verified. offers: these drafts; one more where another was in hand for
    the last row."""
    ids, tokens = prefix[0 : len(prefix)], [offer.token for offer in offers]
    samplers = [Sampler(params).after([*ids, *tokens[:i]]) for i in range(len(offers) + 1)]
    distributions = [samplers[i].distribution(rows[i]).tolist() for i in range(len(offers))]
    asked = [_shares(offer) for offer in offers]
    kept = list(accumulate(zip(distributions, asked, tokens, strict=True), _kept, initial=1.0))
    left = [
        [max(kept[i] * share - asked[i].get(token, 0.0), 0.0) for token, share in enumerate(distributions[i])]
        for i in range(len(offers))
    ]
    coins = uniform(derived(params.seed, NoiseStream.COINS), len(ids), np.arange(len(offers)))
    stood = max((i for i in range(1, len(offers) + 1) if coins[i - 1] <= _height(kept, left, i)), default=0)
    if stood < len(offers):
        coin = uniform(derived(params.seed, NoiseStream.RESIDUALS), len(ids), np.zeros(1, np.int64))[0]
        below = list(accumulate(left[stood]))
        return [*tokens[:stood], next(token for token, sum_ in enumerate(below) if sum_ > coin * below[-1])]
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
