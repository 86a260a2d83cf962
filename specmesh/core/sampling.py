"""Choosing the next token from logits: greedy, or coupled sampling with counter-based noise.

Coupled sampling (Daliri, Musco, Suresh 2408.07978): position p of a session with seed s has noise u(s, p, token); the
choice is argmax(log prob + Gumbel(u)) over the filtered support. It is an exact sample (the Gumbel-max trick), it
depends on (logits, parameters, seed, position) only, and a drafter with the same noise and similar logits chooses the
same token far more often than an independent sample would.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""One row: float32, shape (n_vocab,)."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose. temperature 0 is greedy; top_k 0 and top_p 1.0 filter nothing; seed is 64-bit."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Sampler:
    """Chooses tokens for one session; holds no state that advances."""

    __slots__ = ("_seed", "params")

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._seed = np.uint64(params.seed & 0xFFFFFFFFFFFFFFFF)

    @property
    def greedy(self) -> bool:
        """Whether the choice is the first of the largest logits, so that an engine may look for that itself."""
        return self.params.temperature <= 0

    def choose(self, logits: Logits, position: int) -> int:
        """The token for absolute `position`, given its logits row."""
        if self.greedy:
            return int(logits.argmax())
        support, scores = self._filtered(logits)
        noisy = scores / self.params.temperature + gumbel(self._seed, position, support)
        return int(support[noisy.argmax()])

    def _filtered(self, logits: Logits) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids that survive top-k, then top-p, with their logits; in llama.cpp's order, both before temperature."""
        n_vocab = logits.shape[0]
        top_k = self.params.top_k if 0 < self.params.top_k < n_vocab else n_vocab
        support = np.arange(n_vocab)
        if top_k == n_vocab and self.params.top_p >= 1.0:
            return support, logits.astype(np.float64)
        if top_k < n_vocab:
            support = np.flatnonzero(logits >= np.partition(logits, n_vocab - top_k)[n_vocab - top_k])
        order = support[np.argsort(-logits[support], kind="stable")][:top_k]  # of equal logits the lower ids
        scores = logits[order].astype(np.float64)
        if self.params.top_p < 1.0:
            keep = _top_p_count(scores, self.params.top_p)
            order, scores = order[:keep], scores[:keep]
        return order, scores


def gumbel(seed: np.uint64, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel(0, 1) noise for (seed, position, token), one value per token, the same on every machine.

    Counter-based: two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014) over the three counters.
    """
    with np.errstate(over="ignore"):
        key = _mix(seed + _GOLDEN * np.uint64(position + 1))
        bits = _mix(key ^ (_GOLDEN * (tokens.astype(np.uint64) + np.uint64(1))))
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # exact, so never 0 or 1
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _top_p_count(scores: NDArray[np.float64], top_p: float) -> int:
    """How many of the descending `scores` are needed for their softmax to reach `top_p`; at least one."""
    weights = np.exp(scores - scores[0])
    cumulative = np.cumsum(weights / weights.sum())
    return min(int(np.searchsorted(cumulative, top_p)) + 1, len(scores))


def _mix(x: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    mixed = np.asarray(x, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))
