"""Block verification: how many drafts of a chain are accepted, where each was sampled from a known proposal.

Sun et al., "Block Verification Accelerates Speculative Decoding" (2403.10444), algorithm 2. Of drafts X1 .. Xk, Xi
sampled from q_i after those before it, with p_i the target's distribution there:

    kept_0 = 1
    kept_i = min(1, kept_(i-1) p_i(X_i) / q_i(X_i))
    left_i = sum over x of max(0, kept_i p_(i+1)(x) - q_(i+1)(x))
    height_i = left_i / (left_i + 1 - kept_i), but height_k = kept_k
    t = the last i whose coin, uniform in (0, 1), is at most height_i; 0 without one

The first t drafts are accepted. Where t < k, a recovered token follows, sampled from max(0, kept_t p_(t+1) - q_(t+1)).
Where t = k nothing does: whoever wants one more token samples it from p_(k+1), as the paper has it, or verifies another
block.

**Exact.** What stands, and the recovered token, is the beginning of a sample from the target's distribution, if each
draft was sampled from what is said here and no coin was known to whom chose it (theorem 1 of the paper). On the average
more stands than by any other rule for one chain, also than by accepting each draft with min(1, p/q).

**A recovered token is never the draft that it replaces.** It can be x only where kept_t p(x) > q(x). Were that so for
the draft, kept_(t+1) would be 1, so would height_(t+1), and it would have stood. The same holds in floating point: a
rounded quotient is below 1 only where its numerator is below its denominator. So the drafts behind one that fails,
which the coins have looked at, never come to be beyond the text again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specmesh.core.sampling.proposal import SampledDraft
from specmesh.core.sampling.sampler import Floats


@dataclass(frozen=True, slots=True)
class Block:
    """Drafts under verification; kept and heights are those of the module's text."""

    # the target's before each offer, float64 (n_vocab,), the drafts before it taken in
    distributions: Sequence[Floats]
    offers: Sequence[SampledDraft]
    kept: tuple[float, ...]
    heights: tuple[float, ...]  # [i] is height_(i+1)

    @classmethod
    def of(cls, distributions: Sequence[Floats], offers: Sequence[SampledDraft]) -> "Block":
        kept = [1.0]
        left: list[float] = []
        for target, offer in zip(distributions, offers, strict=True):
            ids, shares = offer.shares()
            left.append(
                max(kept[-1] - float(np.minimum(kept[-1] * target[ids], shares).sum()), 0.0)
            )
            proposed = float(shares[ids == offer.token].sum())
            kept.append(min(kept[-1] * float(target[offer.token]) / proposed, 1.0))
        later = zip(kept[1:-1], left[1:], strict=True)
        heights = [1.0 if share == 1.0 else over / (over + 1.0 - share) for share, over in later]
        return cls(distributions, offers, tuple(kept), (*heights, kept[-1]))

    def outcome(self, coins: Floats) -> tuple[int, Floats | None]:
        """How many drafts these coins accept, one for each, and weights of the recovered token; None where all do."""
        passed = np.flatnonzero(coins <= self.heights)
        stood = int(passed[-1]) + 1 if len(passed) else 0
        while stood < len(self.offers):
            weights = self.left(stood)
            if weights.any():
                return stood, weights
            stood += 1  # target and proposal differ by rounding only: what is left is the draft
        return stood, None

    def left(self, stood: int) -> Floats:
        """Weights of what a recovered token after `stood` drafts is sampled from, fewer than all tokens; they need not
        sum to 1."""
        ids, shares = self.offers[stood].shares()
        weights: Floats = self.kept[stood] * self.distributions[stood]
        weights[ids] -= shares
        return np.maximum(weights, 0.0, out=weights)


def sample(weights: Floats, coin: float) -> int:
    """The token that a uniform number chooses by these weights, not all of them 0."""
    tokens = np.flatnonzero(weights)
    reached = np.cumsum(weights[tokens])
    found = int(np.searchsorted(reached, coin * float(reached[-1]), side="right"))
    return int(tokens[min(found, len(tokens) - 1)])
