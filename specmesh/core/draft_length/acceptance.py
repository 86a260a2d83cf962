"""Acceptance rates: the probability that draft i is accepted if all drafts before it were.

A round that accepts all of its k drafts only proves "at least k": the observation is censored. So
rates are kept per position, over the rounds that reached it.
"""

from specmesh.core.draft_length import MAX_DRAFTS

POSITIONS = MAX_DRAFTS + 1  # a policy looks one beyond the last draft
PRIOR = 0.6  # rate expected before anything is known
PRIOR_ROUNDS = 6.0  # rounds that the prior counts for


class RollingAcceptance:
    """Exponentially forgotten counts per position.

    A rare position is pulled towards the pooled rate of all positions.

    memory: rounds after which a round counts half.
    parent: records everything that is recorded here, as a drafter's acceptance does for its
        sessions. Its pooled rate is the prior.
    """

    def __init__(self, memory: float = 64.0, parent: "RollingAcceptance | None" = None) -> None:
        self._tested = [0.0] * POSITIONS
        self._accepted = [0.0] * POSITIONS
        self._keep = 0.5 ** (1.0 / memory)
        self._parent = parent

    def record(self, tested: int, accepted: int) -> None:
        """Count a round that compared `tested` drafts and accepted the first `accepted`."""
        if tested == 0:
            return
        if self._parent is not None:
            self._parent.record(tested, accepted)
        for position in range(min(tested, POSITIONS)):
            self._tested[position] = self._tested[position] * self._keep + 1
            self._accepted[position] *= self._keep
            if position < accepted:
                self._accepted[position] += 1

    @property
    def known(self) -> bool:
        """Return True once a round was recorded."""
        return any(self._tested)

    def pooled(self) -> float:
        """Return the rate over all positions."""
        prior = PRIOR
        if self._parent is not None:
            prior = self._parent.pooled()
        accepted = sum(self._accepted) + prior * PRIOR_ROUNDS
        return accepted / (sum(self._tested) + PRIOR_ROUNDS)

    def rates(self, most: int = POSITIONS) -> list[float]:
        """Return the conditional rates of the first `most` positions."""
        prior = self.pooled() * PRIOR_ROUNDS
        counts = zip(self._accepted[:most], self._tested, strict=False)
        return [(accepted + prior) / (tested + PRIOR_ROUNDS) for accepted, tested in counts]
