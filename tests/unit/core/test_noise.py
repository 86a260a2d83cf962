"""Noise: the same on every machine, and Gumbel."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.sampling.noise import gumbel, reaching

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)
M64 = 2**64 - 1

seeds = st.integers(0, M64)
positions = st.integers(0, 2**31)

GOLDEN = 0x9E3779B97F4A7C15


def mix(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & M64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & M64
    return value ^ value >> 31


@PROFILE
@given(seeds, positions, st.integers(0, 2**31 - 1))
def test_noise_is_the_documented_function(seed, position, token):
    bits = mix(mix((seed + GOLDEN * (position + 1)) & M64) ^ (GOLDEN * (token + 1)) & M64)
    expected = -math.log(-math.log(((bits >> 12) + 0.5) * 2.0**-52))
    assert gumbel(np.uint64(seed), position, np.array([token]))[0] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@PROFILE
@given(seeds, positions, st.floats(-10, 20))
def test_reaching_leaves_nobody_out(seed, position, least):
    found = set(reaching(np.uint64(seed), position, 3000, least).tolist())
    noise = gumbel(np.uint64(seed), position, np.arange(3000))
    assert set(np.flatnonzero(noise >= least)) <= found
    assert all(noise[token] >= least - 1e-3 for token in found)
