"""Block verification: how many drafts of a chain are accepted if each has a known proposal.

Sun et al., "Block Verification Accelerates Speculative Decoding" (2403.10444), algorithm 2. Draft
Xi of X1 .. Xk was sampled from q_i after those before it, and p_i is the target's distribution
there:

    kept_0 = 1
    kept_i = min(1, kept_(i-1) p_i(X_i) / q_i(X_i))
    left_i = sum over x of max(0, kept_i p_(i+1)(x) - q_(i+1)(x))
    height_i = left_i / (left_i + 1 - kept_i), but height_k = kept_k
    t = the last i whose coin, uniform in (0, 1), is at most height_i; 0 without one

The first t drafts are accepted. If t < k, a recovered token follows, sampled from
max(0, kept_t p_(t+1) - q_(t+1)). If t = k nothing follows: one more token is sampled from p_(k+1),
as in the paper, or another block is verified.

**Exact.** The accepted drafts and the recovered token are the beginning of a sample from the
target's distribution, if each draft was sampled from its q_i and no coin was known to its drafter
(theorem 1 of the paper). On the average more drafts are accepted than by any other rule for one
chain, also than by accepting each draft with probability min(1, p/q).

**A recovered token is never the draft that it replaces.** It can be x only if kept_t p(x) > q(x).
Were that so for the draft, kept_(t+1) would be 1, so would height_(t+1), and the draft would have
been accepted. The same holds in floating point: a rounded quotient is below 1 only if its numerator
is below its denominator. So the drafts behind a rejected one, which the coins have looked at, never
come to be beyond the text again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specmesh.core.sampling.noise import Floats
from specmesh.core.sampling.proposal import SampledDraft


class Block(NamedTuple):
    """Drafts under verification.

    distributions: the target's before each draft, float64 (n_vocab,).
    offers: the drafts.
    kept: kept_0 .. kept_k. heights: height_1 .. height_k, so heights[i] is height_(i+1).
    """

    distributions: Sequence[Floats]
    offers: Sequence[SampledDraft]
    kept: tuple[float, ...]
    heights: tuple[float, ...]

    @classmethod
    def of(cls, distributions: Sequence[Floats], offers: Sequence[SampledDraft]) -> "Block":
        """Return the block of these drafts, at least one."""
        kept = [1.0]
        heights: list[float] = []
        for target, offer in zip(distributions, offers, strict=True):
            ids, shares = offer.shares()
            before = kept[-1]
            if len(kept) > 1:
                # The sum of max(0, kept p - q) is that of kept p - min(kept p, q); p sums to 1.
                common = np.minimum(before * target[ids], shares)
                left = max(before - float(common.sum()), 0.0)
                heights.append(_height(before, left))
            proposed = float(shares[ids == offer.token].sum())
            wanted = before * float(target[offer.token])
            kept.append(min(wanted / proposed, 1.0))
        heights.append(kept[-1])
        return cls(distributions, offers, tuple(kept), tuple(heights))

    def outcome(self, coins: Floats) -> tuple[int, Floats | None]:
        """Return how many drafts are accepted, and the weights of the recovered token.

        coins: one for each draft. The weights are None if all drafts are accepted.
        """
        passed = np.flatnonzero(coins <= self.heights)
        accepted = int(passed[-1]) + 1 if len(passed) else 0
        while accepted < len(self.offers):
            weights = self.left(accepted)
            if weights.any():
                return accepted, weights
            # Target and proposal differ by rounding only: nothing but the draft is left.
            accepted += 1
        return accepted, None

    def left(self, accepted: int) -> Floats:
        """Return the weights of the recovered token after fewer than all drafts.

        They need not sum to 1.
        """
        ids, shares = self.offers[accepted].shares()
        weights: Floats = self.kept[accepted] * self.distributions[accepted]
        weights[ids] -= shares
        return np.maximum(weights, 0.0, out=weights)


def _height(kept: float, left: float) -> float:
    return 1.0 if kept == 1.0 else left / (left + 1.0 - kept)


def sample(weights: Floats, coin: float) -> int:
    """Return the token that a uniform number chooses by weights, which are not all 0."""
    tokens = np.flatnonzero(weights)
    reached = np.cumsum(weights[tokens])
    drawn = coin * float(reached[-1])
    found = int(np.searchsorted(reached, drawn, side="right"))
    return int(tokens[min(found, len(tokens) - 1)])
