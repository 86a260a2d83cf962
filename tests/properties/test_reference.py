"""The reference of speculative decoding: the oracle of the other properties."""

import random
from itertools import chain, islice

import pytest
from harness.reference import decode, greedy, no_drafts, seeded
from hypothesis import given
from hypothesis import strategies as st

from fuzz.oracle import PROMPT, row
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import Sampler, SamplingParams

SEEDS = st.integers(0, 2**64 - 1)
CHOICES = st.just(greedy) | st.builds(seeded, SEEDS, st.just(0.7))


def target(ids):
    logits = row(Prefix(ids).crc)
    return logits.tolist()


def text(drafter, k, choose, count=24):
    steps = decode(target, drafter, k, PROMPT, choose)
    ids = chain.from_iterable(steps)
    return list(islice(ids, count))


def sometimes_right(choose, seed, accuracy=0.75):
    """Return a drafter that proposes the target's own choice as often as `accuracy` says."""
    luck = random.Random(seed)

    def drafter(ids, k):
        known = list(ids)
        for _ in range(k):
            draft = choose(target(known), known)
            if luck.random() >= accuracy:
                draft = luck.randrange(16)
            known.append(draft)
        return known[len(ids) :]

    return drafter


@given(CHOICES, st.integers(0, 6), st.integers(0))
def test_the_text_is_the_targets_own(choose, k, seed):
    drafter = sometimes_right(choose, seed)
    expected = text(no_drafts, 0, choose)
    assert text(drafter, k, choose) == expected


def test_right_drafts_save_steps():
    drafter = sometimes_right(greedy, 0, accuracy=1.0)
    steps = decode(target, drafter, 3, PROMPT)
    for step in islice(steps, 4):
        assert len(step) == 4


@pytest.mark.parametrize("seed", range(8))
def test_a_seeded_choice_is_the_samplers(seed):
    logits = row(seed)
    choose = seeded(seed, 0.7)
    sampler = Sampler(SamplingParams(temperature=0.7, seed=seed))
    expected = sampler.choose(logits, len(PROMPT))
    assert choose(logits, PROMPT) == expected
