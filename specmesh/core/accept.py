"""The accept rule: which drafts stand, and what is said where they end."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specmesh.errors import RequestError


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The outcome of one round."""

    committed: tuple[int, ...]  # the accepted drafts, then the recovered or bonus token
    accepted: int  # how many of them were drafts; all of them where the row after them gave no choice
    tested: int  # drafts that were compared; the last of them failed where accepted < tested
    ended: bool  # the last committed id ends the text, and is none of it
    stopped: bool = False  # the last committed id completes a stop string


def accept(
    drafts: Sequence[int],
    choose: Callable[[int], int],
    *,
    end_ids: Collection[int],
    room: int,
    stops: Callable[[int], bool] | None = None,
) -> Acceptance:
    """Walk the rows of one step in order and accept while the choice equals the draft.

    `choose(i)` gives the token after the committed prefix and the first `i` drafts; it is called for i = 0, 1, ...
    without gaps and only as far as the walk goes, so that sampling state advances on committed tokens only. Where it
    raises RequestError the walk ends with what stands, so that a text is as long with drafts as without; it is raised
    where nothing stands, as in the step after that.

    At most `room` >= 1 ids are committed; `stops(token)` hears of each in order and says whether the text stops with
    it. Where the choice is always the target's own, this is speculative decoding with the deterministic acceptance of
    Leviathan et al. (2211.17192, section 2.3, argmax case), exact for any drafter; core.sampling.acceptance_strategies
    has others."""
    committed: list[int] = []
    for index in range(len(drafts) + 1):
        try:
            token = choose(index)
        except RequestError:
            if not committed:
                raise
            return Acceptance(tuple(committed), index, index, ended=False)
        committed.append(token)
        matches = index < len(drafts) and token == drafts[index]
        ended = token in end_ids
        stopped = stops is not None and not ended and stops(token)
        if not matches or ended or stopped or len(committed) == room:
            tested = min(index + 1, len(drafts))
            return Acceptance(tuple(committed), index + matches, tested, ended, stopped)
    raise AssertionError("the row after the last draft always ends the walk")
