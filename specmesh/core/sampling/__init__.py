"""Sampling; here its strategies, which commands name without loading numpy."""

from enum import StrEnum

THRESHOLD = 0.3  # the least probability of a draft that stands by `threshold`, where nobody chose another


class Strategy(StrEnum):
    """Its names, as clients and the wire have them. core.sampling.acceptance_strategies has what they do."""

    DETERMINISTIC = "deterministic"
    """A draft stands where it is what the target itself chooses: the text does not depend on any drafter."""
    PROBABILISTIC = "probabilistic"
    """Drafts stand as often as they can with each text as likely as without them: exact in law."""
    THRESHOLD = "threshold"
    """A draft stands where the target finds it likely enough: the text depends on the drafter."""
    GREEDY = "greedy"
    """Nothing is drafted."""


def is_exact(strategy: str) -> bool:
    """Whether each text is as likely by the strategy of this name as from the target alone."""
    return strategy != Strategy.THRESHOLD
