"""Rolling acceptance, per conditional position: how likely draft i stands, given that all before it stood.

Full acceptance of k drafts only proves "at least k" (it is censored), so rates are kept per position reached, never as
accepted/drafted of whole rounds.
"""

from collections.abc import Sequence

import numpy as np


class RollingAcceptance:
    """Exponentially forgotten counts per position, pulled towards their pooled rate where a position is rare.

    `prior` is what nothing is known about yet counts as; `memory` is how many rounds weigh as much as all older ones.
    """

    def __init__(self, positions: int = 16, prior: float = 0.6, weight: float = 4.0, memory: float = 64.0) -> None:
        self._tested = np.zeros(positions)
        self._stood = np.zeros(positions)
        self._prior = prior
        self._weight = weight
        self._keep = 0.5 ** (1.0 / memory)

    def record(self, tested: int, accepted: int) -> None:
        """Learn from a round that compared `tested` drafts and accepted `accepted` of them."""
        if tested == 0:
            return
        self._tested *= self._keep
        self._stood *= self._keep
        self._tested[:tested] += 1
        self._stood[:accepted] += 1

    def pooled(self) -> float:
        """The rate over all positions."""
        return float((self._stood.sum() + self._prior * self._weight) / (self._tested.sum() + self._weight))

    def rates(self) -> list[float]:
        """Conditional rate per position, position 0 first."""
        pooled = self.pooled()
        rates: list[float] = ((self._stood + pooled * self._weight) / (self._tested + self._weight)).tolist()
        return rates


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """expected_tokens(rates)[k]: tokens a step with k drafts commits, 1 + r1 + r1 r2 + ... (Leviathan, eq. 1)."""
    tokens, alive = [1.0], 1.0
    for rate in rates:
        alive *= rate
        tokens.append(tokens[-1] + alive)
    return tokens
