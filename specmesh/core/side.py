"""A second chain of drafts beside the first, verified in the same step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Side:
    """It shares the first chain's first `fork` drafts; `ids`, at least one, follow there instead of the first chain's
    next, which they do not begin with."""

    fork: int
    ids: tuple[int, ...]
