"""A round: one verification step of a session, and what it committed."""

from collections.abc import Iterable
from dataclasses import dataclass

from specmesh.core.sampling.logprobs import Logprob


@dataclass(frozen=True, slots=True)
class SourceDrafts:
    """Consecutive drafts of a step that one source proposed."""

    source: str
    drafted: int
    tested: int = 0
    accepted: int = 0
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one step did for one session.

    base: ids that were committed before it.
    ids: committed by it; the first `accepted` of them were drafts. An end id is the last one.
    shown: how many of the ids a client is shown.
    drafts: verified by it. tested: how many of them were compared.
    by_source: the drafts by their source, in order.
    generated: ids that count as generated: all but an end id.
    over: an end id, a stop string or the grammar ends the text with these ids.
    at: when the step ended. sessions: how many had rows in it.
    """

    base: int
    ids: tuple[int, ...]
    accepted: int
    shown: int
    drafts: tuple[int, ...] = ()
    tested: int = 0
    by_source: tuple[SourceDrafts, ...] = ()
    logprobs: tuple[Logprob | None, ...] = ()
    generated: int = 0
    over: bool = False
    at: float = 0.0
    sessions: int = 1

    @property
    def text_ids(self) -> tuple[int, ...]:
        """Return the ids that a client is shown."""
        return self.ids[: self.shown]

    @property
    def exact_drafts(self) -> int:
        """Return how many drafts came from sources whose drafts are accepted for certain."""
        return sum(one.drafted for one in self.by_source if one.exact)


def split_by_source(
    segments: Iterable[SourceDrafts], drafted: int, tested: int, accepted: int
) -> tuple[SourceDrafts, ...]:
    """Return the segments of the first `drafted` drafts with their shares of both counts."""
    shares: list[SourceDrafts] = []
    begin = 0
    for segment in segments:
        size = min(segment.drafted, drafted - begin)
        if size <= 0:
            break
        share = SourceDrafts(
            segment.source,
            size,
            tested=_within(tested, begin, size),
            accepted=_within(accepted, begin, size),
            exact=segment.exact,
        )
        shares.append(share)
        begin += size
    return tuple(shares)


def _within(count: int, begin: int, size: int) -> int:
    """Return how many of the first `count` drafts lie in a segment."""
    return min(max(count - begin, 0), size)
