"""Noise that both sides can compute: the same for (seed, position, token) on every machine.

It is counter-based, so it can be computed in any order: two rounds of the SplitMix64 finaliser
(Steele, Lea, Flood 2014) over the three counters.

Why both sides need the same noise: to sample with temperature is to take the token with the largest
sum of log-probability and Gumbel noise. With the same noise at the same position, two models whose
distributions are alike take the same token most of the time. So a drafter sends ids only, its
distributions stay at home, and the target's choice depends on nothing that the drafter did.

Since noise depends on the position and not on how often it was asked for, a session that is
resumed elsewhere, or verified in other steps, gets the same tokens.
"""

import functools
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = 0xFFFFFFFFFFFFFFFF

_ROUNDS = ((np.uint64(30), _MIX_1), (np.uint64(27), _MIX_2))
"""Shifts and factors of the first two rounds of `_mix`."""
_PART = 16384  # tokens at once, so that their arrays stay in the processor's cache


class NoiseStream(IntEnum):
    """The uses of noise. Coupled sampling has the seed's own noise.

    The noise of each of these shows nothing of that, nor of the others.
    """

    CHOICES = 1
    """Choices that depend on the ids before a position too: a draft's, and the target's own."""

    COINS = 2
    RESIDUALS = 3


def derived(seed: int, stream: NoiseStream, number: int = 0) -> int:
    """Return the 64-bit seed of another stream, or of one of many in it.

    number: of the one among many, up to 32 bits.
    """
    with np.errstate(over="ignore"):
        own = np.uint64(seed & _MASK_64) + _MIX_1 * np.uint64(stream)
        key = _mix(np.array(own))
        one_of_many = _GOLDEN * np.uint64(number + 1)
        return int(_mix(key ^ one_of_many))


def uniform(seed: int | np.uint64, position: int, tokens: Ids) -> Floats:
    """Return a number of 52 bits between 0 and 1 for each token, neither of them included."""
    key = _key(np.uint64(seed), position)
    mixed = _mix(_counter(tokens) ^ key)
    mixed >>= np.uint64(12)
    # Both operations are exact, so no number is rounded to 0 or 1.
    numbers: Floats = (mixed.astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def gumbel(seed: np.uint64, position: int, tokens: Ids) -> Floats:
    """Return Gumbel(0, 1) noise for each token."""
    numbers = uniform(seed, position, tokens)
    noise: Floats = -np.log(-np.log(numbers))
    return noise


def reaching(seed: np.uint64, position: int, n_vocab: int, least: float) -> Ids:
    """Return the tokens of a vocabulary whose Gumbel noise may be `least` or more.

    Hardly any other token is among them. No logarithm is computed: the mixed bits are compared
    with those of the uniform number whose noise is `least`. The last round of `_mix` changes only
    lower bits, so it is left out.
    """
    bounded = min(max(least, -4.0), 40.0)
    number = np.exp(-np.exp(-bounded)) * (1 - 1e-9)
    threshold = np.uint64(number * 2.0**31) << np.uint64(33)
    key = _key(seed, position)
    counters = _counters(n_vocab)
    found = np.empty(n_vocab, np.bool_)
    buffers = np.empty((2, _PART), np.uint64)
    for begin in range(0, n_vocab, _PART):
        part = counters[begin : begin + _PART]
        x, shifted = buffers[:, : len(part)]
        np.bitwise_xor(part, key, out=x)
        for shift, factor in _ROUNDS:
            np.right_shift(x, shift, out=shifted)
            np.bitwise_xor(x, shifted, out=x)
            np.multiply(x, factor, out=x)
        np.greater_equal(x, threshold, out=found[begin : begin + _PART])
    return np.flatnonzero(found)


def _key(seed: np.uint64, position: int) -> Bits:
    """Return the mixed bits of seed and position, which all tokens there share."""
    with np.errstate(over="ignore"):
        key = seed + _GOLDEN * np.uint64(position + 1)
        return _mix(np.array(key))


def _counter(tokens: Ids) -> Bits:
    """Return the counters of tokens, far apart in all bits."""
    return (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN


@functools.lru_cache(2)
def _counters(n_vocab: int) -> Bits:
    """Return the counters of a whole vocabulary: of the target's, and of a draft model's."""
    return _counter(np.arange(n_vocab))


def _mix(x: Bits) -> Bits:
    """Mix 64-bit numbers in place and return them: SplitMix64's finaliser."""
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x
