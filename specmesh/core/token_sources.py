"""The sources of a text's tokens: which of them were drafts, and whose.

Of a round with the accepted drafts d e and the target's own token f the sources are remote, remote,
target. A drafted token is the target's choice as well: the source says who was first, not who has
decided. Runs such as (("remote", 2), ("target", 1)) are how a stream has them.
"""

from collections.abc import Iterable, Sequence

from specmesh.core.requests import SourceRun
from specmesh.core.rounds import SourceDrafts

TARGET = "target"
"""The source of a token that no draft proposed, or of which nothing is known."""


def runs_of(names: Iterable[str]) -> tuple[SourceRun, ...]:
    """Return the sources of consecutive tokens as runs, the shortest way to write them."""
    runs: list[SourceRun] = []
    for name in names:
        count = 1
        if runs and runs[-1][0] == name:
            count += runs.pop()[1]
        runs.append((name, count))
    return tuple(runs)


def names_of(runs: Iterable[SourceRun], count: int) -> list[str]:
    """Return the source of each of `count` tokens; those without a run are the target's."""
    names: list[str] = []
    for name, length in runs:
        names += [name] * length
    # A verifier that knows no sources sends none, and a lost frame may have had them.
    names += [TARGET] * (count - len(names))
    return names[:count]


class SourceRecorder:
    """The sources of a text's ids, by absolute position from `begin` on."""

    __slots__ = ("_recorded", "begin")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self._recorded: list[str] = []

    def take(self, by_source: Sequence[SourceDrafts], count: int) -> None:
        """Record the next `count` ids, of which the first are the accepted drafts."""
        accepted = [(drafts.source, drafts.accepted) for drafts in by_source]
        self._recorded += names_of(accepted, count)

    def between(self, begin: int, end: int) -> list[str]:
        """Return those of the positions [begin, end), the target before the first recorded one."""
        missing = min(max(self.begin - begin, 0), end - begin)
        first = begin + missing - self.begin
        return [TARGET] * missing + self._recorded[first : end - self.begin]
