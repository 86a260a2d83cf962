"""Noise that both sides can compute: the same for (seed, position, token) on every machine, in any order."""

import functools
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_PART = 16384  # tokens at once, so that what is computed of them stays in the processor's cache


class NoiseStream(IntEnum):
    """What noise is for. Coupled sampling has the seed's own; each of these has another, which shows nothing of it."""

    CHOICES = 1  # those that depend on the ids before a position too: a draft's, and the target's own beside it
    COINS = 2
    RESIDUALS = 3


def derived(seed: int, stream: NoiseStream, number: int = 0) -> int:
    """The 64-bit seed of another stream of noise, or of the one of this number (up to 32 bits) among many."""
    with np.errstate(over="ignore"):
        key = _mix(np.array(np.uint64(seed & 0xFFFFFFFFFFFFFFFF) + _MIX_1 * np.uint64(stream)))
        return int(_mix(key ^ _GOLDEN * np.uint64(number + 1)))


def uniform(seed: int | np.uint64, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number between 0 and 1, neither of them, for (seed, position, token), of 52 bits; one value per token."""
    mixed = _mix(_counter(tokens) ^ _key(np.uint64(seed), position))
    mixed >>= np.uint64(12)
    numbers: NDArray[np.float64] = (mixed.astype(np.float64) + 0.5) * 2.0**-52
    return numbers  # exact, so never 0 or 1


def gumbel(seed: np.uint64, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel(0, 1) noise for (seed, position, token), one value per token, the same on every machine. Counter-based:
    two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014) over the three counters."""
    noise: NDArray[np.float64] = -np.log(-np.log(uniform(seed, position, tokens)))
    return noise


def reaching(seed: np.uint64, position: int, n_vocab: int, least: float) -> NDArray[np.int64]:
    """The tokens of a vocabulary whose noise may be `least` or more, and hardly another; without its logarithms."""
    share = np.exp(-np.exp(-min(max(least, -4.0), 40.0))) * (1 - 1e-9)
    enough = np.uint64(share * 2.0**31) << np.uint64(
        33
    )  # the end of `_mix` changes lower bits only, and is left out
    key, counters, found = _key(seed, position), _counters(n_vocab), np.empty(n_vocab, np.bool_)
    both = np.empty((2, _PART), np.uint64)
    for begin in range(0, n_vocab, _PART):
        part = counters[begin : begin + _PART]
        x, shifted = both[:, : len(part)]
        np.bitwise_xor(part, key, out=x)
        for shift, factor in ((np.uint64(30), _MIX_1), (np.uint64(27), _MIX_2)):
            np.right_shift(x, shift, out=shifted)
            np.bitwise_xor(x, shifted, out=x)
            np.multiply(x, factor, out=x)
        np.greater_equal(x, enough, out=found[begin : begin + _PART])
    return np.flatnonzero(found)


def _key(seed: np.uint64, position: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return _mix(np.array(seed + _GOLDEN * np.uint64(position + 1)))


def _counter(tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN


@functools.lru_cache(2)
def _counters(n_vocab: int) -> NDArray[np.uint64]:
    return _counter(np.arange(n_vocab))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x
