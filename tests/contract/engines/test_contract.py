"""Promises that every verify engine and every draft engine keeps."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from harness import engine_contract as contract
from harness.engine_contract import GREEDY, N_BATCH, N_CTX, N_SEQ, predict, span, step, text_ids
from harness.tables import cases
from numpy.typing import NDArray

from specmesh.core.kv_orders import KVCopy, KVCut, KVOffload
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.match import compare
from specmesh.engines.base import Ask
from specmesh.engines.llama.engine import LlamaDrafter, LlamaVerifier
from specmesh.engines.ngram import NgramDrafter
from specmesh.engines.remapped import RemappedDrafter
from specmesh.engines.sim import SimDrafter, SimVerifier
from specmesh.errors import LocalProtocolError


@pytest.fixture(autouse=True)
def _empty_sequences(request):
    """The engine is shared by the tests of the module, its sequences are not."""
    for name in {"verifier", "drafter"} & set(request.fixturenames):
        for seq in range(N_SEQ):
            request.getfixturevalue(name).carry_out(KVCut(seq, 0))


ATTENTION = contract.model_params(*contract.ATTENTION)
RECURRENT = contract.model_params(*contract.RECURRENT)
MLX = contract.model_params(*contract.MLX_KINDS)
MLX_ATTENTION = contract.model_params(*contract.MLX_ATTENTION)
MLX_STATES = contract.model_params(*sorted({*contract.MLX_KINDS} - {*contract.MLX_ATTENTION}))


@pytest.fixture(scope="module", params=["sim", *ATTENTION, *RECURRENT, *MLX])
def verifier(request):
    if request.param == "sim":
        engine = SimVerifier(contract.sim_settings())
    elif request.param.startswith("mlx"):
        engine = contract.mlx_verifier(request.param, request.getfixturevalue("make_hf"))
    else:
        engine = LlamaVerifier(contract.llama_settings(request), n_batch=N_BATCH)
    yield engine
    engine.close()


def all_at_once(engine, seq, ids):
    """Return the logits of a sequence that was empty."""
    [rows] = step(engine, span(seq, 0, ids))
    return rows


def one_by_one(engine, seq, ids):
    rows = []
    for at, token in enumerate(ids):
        rows += step(engine, span(seq, at, [token]))
    return np.concatenate(rows)


def check_next(engine, seq, held, ids, logits):
    """Check that a sequence which holds `held` ids goes on with the rest, with these logits."""
    [rows] = step(engine, span(seq, held, ids[held:]))
    assert_same_logits(rows, logits[held:])


def assert_same_logits(left, right):
    """Check that logits are equal but for the noise between kernels of different width.

    It is small, and changes the choice only near ties.
    """
    assert left.shape == right.shape
    noise = float(np.abs(left - right).max())
    spread = float(right.max(axis=1).mean() - right.mean())
    assert noise <= 0.05 * spread
    top_two = np.sort(right, axis=1)[:, -2:]
    clear = top_two[:, 1] - top_two[:, 0] > 2 * noise
    assert clear.any()
    assert (left.argmax(axis=1) == right.argmax(axis=1))[clear].all()


class TestVerifier:
    def test_shape(self, verifier):
        asked = span(0, 0, [40, 41, 42])
        unasked = span(1, 0, [40], logits=False)
        wanted, unwanted = verifier.decode([asked, unasked])
        assert wanted.shape == (3, len(verifier.tokenizer.vocabulary))
        assert wanted.dtype == np.float32
        assert unwanted is None

    def test_rows_at_once_equal_one_at_a_time(self, verifier):
        ids = text_ids(12)
        together = all_at_once(verifier, 0, ids)
        assert_same_logits(together, one_by_one(verifier, 1, ids))

    def test_sequences_in_one_step_are_independent(self, verifier):
        texts = [text_ids(7, seed) for seed in range(N_SEQ)]
        spans = [span(seq, 0, ids) for seq, ids in enumerate(texts)]
        together = step(verifier, *spans)
        for seq, ids in enumerate(texts):
            verifier.carry_out(KVCut(seq, 0))
            assert_same_logits(together[seq], all_at_once(verifier, seq, ids))

    def test_prefill_and_last_row_in_one_step(self, verifier):
        """A sequence may have two spans in a step, as a prefill with logits of its last id only."""
        ids = text_ids(10)
        full = all_at_once(verifier, 0, ids)
        prefill = span(1, 0, ids[:9], logits=False)
        [last] = step(verifier, prefill, span(1, 9, ids[9:]))
        assert_same_logits(last, full[9:])

    def test_trim_before_the_last_step(self, verifier, request):
        """Far back an engine holds the ids that it returns, and goes on from there.

        Models with states only where these are saved have none of so long ago.
        """
        ids = text_ids(20)
        straight = all_at_once(verifier, 0, ids)
        for start, end in ((0, 8), (8, 12), (12, 16)):
            step(verifier, span(1, start, ids[start:end]))
        held = verifier.carry_out(KVCut(1, 6))
        name = request.node.callspec.params["verifier"]
        assert held == (0 if name.startswith(("mamba", "mlx-hybrid")) else 6)
        check_next(verifier, 1, held, ids, straight)

    def test_rejected_drafts_leave_no_trace(self, verifier):
        """Steps of several sequences, with right and wrong drafts, have the logits of no drafts."""
        rng = np.random.default_rng(3)
        texts = [text_ids(70, seed) for seed in range(N_SEQ)]
        straight = [one_by_one(verifier, seq, ids) for seq, ids in enumerate(texts)]
        for seq in range(N_SEQ):
            verifier.carry_out(KVCut(seq, 0))
        held = [0] * N_SEQ
        seen = defaultdict[int, list[NDArray[np.float32]]](list)
        while min(held) < 60:
            rights = {}
            spans = []
            for seq in rng.permutation(N_SEQ).tolist()[: rng.integers(1, N_SEQ + 1)]:
                drafts, good = rng.integers(0, [7, 10]).tolist()
                right = 1 + min(good, drafts)
                if held[seq] + drafts < 70:
                    wrong = rng.integers(33, 126, size=1 + drafts - right).tolist()
                    ids = texts[seq][held[seq] : held[seq] + right]
                    spans.append(span(seq, held[seq], ids + wrong))
                    rights[seq] = right
            for part, rows in zip(spans, step(verifier, *spans), strict=True):
                right = rights[part.seq]
                seen[part.seq].append(rows[:right])
                held[part.seq] += right
                if right < len(part.ids):
                    verifier.carry_out(KVCut(part.seq, held[part.seq]))
        for seq in range(N_SEQ):
            assert_same_logits(np.concatenate(seen[seq]), straight[seq][: held[seq]])

    @pytest.mark.parametrize("verifier", [*RECURRENT, *MLX_STATES], indirect=True)
    def test_sequences_that_share_no_ids(self, verifier):
        assert verifier.info.capabilities.reuse == "whole"
        all_at_once(verifier, 0, text_ids(20))
        with pytest.raises(LocalProtocolError, match="share ids"):
            verifier.carry_out(KVCopy(1, 0, 6))

    @pytest.mark.parametrize("verifier", ["sim", *ATTENTION, *MLX_ATTENTION], indirect=True)
    def test_copies(self, verifier):
        assert verifier.info.capabilities.reuse == "copied"
        assert verifier.info.capabilities.trimming == "removal"
        ids = text_ids(20)
        straight = all_at_once(verifier, 0, ids)
        verifier.carry_out(KVCopy(1, 0, 6))
        verifier.carry_out(KVCopy(2, 1, 6))
        step(verifier, span(1, 6, text_ids(9, seed=4), logits=False))
        verifier.carry_out(KVCut(0, 3))
        verifier.carry_out(KVCut(0, 0))
        step(verifier, span(0, 0, text_ids(N_BATCH, seed=5), logits=False))
        check_next(verifier, 2, 6, ids, straight)
        verifier.carry_out(KVCut(1, 6))
        check_next(verifier, 1, 6, ids, straight)

    def test_offloaded(self, verifier):
        """Gone on with, cut, copied and freed as if it had stayed."""
        ids = text_ids(20)
        others = text_ids(15, seed=4)
        straight = all_at_once(verifier, 0, ids)
        step(verifier, span(1, 0, ids[:12]))
        for seq in (0, 1, 1, 2):  # again, and an empty one
            verifier.carry_out(KVOffload(seq))
        step(verifier, span(2, 0, others, logits=False))
        verifier.carry_out(KVOffload(2))
        verifier.carry_out(KVCut(2, 0))
        if verifier.info.capabilities.reuse == "copied":
            verifier.carry_out(KVCopy(2, 0, 6))
            check_next(verifier, 2, 6, ids, straight)
        held = verifier.carry_out(KVCut(0, 8))
        check_next(verifier, 0, held, ids, straight)
        check_next(verifier, 1, 12, ids, straight)
        verifier.carry_out(KVCut(2, 0))
        assert_same_logits(all_at_once(verifier, 2, ids), straight)

    @cases(
        "seq, source, length",
        "[1, 0, 0] [1, 0, 5] [1, 0, -1] [0, 0, 2] [2, 0, 2] [1, $SEQS, 2] [-1, 0, 2]",
        SEQS=N_SEQ,
    )
    def test_bad_copies(self, verifier, seq, source, length):
        """Into a sequence that is not empty, of more or less than there is, or of none.

        Refused, with nothing done.
        """
        ids = text_ids(6)
        straight = all_at_once(verifier, 1, ids)
        verifier.carry_out(KVCut(1, 0))
        step(verifier, span(0, 0, ids[:4]), span(2, 0, ids[:1]))
        with pytest.raises(LocalProtocolError):
            verifier.carry_out(KVCopy(seq, source, length))
        check_next(verifier, 0, 4, ids, straight)
        step(verifier, span(1, 0, ids))


@pytest.fixture(scope="module", params=["sim", "ngram", "remapped", *ATTENTION, *RECURRENT, *MLX])
def drafter(request):
    if request.param == "sim":
        engine = SimDrafter(contract.sim_settings())
    elif request.param == "ngram":
        engine = NgramDrafter(N_SEQ)
    elif request.param == "remapped":
        inner = SimDrafter(contract.sim_settings())
        vocabulary, _ = contract.shuffled(inner.vocabulary)
        remap = compare(inner.vocabulary, vocabulary).remap
        engine = RemappedDrafter(inner, remap, vocabulary)
    elif request.param.startswith("mlx"):
        make_hf = request.getfixturevalue("make_hf")
        engine = contract.mlx_drafter(request.param, make_hf)
    else:
        engine = LlamaDrafter(contract.llama_settings(request), n_batch=N_BATCH)
    yield engine
    engine.close()


class TestDrafter:
    @pytest.mark.parametrize("sampler", [GREEDY, contract.SAMPLED], ids=["greedy", "sampled"])
    def test_draft_is_a_function_of_the_prefix(self, drafter, sampler):
        ids = text_ids(24)
        at_once = predict(drafter, 0, ids, sampler)
        for token in ids[:-1]:
            assert predict(drafter, 1, [token], None) is None
        assert predict(drafter, 1, ids[-1:], sampler) == at_once

    @pytest.mark.parametrize("length", [0, 1, 12, 19])
    def test_trim_then_feed_again(self, drafter, length):
        ids = text_ids(20)
        fresh = predict(drafter, 0, ids, GREEDY)
        predict(drafter, 1, ids[:19], None)
        predict(drafter, 1, [50, 51], GREEDY)
        held = drafter.carry_out(KVCut(1, length))
        assert 0 <= held <= length
        if drafter.info.capabilities.trimming == "removal":
            assert held == length
        assert predict(drafter, 1, ids[held:], GREEDY) == fresh

    def test_sequences_are_independent(self, drafter):
        texts = [text_ids(20, seed) for seed in range(N_SEQ)]
        alone = []
        for ids in texts:
            alone.append(predict(drafter, 0, ids, GREEDY))
            drafter.carry_out(KVCut(0, 0))
        for start, end in pairwise([0, 7, 19]):
            for seq, ids in enumerate(texts):
                predict(drafter, seq, ids[start:end], None)
        drafter.carry_out(KVCut(0, 0))
        for seq in (1, 2):
            last = texts[seq][19:]
            assert predict(drafter, seq, last, GREEDY) == alone[seq]

    @pytest.mark.parametrize("drafter", ["ngram", *RECURRENT, *MLX], indirect=True)
    def test_one_at_a_time(self, drafter):
        assert not drafter.info.capabilities.batches

    @pytest.mark.parametrize("drafter", ["sim", "remapped", *ATTENTION], indirect=True)
    def test_several_at_once(self, drafter):
        """Drafts for several sequences in one call are those of each one's own call."""
        assert drafter.info.capabilities.batches
        texts = [text_ids(9), text_ids(15)[3:], text_ids(9)[1:]]
        firsts = []
        seconds = []
        for ids in texts:
            firsts.append(predict(drafter, 0, ids, GREEDY))
            seconds.append(predict(drafter, 0, [44], GREEDY))
            drafter.carry_out(KVCut(0, 0))
        asks = [Ask(seq, tuple(ids), GREEDY) for seq, ids in enumerate(texts)]
        assert drafter.predict(asks) == firsts
        unasked = Ask(0, (44,), None)
        last = Ask(2, (44,), GREEDY)
        middle = Ask(1, (44,), GREEDY)
        assert drafter.predict([last, unasked, middle]) == [seconds[2], None, seconds[1]]

    def test_trim_says_what_is_held(self, drafter):
        assert drafter.carry_out(KVCut(0, 10)) == 0
        predict(drafter, 0, text_ids(6), None)
        assert drafter.carry_out(KVCut(0, 10)) == 6
        assert drafter.carry_out(KVCut(0, 6)) == 6

    def test_an_order_returns_the_ids_that_are_held(self, drafter):
        """After an offload they are the same."""
        predict(drafter, 0, text_ids(6), None)
        assert drafter.carry_out(KVOffload(0)) == 6

    def test_copies(self, drafter):
        predict(drafter, 0, text_ids(6), None)
        if drafter.info.capabilities.reuse == "copied":
            assert drafter.carry_out(KVCopy(1, 0, 4)) == 4
        else:
            with pytest.raises(LocalProtocolError, match="share ids"):
                drafter.carry_out(KVCopy(1, 0, 4))

    @pytest.mark.parametrize(
        "drafter", ["sim", "remapped", *ATTENTION, *RECURRENT, *MLX], indirect=True
    )
    @pytest.mark.parametrize("shift", [0, 100])
    def test_sampler_sees_the_position_of_the_draft(self, drafter, shift):
        """The noise of coupled sampling is that of the position in the text.

        A sequence that holds a window of a text begins `shift` ids later in it. N-grams are left
        out: they know ids only, and sample from nothing.
        """
        positions = []

        class Recording(Sampler):
            def choose(self, logits, position):
                positions.append(position)
                return super().choose(logits, position)

        sampler = Recording(SamplingParams(temperature=1.0))
        for ids in (text_ids(7), [40]):
            drafter.predict([Ask(0, tuple(ids), sampler, shift=shift)])
        assert positions == [shift + 7, shift + 8]

    def test_draft_with_a_full_context(self, drafter):
        """The id after the last one that fits can be drafted but not taken in.

        An engine without end takes it.
        """
        ids = text_ids(N_CTX)
        for start in range(0, N_CTX - N_BATCH, N_BATCH):
            predict(drafter, 0, ids[start : start + N_BATCH], None)
        assert predict(drafter, 0, ids[N_CTX - N_BATCH :], GREEDY) is not None
        if drafter.info.capabilities.endless:
            predict(drafter, 0, [40], GREEDY)
            return
        with pytest.raises(LocalProtocolError, match="at most 96"):
            predict(drafter, 0, [40], GREEDY)

    @cases(
        "seq, ids",
        "[0, []] [0, [-1]] [0, [$BEYOND]] [$SEQS, [40]] [-1, [40]] [0, $LONG]",
        BEYOND=2**31,
        SEQS=N_SEQ,
        LONG=[40] * 5000,
    )
    def test_bad_ids(self, drafter, seq, ids):
        text = text_ids(20)
        fresh = predict(drafter, 1, text, GREEDY)
        predict(drafter, 0, text[:19], None)
        with pytest.raises(LocalProtocolError):
            predict(drafter, seq, ids, GREEDY)
        assert predict(drafter, 0, text[19:], GREEDY) == fresh

    @cases("seq, length", "[0, -1] [$SEQS, 0] [-1, 0]", SEQS=N_SEQ)
    def test_bad_trim(self, drafter, seq, length):
        with pytest.raises(LocalProtocolError):
            drafter.carry_out(KVCut(seq, length))
