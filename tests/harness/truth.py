"""What a target says alone: the truth that every text of it is compared with."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Logits, Sampler, SamplingParams
from specmesh.engines.base import VerifyEngine
from specmesh.engines.sim import SimSettings, SimVerifier


def continued(
    engine: VerifyEngine, prompt: Sequence[int], count: int, params: SamplingParams
) -> list[int]:
    """The ids that follow the prompt's, at most `count`, without an end id; one row a step."""
    sampler, ids = Sampler(params), list(prompt)
    row = row_after(engine, ids)
    while len(ids) < len(prompt) + count:
        token = sampler.after(ids).choose(row, len(ids))
        if token in engine.tokenizer.vocabulary.end_ids:
            break
        ids.append(token)
        row = row_after(engine, ids, len(ids) - 1)
    return ids[len(prompt) :]


def row_after(engine: VerifyEngine, ids: Sequence[int], held: int = 0) -> Logits:
    """The target's logits after these ids, of which it holds so many."""
    engine.trim(0, held)
    last, most = (
        len(ids) - 1,
        min(engine.info.n_batch, 128),
    )  # as a reproducible verifier takes a prompt in
    for at in range(held, last, most):
        engine.decode([Span(0, at, tuple(ids[at : min(at + most, last)]), logits=False)])
    rows = engine.decode([Span(0, last, tuple(ids[last:]), logits=True)])[0]
    assert rows is not None
    row: Logits = rows[0]
    return row


def simulated(prompt: Sequence[int], count: int, params: SamplingParams | None = None) -> list[int]:
    return continued(SimVerifier(SimSettings()), prompt, count, params or SamplingParams())


def place(probs: NDArray[np.float64], liked: NDArray[np.float32], token: int, luck: float) -> float:
    """A number for a token, uniform where it is as likely as this: the share of what is below it, and a part of its
    own. Below is what is liked less."""
    return float(probs[liked < liked[token]].sum() + luck * probs[liked == liked[token]].sum())


def surprise(numbers: Sequence[float], bins: int) -> float:
    """How far they are from uniform, in standard deviations of chi-square (Wilson and Hilferty)."""
    expected = len(numbers) / bins
    counts, _ = np.histogram(numbers, bins, (0.0, 1.0))
    reduced = float(((counts - expected) ** 2 / expected).sum()) / (bins - 1)
    spread = 2 / (9 * (bins - 1))
    return float((reduced ** (1 / 3) - (1 - spread)) / sqrt(spread))
