"""The drafter that drafts beside a session's own: what it is worth.

Its drafts hang into the same tree (specmesh.core.tree). Where the first drafter is wrong and it is right, the next
drafts are here already, and nobody waits for a restart; and a step may verify the two chains side by side. Both depend
on one number, its **rescues**: how often it is right where the first is wrong. Alike drafters are wrong together.
"""

from collections.abc import Sequence

from specmesh.core.acceptance import RollingAcceptance

MEMORY = 64.0
"""Rejections after which what was seen counts half."""


def rescues(parent: RollingAcceptance | None = None) -> RollingAcceptance:
    """A record of them: of one, whether it was. Before any was seen a second drafter is good for nothing."""
    return RollingAcceptance(positions=1, prior=0.0, memory=MEMORY, parent=parent)


class Second:
    """What a session sees of its second drafter; `guesses` and `rescued` are what it has seen of it before."""

    def __init__(self, guesses: RollingAcceptance, rescued: RollingAcceptance) -> None:
        self._guesses, self._rescues = guesses, rescues(rescued)

    @property
    def rescue(self) -> float:
        """How often its drafts go on where those of the first were rejected: by its own, once there were some, and
        before that by what it has shown."""
        return self._rescues.pooled()

    def judged(self, right: Sequence[bool], rejected: int | None) -> None:
        """Ids were committed: whether it was right about each, up to its first wrong one or its last; and which of them
        was a correction of the first drafter, if one was."""
        for one in right:
            self._guesses.record(1, int(one))
        if rejected is not None:
            self._rescues.record(1, int(rejected < len(right) and right[rejected]))

    def stands(self, first: Sequence[float], fork: int, ids: int) -> tuple[float, ...]:
        """The probability that a step commits the first 1, 2, ... of so many ids of its chain, which leaves the first
        drafter's after `fork` drafts. `first`: that the first 1, 2, ... drafts of that one stand.

        As the two disagree there, one at least is wrong. Of all places the second alone is right at (1 - a) r, with a
        the first's rate and r its rescues, and they disagree at (1 - a) r + 1 - b at most, with b its own rate.
        """
        reach = first[fork - 1] if fork else 1.0
        rate, own = first[fork] / max(reach, 1e-9), self._guesses.pooled()
        alone = (1 - rate) * self.rescue
        stand = min(reach * alone / max(alone + 1 - own, 1e-9), first[fork])  # never before the draft it replaces
        return tuple(stand * own**index for index in range(ids))
