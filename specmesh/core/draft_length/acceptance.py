"""Rolling acceptance, per conditional position: how likely draft i stands, given that all before it stood.

Full acceptance of k drafts only proves "at least k" (it is censored), so rates are kept per position reached, never as
accepted/drafted of whole rounds.
"""

POSITIONS = 16
"""Positions with a rate of their own."""

PRIOR_ROUNDS = 6.0
"""Rounds that the prior counts for."""


class RollingAcceptance:
    """Exponentially forgotten counts per position, pulled towards their pooled rate where a position is rare.

    prior: what nothing is known about yet counts as, or a `parent`, which also hears what is recorded here, as sessions
    have in their verifier. memory: rounds after which one counts half.
    """

    def __init__(self, prior: float = 0.6, memory: float = 64.0, parent: "RollingAcceptance | None" = None) -> None:
        self._tested = [0.0] * POSITIONS
        self._stood = [0.0] * POSITIONS
        self._prior = prior
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
        return (sum(self._stood) + prior * PRIOR_ROUNDS) / (sum(self._tested) + PRIOR_ROUNDS)

    def rates(self) -> list[float]:
        """Conditional rate per position, position 0 first."""
        if self._rates is None:
            pulled = self.pooled() * PRIOR_ROUNDS
            self._rates = [(s + pulled) / (n + PRIOR_ROUNDS) for s, n in zip(self._stood, self._tested, strict=True)]
        return self._rates
