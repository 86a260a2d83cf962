"""Sampling; here its strategies, which commands name without loading numpy."""

from enum import StrEnum

THRESHOLD = 0.3  # the least probability of a draft accepted by `threshold`, where nobody chose another


class Strategy(StrEnum):
    """Its names, as clients and the wire have them. core.accept has what they do."""

    DETERMINISTIC = "deterministic"  # a draft stands where the target itself chooses it: no drafter changes the text
    PROBABILISTIC = "probabilistic"  # drafts stand as often as they can with each text as likely as without them
    THRESHOLD = "threshold"  # a draft stands where the target finds it likely enough: the text depends on the drafter
    GREEDY = "greedy"  # nothing is drafted


def is_exact(strategy: str) -> bool:
    """Whether each text is as likely by the strategy of this name as from the target alone."""
    return strategy != Strategy.THRESHOLD
