"""Rolling acceptance per conditional position."""

import random

import pytest
from hypothesis import settings

from specmesh.core.draft_length.estimates import RollingAcceptance

PROFILE = settings(derandomize=True, deadline=None)


def rounds_of(rates, drafts, number, seed):
    """Rounds of a drafter whose draft at each position stands with these conditional rates."""
    rng = random.Random(seed)
    for _ in range(number):
        accepted = 0
        while accepted < drafts and rng.random() < rates[accepted]:
            accepted += 1
        yield min(accepted + 1, drafts), accepted


def test_conditional_rates_are_found_despite_censoring():
    truth = [0.9, 0.6, 0.8, 0.3]
    acceptance = RollingAcceptance(memory=2000)
    for tested, accepted in rounds_of(truth, 4, 6000, seed=1):
        acceptance.record(tested, accepted)
    assert acceptance.rates()[:4] == pytest.approx(truth, abs=0.05)


def test_old_rounds_are_forgotten():
    acceptance = RollingAcceptance(memory=16)
    for _ in range(200):
        acceptance.record(1, 1)
    for _ in range(16):
        acceptance.record(1, 0)
    assert acceptance.rates()[0] == pytest.approx(0.5, abs=0.1)
    for _ in range(100):
        acceptance.record(1, 0)
    assert acceptance.rates()[0] < 0.15
