"""The accept rule: which drafts are accepted, and what ends them; and what each strategy lets a row say."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specmesh.core.prefix import Prefix
from specmesh.core.sampling import Strategy
from specmesh.core.sampling.block_verification import Block, sample
from specmesh.core.sampling.noise import NoiseStream, derived, uniform
from specmesh.core.sampling.proposal import SampledDraft
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.errors import RequestError


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The outcome of one round."""

    committed: tuple[int, ...]  # the accepted drafts, then the recovered or bonus token
    accepted: (
        int  # how many of them were drafts; all of them where the row after them gave no choice
    )
    tested: int  # drafts that were compared; the last of them failed where accepted < tested
    ended: bool  # the last committed id ends the text, and is none of it
    stopped: bool = False  # the last committed id completes a stop string


def accept(
    drafts: Sequence[int],
    choose: Callable[[int], int],
    *,
    end_ids: Collection[int],
    room: int,
    stops: Callable[[int], bool] | None = None,
) -> Acceptance:
    """Go through the rows of one step in order and accept while the choice equals the draft. `choose(i)` gives the
    token after the committed prefix and the first `i` drafts; it is called for i = 0, 1, ... without gaps and only as
    far as it goes, so that sampling state advances on committed tokens only. Where it raises RequestError it ends with
    what stands, so that a text is as long with drafts as without; it is raised where nothing stands, as in the step
    after that. At most `room` >= 1 ids are committed; `stops(token)` hears of each in order and says whether the text
    stops with it. Where the choice is always the target's own, this is speculative decoding with the deterministic
    acceptance of Leviathan et al. (2211.17192, section 2.3, argmax case), exact for any drafter."""
    committed: list[int] = []
    for index in range(len(drafts) + 1):
        try:
            token = choose(index)
        except RequestError:
            if not committed:
                raise
            return Acceptance(tuple(committed), index, index, ended=False)
        committed.append(token)
        matches = index < len(drafts) and token == drafts[index]
        ended = token in end_ids
        stopped = stops is not None and not ended and stops(token)
        if not matches or ended or stopped or len(committed) == room:
            tested = min(index + 1, len(drafts))
            return Acceptance(tuple(committed), index + matches, tested, ended, stopped)
    raise AssertionError("the row after the last draft always ends it")


TokenChoice = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """What a step has shown."""

    base: int  # committed ids
    crc: int  # theirs
    logits: NDArray[
        np.float32
    ]  # (k + 1, n_vocab): for the place after them, and after each of k verified drafts
    offers: Sequence[
        SampledDraft
    ]  # these drafts, and perhaps the next one in hand, for the last row
    sampler: Callable[[int], Sampler]  # what chooses after the first so many drafts


AcceptanceStrategy = Callable[[VerifiedRows], TokenChoice]
"""Gives what is called for i = 0, 1, ... as long as the first i drafts are what it gave."""


def argmax(rows: VerifiedRows) -> TokenChoice:
    """The best of each row as it is. The rows after a rejected draft are never looked at."""
    logits = rows.logits
    return lambda i: int(logits[i].argmax())


def deterministic(rows: VerifiedRows) -> TokenChoice:
    """The target's own choice, whatever was drafted."""
    return lambda i: rows.sampler(i).choose(rows.logits[i], rows.base + i)


def threshold(least: float, rows: VerifiedRows) -> TokenChoice:
    """The draft, where the target gives it at least this probability; else the target's own choice. Not exact."""

    def choose(i: int) -> int:
        if i < len(rows.offers):
            token = rows.offers[i].token
            if rows.sampler(i).distribution(rows.logits[i])[token] >= least:
                return token
        return rows.sampler(i).choose(rows.logits[i], rows.base + i)

    return choose


class Probabilistic:
    """Block verification, exact in distribution; for temperatures above 0. A draft in hand for the last row is one more
    of the block: a token of the target's own there would rarely be that draft, and all that was drafted ahead would be
    lost. Noise is used once: coins and recovered tokens belong to `base`, which grows with every step, choices to the
    prefix they are for (see `ProposalSampler`)."""

    def __init__(self, seed: int) -> None:
        self._coins, self._residuals = (
            derived(seed, NoiseStream.COINS),
            derived(seed, NoiseStream.RESIDUALS),
        )

    def choices(self, rows: VerifiedRows) -> TokenChoice:
        offers = rows.offers
        chosen = [offer.token for offer in offers]
        if offers:
            block = Block.of(
                [rows.sampler(i).distribution(rows.logits[i]) for i in range(len(offers))], offers
            )
            stood, weights = block.outcome(uniform(self._coins, rows.base, np.arange(len(offers))))
            if weights is not None:
                coin = float(uniform(self._residuals, rows.base, np.zeros(1, np.int64))[0])
                chosen[stood:] = [sample(weights, coin)]
        return lambda i: chosen[i] if i < len(chosen) else self._own(rows, i)

    def _own(self, rows: VerifiedRows, i: int) -> int:
        crc = Prefix((offer.token for offer in rows.offers[:i]), rows.crc).crc
        return rows.sampler(i).keyed(crc).choose(rows.logits[i], rows.base + i)


def strategy_of(params: SamplingParams) -> AcceptanceStrategy:
    if params.argmax:
        return argmax  # by every strategy
    if params.strategy == Strategy.THRESHOLD:
        return partial(threshold, params.threshold)
    return Probabilistic(params.seed).choices if uses_proposals(params) else deterministic


def uses_proposals(params: SamplingParams) -> bool:
    """Whether drafts are sampled, and sent with their proposals."""
    return params.strategy == Strategy.PROBABILISTIC and params.temperature > 0
