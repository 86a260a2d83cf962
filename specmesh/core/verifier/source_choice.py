"""The choice among a session's sources of drafts: whose drafts the next step verifies, how many.

A step's chain has three parts:

1. Exact drafts, which are accepted for certain.
2. Those of the source that leads.
3. Those of the other sources, as far as they continue the chain.

The source leads whose chain promises the most tokens per second, by the acceptance of its drafts
and the cost of their rows. A chain in hand is compared with the policy of the remote drafter too:
it may promise more to wait for that one's drafts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.verifier.sources.base import DraftSource
from specmesh.core.verifier.sources.remote import RemoteSource

LEADING_ROUNDS = 2
"""Rounds in a row in which all drafts of a source were accepted, after which a drafter is asked for
none. One round may be luck: then the drafter would be asked again, a round trip later.
"""


class Chain(NamedTuple):
    """The drafts of a step, and the sources that they come from."""

    drafts: tuple[int, ...] = ()
    parts: tuple[SourceDrafts, ...] = ()


class Room(NamedTuple):
    """Most drafts of a step.

    copied: the same if they repeat known text; at least as many.
    """

    drafts: int
    copied: int

    def left(self, source: DraftSource, taken: int) -> int:
        """Return how many drafts of a source fit behind those that are taken."""
        most = self.copied if source.copies else self.drafts
        return max(most - taken, 0)


class _Leader(NamedTuple):
    """The source in hand that promises most, and its drafts after the exact ones."""

    source: DraftSource
    drafts: Sequence[int]


class SourceChoice:
    """The sources of one session.

    remote: the one that takes the frames of drafters.
    """

    def __init__(self, sources: Sequence[DraftSource], draft_length: DraftLengthController) -> None:
        self._sources = sources
        self._draft_length = draft_length
        self.remote = next(source for source in sources if isinstance(source, RemoteSource))
        self._only_remote = len(sources) == 1
        self._exact = [source for source in sources if source.exact]
        self._in_hand: list[DraftSource] = []
        """Sources that guess and have their drafts here, if they have any."""
        for source in sources:
            if not source.exact and source is not self.remote:
                self._in_hand.append(source)
        self._led_rounds = 0  # in a row whose drafts were accepted, and promised most
        self._promised = 0.0  # tokens per second of the newest chain that no drafter led

    @property
    def idle(self) -> bool:
        """Return True if no source can have drafts."""
        return self._only_remote and self.remote.idle

    def next_chain(self, room: Room, now: float) -> Chain | ev.Wait:
        """Return the drafts of the next step, or until when to wait for them."""
        until: float | None = None
        if not self.remote.idle:
            until = self.remote.due(room.drafts, now)
        if self._only_remote:
            return self._chain(None, room, now) if until is None else ev.Wait(until)
        exact = self.exact_drafts(room.drafts, now)
        leader = self._leader(exact, room, now)
        if leader is None and until is not None and not exact:
            return ev.Wait(until)
        return self._chain(leader, room, now)

    def chain_in_hand(self, room: Room, now: float) -> Chain:
        """Return the drafts of a step that begins at once."""
        self.remote.take_all()
        if self._only_remote:
            return self._chain(None, room, now)
        leader = self._leader(self.exact_drafts(room.drafts, now), room, now)
        return self._chain(leader, room, now)

    def acceptance(self, parts: Sequence[SourceDrafts]) -> list[float]:
        """Return the probabilities that the first 1, 2, ... drafts are all accepted."""
        found: list[float] = []
        certain = 1.0
        for part in parts:
            source = next(source for source in self._sources if source.name == part.source)
            # A part is of use only if all drafts before it are accepted.
            for probability in source.acceptance(part.drafted):
                found.append(certain * probability)
            certain = found[-1]
        return found

    def committed(self, done: Round) -> None:
        """Let all sources learn from a round.

        While one that needs no drafter does better than the drafter could, nothing is asked of it.
        """
        for source in self._sources:
            source.committed(done)
        if self._only_remote:
            return
        leads = False
        for part in done.by_source:
            if not part.exact:
                leads = part.source != self.remote.name and part.accepted == part.drafted
                break
        if leads and self._promised >= self._draft_length.remote_rate:
            self._led_rounds += 1
        else:
            self._led_rounds = 0
        self._draft_length.relieve(relieved=self._led_rounds >= LEADING_ROUNDS)

    def has_others(self, source: DraftSource, now: float) -> bool:
        """Return True if a source that guesses has drafts in hand, other than this one."""
        if self.remote.tokens:
            return True
        for other in self._in_hand:
            if other is source or self._draft_length.withholds(other.name):
                continue
            if other.propose((), 1, now):
                return True
        return False

    # --- which source leads

    def exact_drafts(self, limit: int, now: float) -> list[int]:
        """Return the drafts that are accepted for certain."""
        drafts: list[int] = []
        for source in self._exact:
            drafts += source.propose(drafts, limit - len(drafts), now)
        return drafts

    def _leader(self, exact: Sequence[int], room: Room, now: float) -> _Leader | None:
        """Return the source in hand that promises most; None if the drafter promises more."""
        leader: _Leader | None = None
        highest = 0.0
        for source in self._in_hand:
            if self._draft_length.withholds(source.name):
                continue
            drafts = source.propose(exact, room.left(source, len(exact)), now)
            if not drafts:
                continue
            chances = (1.0,) * len(exact) + tuple(source.acceptance(len(drafts)))
            _, rate = self._draft_length.best_drafts(chances)
            if rate > highest:
                leader = _Leader(source, drafts)
                highest = rate
        if leader is None:
            return None
        self._promised = highest
        if self._draft_length.remote_promise(len(self.remote.tokens), room.drafts) > highest:
            return None
        return leader

    def _chain(self, leader: _Leader | None, room: Room, now: float) -> Chain:
        """Return the chain in which `leader` comes first of all sources that guess."""
        drafts: list[int] = []
        parts: list[SourceDrafts] = []

        def ask(source: DraftSource) -> None:
            add(source, source.propose(drafts, room.left(source, len(drafts)), now))

        def add(source: DraftSource, more: Sequence[int]) -> None:
            if more:
                drafts.extend(more)
                part = SourceDrafts(source=source.name, drafted=len(more), exact=source.exact)
                parts.append(part)

        for source in self._exact:
            ask(source)
        sure = len(drafts)
        if leader is not None:
            add(leader.source, leader.drafts)
        ask(self.remote)
        if leader is None:
            sure = len(drafts)  # the policy has chosen so many
        for source in self._in_hand:
            is_leader = leader is not None and source is leader.source
            if not is_leader and not self._draft_length.withholds(source.name):
                ask(source)
        if len(drafts) == sure:
            return Chain(tuple(drafts), tuple(parts))
        count, _ = self._draft_length.best_drafts(self.acceptance(parts), sure)
        return Chain(tuple(drafts[:count]), _first_parts(parts, count))


def _first_parts(parts: Sequence[SourceDrafts], count: int) -> tuple[SourceDrafts, ...]:
    """Return the parts of the first `count` drafts."""
    kept: list[SourceDrafts] = []
    for part in parts:
        drafted = min(part.drafted, count)
        if drafted > 0:
            kept.append(part._replace(drafted=drafted))
        count -= drafted
    return tuple(kept)
