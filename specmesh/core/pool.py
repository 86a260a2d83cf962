"""Which drafter a session gets."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

D = TypeVar("D", bound=Hashable)


def pick_drafter(loads: Mapping[D, int]) -> D | None:
    """The attached drafter with the fewest sessions, the longest attached where several have; None without any."""
    return min(loads, key=lambda drafter: loads[drafter], default=None)
