"""Sampling; here its strategies, which commands name without loading numpy."""

from enum import StrEnum

THRESHOLD = (
    0.3  # the least probability of a draft accepted by `threshold`, where nobody chose another
)


class Strategy(StrEnum):
    """Its names, as clients and the wire have them. core.accept has what they do."""

    DETERMINISTIC = "deterministic"  # a draft is accepted where the target chooses it: no drafter changes the text
    PROBABILISTIC = "probabilistic"  # drafts are accepted as often as can be with each text as likely as without them
    THRESHOLD = "threshold"  # a draft is accepted where the target finds it likely: the text depends on drafters
    GREEDY = "greedy"  # nothing is drafted


def is_exact(strategy: str) -> bool:
    """Whether each text is as likely by the strategy of this name as from the target alone."""
    return strategy != Strategy.THRESHOLD
