"""Coupled sampling: exact for the target, the same everywhere, and shared with the drafter."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.sampling import Sampler, SamplingParams, gumbel

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)
M64 = 2**64 - 1

# Chi-square quantiles at 0.9999 by degrees of freedom: a right sampler fails once in 10,000 seeds.
CHI_SQUARE = {2: 18.42, 3: 21.11, 4: 23.51, 7: 29.88}

rows = st.lists(st.integers(-40, 40), min_size=1, max_size=24).map(lambda values: np.array(values, np.float32) / 4)
seeds = st.integers(0, M64)
positions = st.integers(0, 2**31)


def softmax(logits, temperature=1.0):
    """Probabilities of a row."""
    weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    return weights / weights.sum()


def naive_support(logits, top_k, top_p):
    """The ids that survive top-k, then top-p, written down plainly; of equal logits the lower id comes first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k:
        order = order[:top_k]
    if top_p >= 1:
        return order
    kept, mass = [], 0.0
    for token, share in zip(order, softmax(logits[order]), strict=True):
        if kept and mass >= top_p:
            break
        kept.append(token)
        mass += share
    return kept


def draw(logits, positions, **params):
    """The choices of one sampler at many positions."""
    sampler = Sampler(SamplingParams(**params))
    return [sampler.choose(logits, position) for position in positions]


def chi_square(choices, probabilities):
    """Pearson's statistic of choices against probabilities."""
    counts = Counter(choices)
    expected = {token: p * len(choices) for token, p in enumerate(probabilities) if p > 0}
    assert set(counts) <= set(expected)
    return sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items())


GOLDEN = 0x9E3779B97F4A7C15


def mix(value):
    """The SplitMix64 finaliser on Python integers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & M64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & M64
    return value ^ value >> 31


def unmix(value):
    """The inverse of mix."""
    value = value ^ value >> 31 ^ value >> 62
    value = value * pow(0x94D049BB133111EB, -1, 2**64) & M64
    value = value ^ value >> 27 ^ value >> 54
    value = value * pow(0xBF58476D1CE4E5B9, -1, 2**64) & M64
    return value ^ value >> 30 ^ value >> 60


# --- what is chosen


@PROFILE
@given(rows, positions, seeds)
def test_greedy_is_argmax(logits, position, seed):
    """Temperature 0 takes the largest logit, the lowest id among equals, whatever the seed and position."""
    token = Sampler(SamplingParams(seed=seed)).choose(logits, position)
    assert token == int(np.argmax(logits))


@pytest.mark.parametrize("seed", [1, M64])
@pytest.mark.parametrize(
    ("logits", "params"),
    [
        ([0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 1.0}),
        ([0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 0.5}),
        ([0.3] * 8, {"temperature": 1.0}),
        ([0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 1.0, "top_k": 3}),
        ([0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 0.8, "top_p": 0.9}),
    ],
    ids=["plain", "cold", "uniform", "top-k", "top-p"],
)
def test_coupled_sampling_is_exact(logits, params, seed):
    """Over many positions the choices are distributed as the filtered softmax (chi-square, fixed seeds)."""
    logits = np.array(logits, np.float32)
    support = naive_support(logits, params.get("top_k", 0), params.get("top_p", 1.0))
    probabilities = np.zeros(len(logits))
    probabilities[support] = softmax(logits[support], params["temperature"])
    choices = draw(logits, range(8000), seed=seed, **params)
    assert chi_square(choices, probabilities) < CHI_SQUARE[len(support) - 1]


@PROFILE
@given(rows, st.integers(0, 30), st.floats(0.01, 1.0), positions, seeds)
def test_support_is_top_k_then_top_p(logits, top_k, top_p, position, seed):
    """The filtered support is the naive one, ties included, and the choice lies in it."""
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, seed=seed))
    support, scores = sampler._filtered(logits)
    assert sorted(support) == sorted(naive_support(logits, top_k, top_p))
    assert list(scores) == [logits[token] for token in support]
    assert sampler.choose(logits, position) in support


@PROFILE
@given(rows, st.integers(1, 30))
def test_top_k_breaks_ties_by_id(logits, top_k):
    """Of equal logits at the edge of top-k the lower ids stay: no machine decides otherwise."""
    support, _ = Sampler(SamplingParams(temperature=1.0, top_k=top_k))._filtered(logits)
    assert sorted(support) == sorted(naive_support(logits, top_k, 1.0))


def test_top_k_1_is_greedy():
    """With one token left there is nothing to choose."""
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    assert set(draw(logits, range(200), temperature=5.0, top_k=1)) == {1}
    assert set(draw(logits, range(200), temperature=5.0, top_p=1e-9)) == {1}


def test_impossible_tokens_are_never_chosen():
    """A logit of minus infinity has probability 0."""
    logits = np.array([0.0, -np.inf, 0.0, -np.inf], np.float32)
    assert set(draw(logits, range(500), temperature=1.0)) == {0, 2}


# --- the noise


@PROFILE
@given(seeds, positions, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20, unique=True), st.randoms())
def test_noise_belongs_to_the_token(seed, position, tokens, rng):
    """A token's noise does not depend on which other tokens are asked for, nor on their order."""
    noise = dict(zip(tokens, gumbel(np.uint64(seed), position, np.array(tokens)), strict=True))
    some = rng.sample(tokens, rng.randint(1, len(tokens)))
    assert list(gumbel(np.uint64(seed), position, np.array(some))) == [noise[token] for token in some]


@PROFILE
@given(seeds, st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_noise_is_finite(seed, position, token):
    """Large seeds and positions give finite noise and no warning."""
    assert np.isfinite(gumbel(np.uint64(seed), position, np.array([token]))).all()


@pytest.mark.parametrize("bits", [M64, 0], ids=["ones", "zeros"])
def test_noise_is_finite_at_the_ends(bits):
    """The seeds for which all random bits are ones, or zeros, give finite noise too: the uniform is never 0 or 1."""
    seed = (unmix(unmix(bits) ^ GOLDEN) - GOLDEN) & M64
    assert mix(mix((seed + GOLDEN) & M64) ^ GOLDEN) == bits
    assert np.isfinite(gumbel(np.uint64(seed), 0, np.array([0]))).all()


def test_noise_is_gumbel():
    """Mean and variance of the noise are those of Gumbel(0, 1), over tokens and over positions."""
    over_tokens = gumbel(np.uint64(7), 3, np.arange(200_000))
    over_positions = np.array([gumbel(np.uint64(7), position, np.arange(10)) for position in range(8000)])
    for noise in (over_tokens, over_positions):
        assert noise.mean() == pytest.approx(0.5772, abs=0.015)
        assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.03)
    assert abs(np.corrcoef(over_positions[:, 0], over_positions[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(over_positions[1:, 0], over_positions[:-1, 0])[0, 1]) < 0.03


@PROFILE
@given(seeds, positions, st.integers(0, 2**31 - 1))
def test_noise_is_the_documented_function(seed, position, token):
    """The noise is SplitMix64 over (seed, position, token), in integers: the same on every machine."""
    bits = mix(mix((seed + GOLDEN * (position + 1)) & M64) ^ (GOLDEN * (token + 1)) & M64)
    expected = -math.log(-math.log(((bits >> 12) + 0.5) * 2.0**-52))
    assert gumbel(np.uint64(seed), position, np.array([token]))[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_noise_is_fixed_for_ever():
    """The noise for given counters is a contract between two machines: these values never change."""
    noise = gumbel(np.uint64(42), 7, np.array([0, 1, 31999]))
    assert noise.tolist() == pytest.approx([0.766395182275235, 0.009475003207845412, 0.23485044545597186], rel=1e-12)


def test_seeds_and_positions_differ():
    """Different seeds, and different positions of one seed, choose differently."""
    logits = np.zeros(32, np.float32)
    streams = [draw(logits, range(50), temperature=1.0, seed=seed) for seed in (0, 1, 2, 2**32, 2**63, M64)]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert len(set(streams[0])) > 10


@PROFILE
@given(rows, positions, seeds)
def test_choice_has_no_state(logits, position, seed):
    """Asking in another order, twice, or a new sampler gives the same token; the row stays as it was."""
    params = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, seed=seed)
    before, sampler = logits.copy(), Sampler(params)
    first = sampler.choose(logits, position)
    sampler.choose(logits, position + 1)
    assert first == sampler.choose(logits, position) == Sampler(params).choose(logits, position)
    assert (logits == before).all()


# --- the coupling


def test_same_noise_matches_more_often_than_independent_noise():
    """A drafter with similar logits and the target's noise agrees far more often than with its own noise, and at least
    (1 - TV) / (1 + TV) of the time."""
    rng = np.random.default_rng(0)
    target = rng.normal(0, 1.5, 64).astype(np.float32)
    drafter = (target + rng.normal(0, 0.4, 64)).astype(np.float32)
    chosen = draw(target, range(4000), temperature=1.0, seed=1)
    coupled = np.mean(np.array(draw(drafter, range(4000), temperature=1.0, seed=1)) == chosen)
    independent = np.mean(np.array(draw(drafter, range(4000), temperature=1.0, seed=2)) == chosen)
    distance = np.abs(softmax(target) - softmax(drafter)).sum() / 2
    assert coupled > (1 - distance) / (1 + distance) - 0.02
    assert coupled > independent + 0.4


def test_filters_of_the_drafter_may_differ():
    """Noise belongs to the token, so a drafter with a wider support still agrees most of the time."""
    target = np.random.default_rng(1).normal(0, 1.5, 64).astype(np.float32)
    narrow = np.array(draw(target, range(2000), temperature=1.0, top_k=20, seed=3))
    wide = np.array(draw(target, range(2000), temperature=1.0, seed=3))
    assert np.mean(narrow == wide) > 0.6
