"""What every verify engine promises, whatever is behind it."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from harness import engine_contract as contract
from numpy.typing import NDArray

from specmesh.engines.base import OffloadEngine, VerifyEngine
from specmesh.engines.llama import LlamaVerifier
from specmesh.engines.sim import SimVerifier
from specmesh.errors import LocalProtocolError


@pytest.fixture(scope="module", params=["sim", *contract.model_params(*contract.TINY)])
def verifier(request: pytest.FixtureRequest) -> Iterator[VerifyEngine]:
    engine: VerifyEngine
    if request.param == "sim":
        engine = SimVerifier(contract.sim_settings())
    else:
        engine = LlamaVerifier(contract.llama_settings(request), n_batch=contract.N_BATCH)
    yield engine
    engine.close()


def one_by_one(engine: VerifyEngine, seq: int, ids: Sequence[int], position: int = 0) -> NDArray[np.float32]:
    return np.concatenate(
        [contract.step(engine, contract.span(seq, position + index, [token]))[0] for index, token in enumerate(ids)]
    )


def assert_same_logits(left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
    """Equal up to the numerical noise between kernels of different width: small, and flips only near ties."""
    assert left.shape == right.shape
    noise = float(np.abs(left - right).max())
    spread = float(right.max(axis=1).mean() - right.mean())
    assert noise <= 0.05 * spread
    top_two = np.sort(right, axis=1)[:, -2:]
    clear = top_two[:, 1] - top_two[:, 0] > 2 * noise
    assert clear.any()
    assert (left.argmax(axis=1) == right.argmax(axis=1))[clear].all()


class TestVerifier:
    def test_shape(self, verifier: VerifyEngine) -> None:
        wanted, unwanted = verifier.decode([contract.span(0, 0, [40, 41, 42]), contract.span(1, 0, [40], logits=False)])
        assert wanted is not None
        assert (wanted.shape, wanted.dtype) == ((3, len(verifier.tokenizer.vocabulary)), np.float32)
        assert unwanted is None

    def test_rows_at_once_equal_one_at_a_time(self, verifier: VerifyEngine) -> None:
        ids = contract.text_ids(12)
        assert_same_logits(contract.step(verifier, contract.span(0, 0, ids))[0], one_by_one(verifier, 1, ids))

    def test_sequences_in_one_step_are_independent(self, verifier: VerifyEngine) -> None:
        texts = [contract.text_ids(7, seed) for seed in range(contract.N_SEQ)]
        together = contract.step(verifier, *(contract.span(seq, 0, ids) for seq, ids in enumerate(texts)))
        for seq, ids in enumerate(texts):
            verifier.trim(seq, 0)
            assert_same_logits(together[seq], contract.step(verifier, contract.span(seq, 0, ids))[0])

    def test_prefill_and_last_row_in_one_step(self, verifier: VerifyEngine) -> None:
        """A sequence may have two spans in a contract.step, as a prefill that wants logits of its last id only."""
        ids = contract.text_ids(10)
        full = contract.step(verifier, contract.span(0, 0, ids))[0]
        (last,) = contract.step(verifier, contract.span(1, 0, ids[:9], logits=False), contract.span(1, 9, ids[9:]))
        assert_same_logits(last, full[9:])

    def test_trim_before_the_last_step(self, verifier: VerifyEngine) -> None:
        """Far back an engine holds what it says, and goes on from there."""
        ids = contract.text_ids(20)
        straight = contract.step(verifier, contract.span(0, 0, ids))[0]
        for start, end in ((0, 8), (8, 12), (12, 16)):
            contract.step(verifier, contract.span(1, start, ids[start:end]))
        held = verifier.trim(1, 6)
        assert held == 6 if verifier.info.trimming == "removal" else held == 0
        assert_same_logits(contract.step(verifier, contract.span(1, held, ids[held:]))[0], straight[held:])

    def test_rejected_drafts_leave_no_trace(self, verifier: VerifyEngine) -> None:
        """Steps of several sequences with right and wrong drafts, of any widths: logits as without drafts."""
        rng = np.random.default_rng(3)
        texts = [contract.text_ids(70, seed) for seed in range(contract.N_SEQ)]
        straight = [one_by_one(verifier, seq, ids) for seq, ids in enumerate(texts)]
        for seq in range(contract.N_SEQ):
            verifier.trim(seq, 0)
        seen: list[list[NDArray[np.float32]]] = [[] for _ in range(contract.N_SEQ)]
        held = [0] * contract.N_SEQ
        while min(held) < 60:
            spans, right = [], []
            for seq in rng.permutation(contract.N_SEQ).tolist()[: rng.integers(1, contract.N_SEQ + 1)]:
                drafts, good = int(rng.integers(0, 7)), int(rng.integers(0, 10))
                kept = 1 + min(good, drafts)
                if held[seq] + drafts < 70:
                    wrong = rng.integers(33, 126, size=1 + drafts - kept).tolist()
                    spans.append(contract.span(seq, held[seq], texts[seq][held[seq] : held[seq] + kept] + wrong))
                    right.append(kept)
            for part, kept, rows in zip(spans, right, contract.step(verifier, *spans), strict=True):
                seen[part.seq].append(rows[:kept])
                held[part.seq] += kept
                if kept < len(part.ids):
                    verifier.trim(part.seq, held[part.seq])
        for seq in range(contract.N_SEQ):
            assert_same_logits(np.concatenate(seen[seq]), straight[seq][: held[seq]])

    def test_copies(self, verifier: VerifyEngine) -> None:
        ids = contract.text_ids(20)
        straight = contract.step(verifier, contract.span(0, 0, ids))[0]
        if verifier.info.reuse != "copied":
            with pytest.raises(LocalProtocolError):
                verifier.copy(1, 0, 6)
            pytest.skip("its sequences share no ids, and it says so")
        assert verifier.info.trimming == "removal"
        verifier.copy(1, 0, 6)
        verifier.copy(2, 1, 6)
        contract.step(verifier, contract.span(1, 6, contract.text_ids(9, seed=4), logits=False))
        verifier.trim(0, 3)
        verifier.trim(0, 0)
        contract.step(verifier, contract.span(0, 0, contract.text_ids(contract.N_BATCH, seed=5), logits=False))
        assert_same_logits(contract.step(verifier, contract.span(2, 6, ids[6:]))[0], straight[6:])
        verifier.trim(1, 6)
        assert_same_logits(contract.step(verifier, contract.span(1, 6, ids[6:]))[0], straight[6:])

    def test_offloaded(self, verifier: VerifyEngine) -> None:
        """Gone on with, cut, copied and freed as if it had stayed."""
        if not isinstance(verifier, OffloadEngine):
            pytest.skip("its steps pay for their own sequences only")
        ids, others = contract.text_ids(20), contract.text_ids(15, seed=4)
        straight = contract.step(verifier, contract.span(0, 0, ids))[0]
        contract.step(verifier, contract.span(1, 0, ids[:12]))
        for seq in (0, 1, 1, 2):  # again, and an empty one
            verifier.offload(seq)
        contract.step(verifier, contract.span(2, 0, others, logits=False))
        verifier.offload(2)
        verifier.trim(2, 0)
        if verifier.info.reuse == "copied":
            verifier.copy(2, 0, 6)
            assert_same_logits(contract.step(verifier, contract.span(2, 6, ids[6:]))[0], straight[6:])
        held = verifier.trim(0, 8)
        assert_same_logits(contract.step(verifier, contract.span(0, held, ids[held:]))[0], straight[held:])
        assert_same_logits(contract.step(verifier, contract.span(1, 12, ids[12:]))[0], straight[12:])
        verifier.trim(2, 0)
        assert_same_logits(contract.step(verifier, contract.span(2, 0, ids))[0], straight)

    @pytest.mark.parametrize(
        ("seq", "source", "length"),
        [(1, 0, 0), (1, 0, 5), (1, 0, -1), (0, 0, 2), (2, 0, 2), (1, contract.N_SEQ, 2), (-1, 0, 2)],
    )
    def test_bad_copies(self, verifier: VerifyEngine, seq: int, source: int, length: int) -> None:
        """Into a sequence that is not empty, of more or less than there is, or of none: refused, with nothing done."""
        ids = contract.text_ids(6)
        straight = contract.step(verifier, contract.span(1, 0, ids))[0]
        verifier.trim(1, 0)
        contract.step(verifier, contract.span(0, 0, ids[:4]), contract.span(2, 0, ids[:1]))
        with pytest.raises(LocalProtocolError):
            verifier.copy(seq, source, length)
        assert_same_logits(contract.step(verifier, contract.span(0, 4, ids[4:]))[0], straight[4:])
        contract.step(verifier, contract.span(1, 0, ids))
