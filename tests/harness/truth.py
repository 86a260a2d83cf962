"""The text that a target writes without drafts, and the distribution of its tokens."""

from collections.abc import Sequence
from itertools import chain, islice, takewhile
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from harness.reference import Choose, Row, decode, no_drafts
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.core.sampling.sampler import Logits, Sampler, SamplingParams
from specmesh.engines.base import VerifyEngine
from specmesh.engines.sim import SimSettings, SimVerifier


def chosen_by(params: SamplingParams) -> Choose:
    """Return the choice of specmesh's sampler, with its filters, penalties and biases."""
    sampler = Sampler(params)

    def choose(row: Row, ids: Sequence[int]) -> int:
        return sampler.after(ids).choose(np.asarray(row), len(ids))

    return choose


def continued(
    engine: VerifyEngine, prompt: Sequence[int], count: int, params: SamplingParams
) -> list[int]:
    """Return at most `count` ids that follow the prompt, without an end id."""
    held = 0

    def target(ids: Sequence[int]) -> Logits:
        nonlocal held
        row = row_after(engine, ids, held)
        held = len(ids)
        return row

    steps = decode(target, no_drafts, 0, prompt, chosen_by(params))
    ends = engine.tokenizer.vocabulary.end_ids
    text = takewhile(lambda token: token not in ends, chain.from_iterable(steps))
    return list(islice(text, count))


def row_after(engine: VerifyEngine, ids: Sequence[int], held: int = 0) -> Logits:
    """Return the target's logits after these ids; it holds the first `held` of them.

    The ids are read in parts of the size that a reproducible verifier takes.
    """
    engine.carry_out(KVCut(0, held))
    last = len(ids) - 1
    most = min(engine.info.n_batch, 128)
    for at in range(held, last, most):
        part = tuple(ids[at : min(at + most, last)])
        engine.decode([Span(0, at, part, logits=False)])
    [rows] = engine.decode([Span(0, last, (ids[last],), logits=True)])
    assert rows is not None
    row: Logits = rows[0]
    return row


def simulated(prompt: Sequence[int], count: int, params: SamplingParams | None = None) -> list[int]:
    return continued(SimVerifier(SimSettings()), prompt, count, params or SamplingParams())


def place(probs: NDArray[np.float64], liked: NDArray[np.float32], token: int, luck: float) -> float:
    """Return a number for a token that is uniform if the token comes with its probability.

    It is the share of the tokens that are liked less, and a random part of those liked as much.
    """
    below = probs[liked < liked[token]].sum()
    own = probs[liked == liked[token]].sum()
    return float(below + luck * own)


def surprise(numbers: Sequence[float], bins: int) -> float:
    """Return how far numbers are from uniform, in standard deviations of chi-square.

    The approximation is Wilson and Hilferty's.
    """
    expected = len(numbers) / bins
    counts, _ = np.histogram(numbers, bins, (0.0, 1.0))
    chi_square = float(((counts - expected) ** 2).sum()) / expected
    reduced = chi_square / (bins - 1)
    spread = 2 / (9 * (bins - 1))
    return float((reduced ** (1 / 3) - (1 - spread)) / sqrt(spread))
