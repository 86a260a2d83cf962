"""What a draft was sampled from, exactly: a few tokens with whole-number weights.

A draft model's distribution has a hundred thousand entries, few of which matter. So the drafter cuts it, rounds it,
samples from what is left, and sends just that with the draft. Nothing is lost by the cut but acceptance: block
verification (block_verification.py) is exact for whatever a draft was sampled from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from specmesh.core.sampling.noise import gumbel
from specmesh.core.sampling.sampler import Floats, Ids, Logits, Sampler

MAX_PROPOSAL = 128  # most tokens of a proposal
# Share of the draft model's distribution after which the likeliest tokens are enough. With the bundled pair at
# temperature 0.8, where it is flat, a draft is accepted 0.008 less often than one of the whole (bench/acceptance.py).
MASS = 0.97
HEAVIEST = 2**16 - 1  # the weight of the likeliest token, and the largest there is


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens, the likeliest first, and the weight of each: a token's probability is its weight's share of their sum."""

    ids: tuple[int, ...]
    weights: tuple[int, ...]

    def shares(self) -> tuple[Ids, Floats]:
        weights = np.array(self.weights, dtype=np.float64)
        return np.array(self.ids, dtype=np.int64), weights / weights.sum()

    def fits(self, token: int, n_vocab: int) -> bool:
        """Whether `token` can have been sampled from it, and it is one; for what a peer sends."""
        if not 0 < len(self.ids) == len(self.weights) <= MAX_PROPOSAL or token not in self.ids:
            return False
        distinct = len(set(self.ids)) == len(self.ids)
        known = min(self.ids) >= 0 and max(self.ids) < n_vocab
        return distinct and known and min(self.weights) > 0 and max(self.weights) <= HEAVIEST


FlatProposals = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Proposals one after the other: the size of each, 0 for none; all ids; all weights."""


def flattened(proposals: Sequence[Proposal | None]) -> FlatProposals:
    known = [proposal or Proposal((), ()) for proposal in proposals]
    ids = tuple(token for proposal in known for token in proposal.ids)
    return (
        tuple(len(one.ids) for one in known),
        ids,
        tuple(weight for one in known for weight in one.weights),
    )


def unflattened(flat: FlatProposals) -> tuple[Proposal | None, ...]:
    sizes, ids, weights = flat
    parts = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    return tuple(
        Proposal(ids[part], weights[part]) if part.start < part.stop else None for part in parts
    )


@dataclass(frozen=True, slots=True)
class SampledDraft:
    """A draft, and what it was sampled from: None if it was certain, or that is not known."""

    token: int
    proposal: Proposal | None = None

    def shares(self) -> tuple[Ids, Floats]:
        """Tokens and probabilities that it was sampled from: itself alone without a proposal."""
        if self.proposal is None:
            return np.array([self.token], dtype=np.int64), np.ones(1)
        return self.proposal.shares()


def proposal_of(ids: Iterable[int], shares: Floats) -> Proposal:
    """The proposal for tokens, the likeliest first, with these probabilities: as few as have MASS of them."""
    enough = int(np.searchsorted(np.cumsum(shares), MASS)) + 1
    weights = np.rint(shares[:enough] / shares[0] * HEAVIEST).astype(np.int64)
    kept = [(token, weight) for token, weight in zip(ids, weights.tolist(), strict=False) if weight]
    return Proposal(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))


class ProposalSampler(Sampler):
    """A drafter's sampler for one position of a probabilistic session: chooses from a proposal, and keeps that. Its
    noise is the prefix's own. The target's own choice there has the same, so both agree as often as in coupled sampling
    where the draft comes too late to be verified. A draft that was verified and failed leaves its prefix behind, so no
    noise is used twice."""

    __slots__ = ("proposal",)

    def __init__(self, sampler: Sampler, crc: int) -> None:
        """For the position after a prefix with this CRC; the temperature must be above 0."""
        keyed = sampler.keyed(crc)
        super().__init__(keyed.params, keyed.before)
        self.proposal: Proposal | None = None

    def choose(self, logits: Logits, position: int) -> int:
        ids, shares = self.likeliest(logits, MAX_PROPOSAL)
        self.proposal = proposal_of(ids.tolist(), shares)
        kept = np.array(self.proposal.ids, dtype=np.int64)
        noise = gumbel(np.uint64(self.params.seed), position, kept)
        return int(kept[(np.log(self.proposal.weights) + noise).argmax()])
