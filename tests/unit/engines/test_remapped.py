"""Draft engines without a model of their own: a table around another, whose ids and noise are the verifier's; prompt
lookup."""

from collections.abc import Sequence

import numpy as np
import pytest
from harness.engine_contract import GREEDY, predict, shuffled
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.match import compare
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Ask, EngineInfo
from specmesh.engines.load import RemappedDrafter
from specmesh.engines.ngram import NgramDrafter
from specmesh.errors import LocalProtocolError

WORDS = tuple(b"w%d" % number for number in range(40))
VERIFIER = Vocabulary((*WORDS, b""), frozenset({40}))


class Scripted:
    """A draft model whose logits the test gives; it keeps what it was fed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.info = EngineInfo("scripted", 64, 8, 1, trimming="removal", backend="test")
        self.vocabulary = vocabulary
        self.logits: NDArray[np.float32] = np.zeros(len(vocabulary), np.float32)
        self.fed: list[int] = []

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        [ask] = asks
        self.fed += ask.ids
        return [None if ask.sampler is None else ask.sampler.choose(self.logits, len(self.fed))]

    def trim(self, seq: int, length: int) -> int:
        del self.fed[length:]
        return len(self.fed)


def wrapped(draft: Vocabulary, least: float = 0.5) -> tuple[RemappedDrafter, Scripted]:
    remap = compare(draft, VERIFIER, least).remap
    assert remap is not None
    inner = Scripted(draft)
    return RemappedDrafter(inner, remap, VERIFIER), inner


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(1.0, seed=3), SamplingParams(0.7, 5, 1.0, 4), SamplingParams(1.3, 0, 0.8, 5)],
    ids=["greedy", "sampled", "top-k", "top-p"],
)
def test_choices_are_those_of_an_identical_model(params: SamplingParams):
    """With a permuted vocabulary the choice at each position is what the sampler makes of the verifier's order."""
    draft, order = shuffled(VERIFIER)
    engine, inner = wrapped(draft)
    rng = np.random.default_rng(1)
    for position in range(1, 60):
        logits = rng.standard_normal(len(VERIFIER)).astype(np.float32)
        inner.logits = logits[order]
        expected = Sampler(params).choose(logits, position)
        assert predict(engine, 0, (position % 41,), Sampler(params)) == expected
    assert [order[token] for token in inner.fed] == [position % 41 for position in range(1, 60)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_best_token_without_counterpart_is_no_guess(temperature: float):
    """Where the model would say a foreign token there is no guess, not a second-best one."""
    draft = Vocabulary((*WORDS[:39], b"foreign", b""), frozenset({40}))
    engine, inner = wrapped(draft)
    sampler = Sampler(SamplingParams(temperature, seed=1))
    inner.logits[39] = 9.0
    assert predict(engine, 0, (1,), sampler) is None
    inner.logits[39], inner.logits[5] = 9.0, 60.0
    assert predict(engine, 0, (1,), sampler) == 5


def test_ids_outside_the_vocabulary():
    """No id looks up a row of the table behind its end; the engine inside gets nothing."""
    draft, _ = shuffled(VERIFIER)
    engine, inner = wrapped(draft)
    with pytest.raises(LocalProtocolError, match="outside"):
        predict(engine, 0, (1, 41), None)
    assert inner.fed == []
    inner.predict = lambda asks: [-1]  # type: ignore[method-assign]
    assert predict(engine, 0, (1,), Sampler(SamplingParams())) is None


# --- prompt lookup: what it guesses, and that its index follows every cut


def searched(ids: list[int], longest: int = 4, shortest: int = 2) -> int | None:
    """The same guess by looking through everything."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(ids) - 1, size - 1, -1):
            if size < len(ids) and ids[end - size : end] == ids[-size:]:
                return ids[end]
    return None


SHORT_IDS = st.lists(st.integers(0, 3), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 30), SHORT_IDS), max_size=12))
def test_equals_a_full_search_after_any_history(moves: list[tuple[int, list[int]]]) -> None:
    drafter = NgramDrafter(512, 1)
    ids: list[int] = []
    for length, more in moves:
        held = drafter.trim(0, length)
        del ids[length:]
        assert held == len(ids)
        if more:
            ids += more
            assert predict(drafter, 0, more, GREEDY) == searched(ids)
