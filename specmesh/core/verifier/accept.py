"""The accept rule: which drafts of a step are accepted, and the choice of each row by strategy.

`accept` is the same for all strategies: it goes from row to row as long as the row's choice is the
draft there. A strategy decides what a row's choice is:

| strategy | the choice of a row | so the text |
|---|---|---|
| deterministic | the target's own, with the noise of its position | is the same without drafts |
| threshold | the draft if it is probable enough, else the target's own | may differ, and says so |
| probabilistic | a draft, with odds that make up for how it was sampled | is as likely as without |

Rows after the first wrong draft were computed for ids that are not in the text. Their choices are
never asked for.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specmesh.core.prefix import Prefix
from specmesh.core.rounds import SourceDrafts
from specmesh.core.sampling.block_verification import Block, sample
from specmesh.core.sampling.noise import NoiseStream, derived, uniform
from specmesh.core.sampling.proposal import SampledDraft
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.errors import RequestError

TokenChoice = Callable[[int], int]
"""Returns the token after the committed prefix and the first so many drafts.

It is called for 0, 1, ... drafts without gaps, and only as far as they were accepted.
"""


class Acceptance(NamedTuple):
    """The outcome of one round. It is a tuple because each step makes one.

    committed: the accepted drafts, then the recovered or bonus token. The latter is missing if the
        row after the accepted drafts gave no choice.
    accepted: how many of these ids were drafts.
    tested: drafts that were compared; the last of them failed if fewer were accepted.
    ended: the last committed id is an end id, and none of the text.
    stopped: the last committed id completes a stop string.
    """

    committed: tuple[int, ...]
    accepted: int
    tested: int
    ended: bool
    stopped: bool = False

    def by_source(self, parts: Iterable[SourceDrafts], drafted: int) -> tuple[SourceDrafts, ...]:
        """Return the drafts of a step by their source, with how many were tested and accepted.

        parts: as they were proposed. The batch may have cut them to the first `drafted` drafts: the
        last parts have fewer then, or none.
        """
        verified: list[SourceDrafts] = []
        begin = 0
        for part in parts:
            size = min(part.drafted, drafted - begin)
            if size <= 0:
                break
            drafts = SourceDrafts(
                source=part.source,
                drafted=size,
                tested=min(max(self.tested - begin, 0), size),
                accepted=min(max(self.accepted - begin, 0), size),
                exact=part.exact,
            )
            verified.append(drafts)
            begin += size
        return tuple(verified)


def accept(
    drafts: Sequence[int],
    choose: TokenChoice,
    *,
    end_ids: Collection[int],
    room: int,
    stops: Callable[[int], bool] | None = None,
) -> Acceptance:
    """Accept the drafts of a step, row by row, while each equals the choice of its row.

    - At most `room` >= 1 ids are committed.
    - `stops(token)` takes each id of the text in order. It returns True if the text stops there.
    - A row whose choice raises RequestError ends the round with the ids before it, so that a text
      is as long with drafts as without. The error is raised if there are none, as in the step
      after that.

    If the choice is always the target's own, this is speculative decoding with the deterministic
    acceptance of Leviathan et al. (2211.17192, section 2.3, argmax case), exact for any drafter.
    """
    committed: list[int] = []
    for index in range(len(drafts) + 1):
        try:
            token = choose(index)
        except RequestError:
            if not committed:
                raise
            return Acceptance(committed=tuple(committed), accepted=index, tested=index, ended=False)
        committed.append(token)
        # The token is the target's own choice in any case. A draft only decides whether the next
        # row counts.
        is_draft = index < len(drafts) and token == drafts[index]
        ended = token in end_ids
        # An end id is no text, so it completes no stop string.
        stopped = stops is not None and not ended and stops(token)
        if is_draft and not (ended or stopped) and len(committed) < room:
            continue
        return Acceptance(
            committed=tuple(committed),
            accepted=index + 1 if is_draft else index,
            tested=min(index + 1, len(drafts)),
            ended=ended,
            stopped=stopped,
        )
    raise AssertionError("the row after the last draft always ends it")


# --- strategies


class VerifiedRows(NamedTuple):
    """The result of a step for one session.

    base: committed ids. prefix: these.
    logits: float32 (k + 1, n_vocab): after the committed ids, and after each of k drafts.
    offers: these drafts, and perhaps the next one in hand, for the last row.
    sampler: returns the sampler of the position after the first so many drafts.
    """

    base: int
    prefix: Prefix
    logits: NDArray[np.float32]
    offers: Sequence[SampledDraft]
    sampler: Callable[[int], Sampler]

    def own_choice(self, index: int) -> int:
        """Return the target's own choice after the first so many drafts."""
        return self.sampler(index).choose(self.logits[index], self.base + index)


AcceptanceStrategy = Callable[[VerifiedRows], TokenChoice]


def deterministic(rows: VerifiedRows) -> TokenChoice:
    """Choose as the target does by itself, whatever was drafted."""
    return rows.own_choice


def threshold(least: float, rows: VerifiedRows) -> TokenChoice:
    """Choose the draft if its probability by the target is at least `least`. Not exact."""

    def choose(index: int) -> int:
        if index < len(rows.offers):
            token = rows.offers[index].token
            if rows.sampler(index).distribution(rows.logits[index])[token] >= least:
                return token
        return rows.own_choice(index)

    return choose


class Probabilistic:
    """Block verification: exact in distribution, for temperatures above 0.

    A draft in hand for the last row is one more of the block. A token of the target's own there
    would rarely be that draft, and the whole chain would be lost.

    Noise is used once. Coins and recovered tokens belong to `base`, which grows with every step.
    Choices belong to the prefix that they follow (see `ProposalSampler`).
    """

    def __init__(self, seed: int) -> None:
        self._coins = derived(seed, NoiseStream.COINS)
        self._residuals = derived(seed, NoiseStream.RESIDUALS)

    def choices(self, rows: VerifiedRows) -> TokenChoice:
        """Return the function that chooses each token."""
        chosen = self._verified(rows)

        def choose(index: int) -> int:
            return chosen[index] if index < len(chosen) else self._own_choice(rows, index)

        return choose

    def _verified(self, rows: VerifiedRows) -> list[int]:
        """Return the accepted drafts, and the recovered token if not all are accepted."""
        offers = rows.offers
        if not offers:
            return []
        # All rows at once: whether a draft is accepted depends on those behind it too.
        distributions = [
            rows.sampler(index).distribution(rows.logits[index]) for index in range(len(offers))
        ]
        block = Block.of(distributions, offers)
        coins = uniform(self._coins, rows.base, np.arange(len(offers)))
        accepted, weights = block.outcome(coins)
        chosen = [offer.token for offer in offers[:accepted]]
        if weights is not None:
            [coin] = uniform(self._residuals, rows.base, np.zeros(1, np.int64)).tolist()
            chosen.append(sample(weights, coin))
        return chosen

    def _own_choice(self, rows: VerifiedRows, index: int) -> int:
        """Return the target's own choice behind the block, with noise of the ids before it."""
        drafts = [offer.token for offer in rows.offers[:index]]
        crc = Prefix(drafts, rows.prefix.crc).crc
        sampler = rows.sampler(index).keyed(crc)
        return sampler.choose(rows.logits[index], rows.base + index)


def strategy_of(params: SamplingParams) -> AcceptanceStrategy:
    """Return the strategy of a session. Greedy choices are the same by every strategy."""
    if params.strategy == Strategy.THRESHOLD:
        return partial(threshold, params.threshold)
    if uses_proposals(params):
        return Probabilistic(params.seed).choices
    return deterministic


def uses_proposals(params: SamplingParams) -> bool:
    """Return True if drafts are sampled, and sent with their proposals."""
    return params.strategy == Strategy.PROBABILISTIC and params.temperature > 0
