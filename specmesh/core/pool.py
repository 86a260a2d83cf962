"""Which drafter a session gets."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

D = TypeVar("D", bound=Hashable)


def pick_drafter(attached: Iterable[D], drafting: Iterable[D | None]) -> D | None:
    """Of the attached drafters the one with the fewest sessions, the longest attached where several have; None without
    any. `drafting` names the drafter of each live session."""
    loads = Counter(drafting)
    return min(attached, key=lambda drafter: loads[drafter], default=None)
