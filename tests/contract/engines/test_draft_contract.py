"""What every draft engine promises, whatever is behind it."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from harness import engine_contract as contract
from numpy.typing import NDArray

from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.match import compare
from specmesh.engines.base import Ask, DraftEngine
from specmesh.engines.llama import LlamaDrafter
from specmesh.engines.load import RemappedDrafter
from specmesh.engines.ngram import NgramDrafter
from specmesh.engines.sim import SimDrafter
from specmesh.errors import LocalProtocolError


@pytest.fixture(
    scope="module",
    params=[
        *("sim", "ngram", "remapped"),
        *contract.model_params(*contract.TINY),
        *(pytest.param(f"mlx-{kind}", marks=pytest.mark.models) for kind in contract.MLX_KINDS),
    ],
)
def drafter(request: pytest.FixtureRequest) -> Iterator[DraftEngine]:
    engine: DraftEngine
    if request.param == "sim":
        engine = SimDrafter(contract.sim_settings())
    elif request.param == "ngram":
        engine = NgramDrafter(contract.N_CTX, contract.N_SEQ)
    elif request.param == "remapped":
        inner = SimDrafter(contract.sim_settings())
        vocabulary, _ = contract.shuffled(inner.vocabulary)
        remap = compare(inner.vocabulary, vocabulary).remap
        assert remap is not None
        engine = RemappedDrafter(inner, remap, vocabulary)
    elif request.param.startswith("mlx"):
        engine = contract.mlx_drafter(request.param, request.getfixturevalue("make_hf"))
    else:
        engine = LlamaDrafter(contract.llama_settings(request), n_batch=contract.N_BATCH)
    yield engine
    engine.close()


class TestDrafter:
    @pytest.mark.parametrize("sampler", [contract.GREEDY, contract.SAMPLED], ids=["greedy", "sampled"])
    def test_guess_is_a_function_of_the_prefix(self, drafter: DraftEngine, sampler: Sampler) -> None:
        ids = contract.text_ids(24)
        at_once = contract.predict(drafter, 0, ids, sampler)
        for token in ids[:-1]:
            assert contract.predict(drafter, 1, [token], None) is None
        assert contract.predict(drafter, 1, ids[-1:], sampler) == at_once

    @pytest.mark.parametrize("length", [0, 1, 12, 19])
    def test_trim_then_feed_again(self, drafter: DraftEngine, length: int) -> None:
        ids = contract.text_ids(20)
        fresh = contract.predict(drafter, 0, ids, contract.GREEDY)
        contract.predict(drafter, 1, ids[:19], None)
        contract.predict(drafter, 1, [50, 51], contract.GREEDY)
        held = drafter.trim(1, length)
        assert held == length if drafter.info.trimming == "removal" else 0 <= held <= length
        assert contract.predict(drafter, 1, ids[held:], contract.GREEDY) == fresh

    def test_sequences_are_independent(self, drafter: DraftEngine) -> None:
        texts = [contract.text_ids(20, seed) for seed in range(contract.N_SEQ)]
        alone = []
        for ids in texts:
            alone.append(contract.predict(drafter, 0, ids, contract.GREEDY))
            drafter.trim(0, 0)
        for start, end in pairwise([0, 7, 19]):
            for seq, ids in enumerate(texts):
                contract.predict(drafter, seq, ids[start:end], None)
        drafter.trim(0, 0)
        assert [contract.predict(drafter, seq, texts[seq][19:], contract.GREEDY) for seq in (1, 2)] == alone[1:]

    def test_several_at_once(self, drafter: DraftEngine) -> None:
        """Guesses for several sequences in one go are those that each gets alone, whatever else is taken in."""
        if not drafter.info.batches:
            pytest.skip("it guesses for one sequence at a time")
        texts = [contract.text_ids(9), contract.text_ids(15)[3:], contract.text_ids(9)[1:]]
        alone = []
        for ids in texts:
            alone.append([contract.predict(drafter, 0, more, contract.GREEDY) for more in (ids, [44])])
            drafter.trim(0, 0)
        first = drafter.predict([Ask(seq, tuple(ids), contract.GREEDY) for seq, ids in enumerate(texts)])
        second = drafter.predict([Ask(2, (44,), contract.GREEDY), Ask(0, (44,), None), Ask(1, (44,), contract.GREEDY)])
        assert first == [guesses[0] for guesses in alone]
        assert second == [alone[2][1], None, alone[1][1]]

    def test_trim_says_what_is_held(self, drafter: DraftEngine) -> None:
        assert drafter.trim(0, 10) == 0
        contract.predict(drafter, 0, contract.text_ids(6), None)
        assert drafter.trim(0, 10) == 6
        assert drafter.trim(0, 6) == 6

    def test_sampler_sees_the_position_of_the_guess(self, drafter: DraftEngine) -> None:
        """The noise of coupled sampling is that of the absolute position the guess is for."""
        if drafter.vocabulary is None:
            pytest.skip("it knows ids only: there is nothing to sample from")
        positions = list[int]()

        class Recording(Sampler):
            def choose(self, logits: NDArray[np.float32], position: int) -> int:
                positions.append(position)
                return super().choose(logits, position)

        sampler = Recording(SamplingParams(temperature=1.0))
        contract.predict(drafter, 0, contract.text_ids(7), sampler)
        contract.predict(drafter, 0, [40], sampler)
        assert positions == [7, 8]

    def test_guess_with_a_full_context(self, drafter: DraftEngine) -> None:
        """The id after the last one that fits can be guessed but not taken in."""
        ids = contract.text_ids(contract.N_CTX)
        for start in range(0, contract.N_CTX - contract.N_BATCH, contract.N_BATCH):
            contract.predict(drafter, 0, ids[start : start + contract.N_BATCH], None)
        assert contract.predict(drafter, 0, ids[contract.N_CTX - contract.N_BATCH :], contract.GREEDY) is not None
        with pytest.raises(LocalProtocolError, match="at most 96"):
            contract.predict(drafter, 0, [40], contract.GREEDY)

    @pytest.mark.parametrize(
        ("seq", "ids"),
        [(0, []), (0, [-1]), (0, [2**31]), (contract.N_SEQ, [40]), (-1, [40]), (0, [40] * (contract.N_CTX + 1))],
    )
    def test_bad_ids(self, drafter: DraftEngine, seq: int, ids: list[int]) -> None:
        text = contract.text_ids(20)
        fresh = contract.predict(drafter, 1, text, contract.GREEDY)
        contract.predict(drafter, 0, text[:19], None)
        with pytest.raises(LocalProtocolError):
            contract.predict(drafter, seq, ids, contract.GREEDY)
        assert contract.predict(drafter, 0, text[19:], contract.GREEDY) == fresh

    @pytest.mark.parametrize(("seq", "length"), [(0, -1), (contract.N_SEQ, 0), (-1, 0)])
    def test_bad_trim(self, drafter: DraftEngine, seq: int, length: int) -> None:
        with pytest.raises(LocalProtocolError):
            drafter.trim(seq, length)
