"""Rolling acceptance per conditional position."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.acceptance import RollingAcceptance

PROFILE = settings(derandomize=True, deadline=None)
rounds = st.lists(st.integers(0, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=60)


def rounds_of(rates, drafts, number, seed):
    """Rounds of a drafter whose draft at each position stands with these conditional rates."""
    rng = random.Random(seed)
    for _ in range(number):
        accepted = 0
        while accepted < drafts and rng.random() < rates[accepted]:
            accepted += 1
        yield min(accepted + 1, drafts), accepted


@PROFILE
@given(rounds, st.floats(0, 1))
def test_rates_stay_probabilities(history, prior):
    """Whatever rounds are recorded, more than 16 drafts included, every rate lies in [0, 1]."""
    acceptance = RollingAcceptance(prior=prior)
    for tested, accepted in history:
        acceptance.record(tested, min(accepted, tested))
        assert 0 <= acceptance.pooled() <= 1
        assert len(acceptance.rates()) == 16
        assert all(0 <= rate <= 1 for rate in acceptance.rates())


def test_prior_before_anything_is_known():
    """Without a round, every position has the prior; rounds without drafts teach nothing."""
    acceptance = RollingAcceptance(prior=0.7)
    acceptance.record(0, 0)
    assert acceptance.rates() == pytest.approx([0.7] * 16)


def test_conditional_rates_are_found_despite_censoring():
    """Rates that fall with the position are found per position: positions not reached do not count as rejected."""
    truth = [0.9, 0.6, 0.8, 0.3]
    acceptance = RollingAcceptance(memory=2000)
    for tested, accepted in rounds_of(truth, 4, 6000, seed=1):
        acceptance.record(tested, accepted)
    assert acceptance.rates()[:4] == pytest.approx(truth, abs=0.05)


def test_full_acceptance_is_not_a_rejection():
    """A drafter that is always right goes to 1 at the positions it reaches, however few drafts it is asked for."""
    acceptance = RollingAcceptance()
    for _ in range(400):
        acceptance.record(2, 2)
    assert min(acceptance.rates()[:2]) > 0.97
    assert min(acceptance.rates()) > 0.95


def test_old_rounds_are_forgotten():
    """After `memory` rounds the past weighs half: a drafter that turned bad is known as bad."""
    acceptance = RollingAcceptance(memory=16)
    for _ in range(200):
        acceptance.record(1, 1)
    for _ in range(16):
        acceptance.record(1, 0)
    assert acceptance.rates()[0] == pytest.approx(0.5, abs=0.1)
    for _ in range(100):
        acceptance.record(1, 0)
    assert acceptance.rates()[0] < 0.15
