"""Rolling acceptance, per conditional position: how likely draft i stands, given that all before it stood.

Full acceptance of k drafts only proves "at least k" (it is censored), so rates are kept per position reached, never as
accepted/drafted of whole rounds.
"""

from collections.abc import Sequence


class RollingAcceptance:
    """Exponentially forgotten counts per position, pulled towards their pooled rate where a position is rare.

    prior: what nothing is known about yet counts as, or a `parent`, which also hears what is recorded here, as sessions
    have in their verifier. weight: rounds the prior counts for. memory: rounds after which one counts half.
    """

    def __init__(
        self,
        positions: int = 16,
        prior: float = 0.6,
        weight: float = 6.0,
        memory: float = 64.0,
        parent: "RollingAcceptance | None" = None,
    ) -> None:
        self._tested = [0.0] * positions
        self._stood = [0.0] * positions
        self._prior = prior
        self._weight = weight
        self._keep = 0.5 ** (1.0 / memory)
        self._parent = parent
        self._rates: list[float] | None = None

    def record(self, tested: int, accepted: int) -> None:
        """Learn from a round that compared `tested` drafts and accepted `accepted` of them."""
        if tested == 0:
            return
        if self._parent is not None:
            self._parent.record(tested, accepted)
        self._tested = [n * self._keep + (i < tested) for i, n in enumerate(self._tested)]
        self._stood = [n * self._keep + (i < accepted) for i, n in enumerate(self._stood)]
        self._rates = None

    @property
    def known(self) -> bool:
        """Whether anything was recorded here."""
        return any(self._tested)

    def pooled(self) -> float:
        """The rate over all positions."""
        prior = self._prior if self._parent is None else self._parent.pooled()
        return (sum(self._stood) + prior * self._weight) / (sum(self._tested) + self._weight)

    def rates(self) -> list[float]:
        """Conditional rate per position, position 0 first."""
        if self._rates is None:
            pulled, weight = self.pooled() * self._weight, self._weight
            self._rates = [(s + pulled) / (n + weight) for s, n in zip(self._stood, self._tested, strict=True)]
        return self._rates


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """expected_tokens(rates)[k]: tokens a step with k drafts commits, 1 + r1 + r1 r2 + ... (Leviathan, eq. 1)."""
    tokens, alive = [1.0], 1.0
    for rate in rates:
        alive *= rate
        tokens.append(tokens[-1] + alive)
    return tokens
