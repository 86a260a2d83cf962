"""The distribution that a draft was sampled from, exactly: a few tokens with whole-number weights.

A draft model's distribution has a hundred thousand entries, few of which matter. So the drafter
cuts it, rounds it, samples from the rest, and sends exactly that with the draft. The cut costs
nothing but acceptance: block verification (block_verification.py) is exact for any distribution
that a draft was sampled from.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from specmesh.core.sampling.noise import Floats, Ids, gumbel
from specmesh.core.sampling.sampler import Logits, Sampler

MAX_PROPOSAL = 128  # most tokens of a proposal
MASS = 0.97
"""Share of the draft model's distribution after which the likeliest tokens are enough. With the
bundled pair at temperature 0.8, where it is flat, a draft is accepted 0.008 less often than one of
the whole (bench/acceptance.py).
"""
HEAVIEST = 2**16 - 1  # the weight of the likeliest token, and the largest there is


class Proposal(NamedTuple):
    """Tokens, the likeliest first, with their weights.

    A token's probability is the share of its weight in their sum.
    """

    ids: tuple[int, ...]
    weights: tuple[int, ...]

    def shares(self) -> tuple[Ids, Floats]:
        """Return the tokens and their probabilities."""
        ids = np.array(self.ids, dtype=np.int64)
        weights = np.array(self.weights, dtype=np.float64)
        return ids, weights / weights.sum()

    def fits(self, token: int, n_vocab: int) -> bool:
        """Return True for a valid proposal that `token` can have been sampled from.

        This is the check of a peer's proposal.
        """
        ids = self.ids
        weights = self.weights
        if not 0 < len(ids) == len(weights) <= MAX_PROPOSAL:
            return False
        if token not in ids or len(set(ids)) < len(ids):
            return False
        known = min(ids) >= 0 and max(ids) < n_vocab
        return known and min(weights) > 0 and max(weights) <= HEAVIEST


FlatProposals = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Proposals one after the other: the size of each, 0 for none; all ids; all weights."""


def flattened(proposals: Sequence[Proposal | None]) -> FlatProposals:
    """Return proposals in the form of the wire."""
    sizes: list[int] = []
    ids: list[int] = []
    weights: list[int] = []
    for proposal in proposals:
        if proposal is None:
            sizes.append(0)
            continue
        sizes.append(len(proposal.ids))
        ids += proposal.ids
        weights += proposal.weights
    return tuple(sizes), tuple(ids), tuple(weights)


def unflattened(flat: FlatProposals) -> tuple[Proposal | None, ...]:
    """Return proposals from the form of the wire; the sizes must add up."""
    sizes, ids, weights = flat
    proposals: list[Proposal | None] = []
    begin = 0
    for size in sizes:
        end = begin + size
        proposal = Proposal(ids[begin:end], weights[begin:end])
        proposals.append(proposal if size else None)
        begin = end
    return tuple(proposals)


class SampledDraft(NamedTuple):
    """A draft with the distribution that it was sampled from.

    proposal: None for a draft that was certain, or whose distribution is unknown.
    """

    token: int
    proposal: Proposal | None = None

    def shares(self) -> tuple[Ids, Floats]:
        """Return the tokens and probabilities that it was sampled from.

        Without a proposal that is the draft itself, with certainty.
        """
        if self.proposal is None:
            return np.array([self.token], dtype=np.int64), np.ones(1)
        return self.proposal.shares()


def proposal_of(ids: Iterable[int], shares: Floats) -> Proposal:
    """Return the proposal of as few tokens as have MASS of a distribution.

    ids, shares: tokens, the likeliest first, and their probabilities.
    """
    reached = np.cumsum(shares)
    enough = int(np.searchsorted(reached, MASS)) + 1
    exact = shares[:enough] / shares[0] * HEAVIEST
    rounded = np.rint(exact).astype(np.int64)
    tokens: list[int] = []
    weights: list[int] = []
    for token, weight in zip(ids, rounded.tolist(), strict=False):
        if weight:
            tokens.append(token)
            weights.append(weight)
    return Proposal(tuple(tokens), tuple(weights))


class ProposalSampler(Sampler):
    """A drafter's sampler for one position of a probabilistic session.

    It chooses from a proposal and keeps it. Its noise belongs to the prefix. The target's own
    choice after this prefix has the same noise, so both agree as often as in coupled sampling if
    the draft comes too late to be verified. A rejected draft leaves its prefix behind, so no noise
    is used twice.

    proposal: of the newest choice.
    """

    __slots__ = ("proposal",)

    def __init__(self, sampler: Sampler, crc: int) -> None:
        """Choose after a prefix with this CRC; the temperature must be above 0."""
        keyed = sampler.keyed(crc)
        super().__init__(keyed.params, keyed.before)
        self.proposal: Proposal | None = None

    def choose(self, logits: Logits, position: int) -> int:
        """Return a draft, and keep its proposal."""
        ids, shares = self.likeliest(logits, MAX_PROPOSAL)
        self.proposal = proposal_of(ids.tolist(), shares)
        tokens = np.array(self.proposal.ids, dtype=np.int64)
        noise = gumbel(np.uint64(self.params.seed), position, tokens)
        scores = np.log(self.proposal.weights) + noise
        return int(tokens[scores.argmax()])
