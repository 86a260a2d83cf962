"""The reference of speculative decoding: the oracle of the other properties."""

import random
from collections.abc import Sequence
from itertools import chain, islice

import pytest
from harness.reference import Choose, Drafter, decode, greedy, no_drafts, seeded
from hypothesis import given
from hypothesis import strategies as st

from fuzz.oracle import PROMPT, row
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import Sampler, SamplingParams

CHOICES = st.just(greedy) | st.builds(seeded, st.integers(0, 2**64 - 1), st.just(0.7))


def target(ids: Sequence[int]) -> list[float]:
    return [float(logit) for logit in row(Prefix(ids).crc)]


def text(drafter: Drafter, k: int, choose: Choose, count: int = 24) -> list[int]:
    steps = decode(target, drafter, k, PROMPT, choose)
    return list(islice(chain.from_iterable(steps), count))


def guessing(choose: Choose, seed: int, accuracy: float = 0.75) -> Drafter:
    """Return a drafter that proposes the target's own choice as often as `accuracy` says."""
    luck = random.Random(seed)

    def drafter(ids: Sequence[int], k: int) -> list[int]:
        known = list(ids)
        for _ in range(k):
            right = choose(target(known), known)
            known.append(right if luck.random() < accuracy else luck.randrange(16))
        return known[len(ids) :]

    return drafter


@given(CHOICES, st.integers(0, 6), st.integers(0))
def test_the_text_is_the_targets_own(choose: Choose, k: int, seed: int) -> None:
    assert text(guessing(choose, seed), k, choose) == text(no_drafts, 0, choose)


def test_right_drafts_save_steps() -> None:
    steps = islice(decode(target, guessing(greedy, 0, 1.0), 3, PROMPT), 4)
    assert [len(step) for step in steps] == [4, 4, 4, 4]


@pytest.mark.parametrize("seed", range(8))
def test_a_seeded_choice_is_the_samplers(seed: int) -> None:
    logits = row(seed)
    sampler = Sampler(SamplingParams(temperature=0.7, seed=seed))
    assert seeded(seed, 0.7)(logits, PROMPT) == sampler.choose(logits, len(PROMPT))
