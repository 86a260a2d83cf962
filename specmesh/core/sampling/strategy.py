"""The strategies by which drafts are accepted. Commands name them without loading numpy."""

from enum import StrEnum

THRESHOLD = 0.3  # least probability of a draft that `threshold` accepts, unless a client sets it


class Strategy(StrEnum):
    """Names of the strategies on the wire and in the API. verifier/accept.py carries them out."""

    DETERMINISTIC = "deterministic"
    """A draft is accepted if the target chooses it, so drafters do not change the text."""

    PROBABILISTIC = "probabilistic"
    """As many drafts are accepted as leave each text as likely as without them."""

    THRESHOLD = "threshold"
    """A draft is accepted if the target finds it likely, so the text depends on drafters."""

    GREEDY = "greedy"
    """Nothing is drafted."""


def is_exact(strategy: str) -> bool:
    """Return True if a strategy leaves each text as likely as from the target by itself."""
    return strategy != Strategy.THRESHOLD
