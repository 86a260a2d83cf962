"""The choice among a session's sources of drafts: whose drafts the next step verifies, how many.

A step's chain has three parts:

1. Exact drafts, which are accepted for certain.
2. Those of the source that leads.
3. Those of the other sources, as far as they continue the chain.

The source whose chain promises the most tokens per second leads, by the acceptance of its drafts
and the cost of their rows. A drafter daemon leads too if its policy promises more than any chain in
hand: then it may pay to wait for its drafts.

A source in hand is one that guesses in this process: its drafts never have to be waited for.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.verifier.sources.base import DraftSource
from specmesh.core.verifier.sources.local import LocalSource
from specmesh.core.verifier.sources.remote import RemoteSource

LEADING_ROUNDS = 2
"""Rounds in a row. If a source in hand leads them and all its drafts are accepted, the drafter is
asked for none. One round may be luck: the drafter would be asked again, a round trip later.
"""


class Chain(NamedTuple):
    """The drafts of a step, and the sources that they come from."""

    drafts: tuple[int, ...] = ()
    parts: tuple[SourceDrafts, ...] = ()


class Room(NamedTuple):
    """Most drafts of a step.

    copied: the same for sources that copy known text; never fewer.
    """

    drafts: int
    copied: int

    def left(self, source: DraftSource, taken: int) -> int:
        """Return how many drafts of a source fit behind those that are taken."""
        most = self.copied if source.copies else self.drafts
        return max(most - taken, 0)


class _Offer(NamedTuple):
    """The drafts of a source after the exact ones, and their tokens per second."""

    source: DraftSource
    drafts: Sequence[int]
    rate: float


class _GrowingChain:
    """The chain of the next step while sources add their drafts."""

    def __init__(self, room: Room) -> None:
        self.drafts: list[int] = []
        self.parts: list[SourceDrafts] = []
        self._room = room

    def offered(self, source: DraftSource) -> Sequence[int]:
        """Return the drafts of a source that continue the chain."""
        room = self._room.left(source, len(self.drafts))
        return source.propose(self.drafts, room)

    def add(self, source: DraftSource, drafts: Sequence[int]) -> None:
        """Append the drafts of a source, if it has any."""
        if drafts:
            self.drafts += drafts
            part = SourceDrafts(source=source.name, drafted=len(drafts), exact=source.exact)
            self.parts.append(part)

    def has(self, source: DraftSource) -> bool:
        """Return True if drafts of this source are in the chain."""
        return any(part.source == source.name for part in self.parts)

    def first(self, count: int) -> Chain:
        """Return the first `count` drafts."""
        kept: list[SourceDrafts] = []
        left = count
        for part in self.parts:
            drafted = min(part.drafted, left)
            if drafted > 0:
                kept.append(part._replace(drafted=drafted))
            left -= drafted
        return Chain(tuple(self.drafts[:count]), tuple(kept))


class SourceChoice:
    """The sources of one session.

    remote: the one that takes the frames of drafters.
    """

    def __init__(self, sources: Sequence[DraftSource], draft_length: DraftLengthController) -> None:
        self._sources = sources
        self._draft_length = draft_length
        self.remote = next(source for source in sources if isinstance(source, RemoteSource))
        self._local = next((one for one in sources if isinstance(one, LocalSource)), None)
        self._only_remote = len(sources) == 1
        self._exact = [source for source in sources if source.exact]
        self._in_hand: list[DraftSource] = []
        """Sources that guess in this process."""
        for source in sources:
            if not source.exact and source is not self.remote:
                self._in_hand.append(source)
        self._led_rounds = 0  # in a row that a source in hand led, see LEADING_ROUNDS
        self._promised = 0.0  # tokens per second of the newest best offer

    @property
    def idle(self) -> bool:
        """Return True if no source can have drafts."""
        return self._only_remote and self.remote.idle

    def next_chain(self, room: Room, now: float) -> Chain | ev.Wait:
        """Return the drafts of the next step, or until when to wait for them."""
        until: float | None = None
        if not self.remote.idle:
            until = self.remote.due(room.drafts, now)
        chain = self._exact_chain(room)
        best = self._best_offer(chain)
        drafter_leads = self._drafter_leads(best, room)
        if drafter_leads and until is not None and not chain.drafts:
            return ev.Wait(until)
        return self._completed(chain, best, drafter_leads=drafter_leads)

    def chain_in_hand(self, room: Room) -> Chain:
        """Return the drafts of a step that begins at once."""
        self.remote.take_all()
        chain = self._exact_chain(room)
        best = self._best_offer(chain)
        return self._completed(chain, best, drafter_leads=self._drafter_leads(best, room))

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

        While another source does better than the drafter could, the drafter is asked for nothing.
        """
        for source in self._sources:
            source.committed(done)
        if self._only_remote:
            return
        if self._other_led(done) and self._promised >= self._draft_length.remote_rate:
            self._led_rounds += 1
        else:
            self._led_rounds = 0
        self._draft_length.relieve(relieved=self._led_rounds >= LEADING_ROUNDS)

    def _other_led(self, done: Round) -> bool:
        """Return True if a source in hand led a round, and all its drafts were accepted."""
        for part in done.by_source:
            if not part.exact:
                return part.source != self.remote.name and part.accepted == part.drafted
        return False

    def has_others(self, source: DraftSource) -> bool:
        """Return True if a source that guesses has drafts in hand, other than this one."""
        if self.remote.tokens:
            return True
        for other in self._in_hand:
            if other is source or self._draft_length.withholds(other.name):
                continue
            if other.propose((), 1):
                return True
        return False

    def exact_drafts(self, limit: int) -> list[int]:
        """Return the drafts that are accepted for certain, at most `limit`."""
        return self._exact_chain(Room(limit, limit)).drafts

    # --- how a chain grows

    def _exact_chain(self, room: Room) -> _GrowingChain:
        """Return a chain of the exact drafts."""
        chain = _GrowingChain(room)
        for source in self._exact:
            chain.add(source, chain.offered(source))
        return chain

    def _best_offer(self, chain: _GrowingChain) -> _Offer | None:
        """Return the drafts in hand that promise most after the exact ones; None without any.

        Note what they promise: `committed` compares it with the drafter's rate.
        """
        best: _Offer | None = None
        for source in self._in_hand:
            if self._draft_length.withholds(source.name):
                continue
            drafts = chain.offered(source)
            if not drafts:
                continue
            acceptance = (1.0,) * len(chain.drafts) + tuple(source.acceptance(len(drafts)))
            _, rate = self._draft_length.best_drafts(acceptance)
            if best is None or rate > best.rate:
                best = _Offer(source, drafts, rate)
        self._promised = 0.0 if best is None else best.rate
        return best

    def _drafter_leads(self, best: _Offer | None, room: Room) -> bool:
        """Return True if the drafter promises more than the best offer."""
        if best is None:
            return True
        local = self._local
        if local is not None and best.source is local and local.beside and not self.remote.tokens:
            return False  # they were weighed when they were made
        lead = len(self.remote.tokens)
        return self._draft_length.remote_promise(lead, room.drafts) > best.rate

    def _completed(
        self, chain: _GrowingChain, best: _Offer | None, *, drafter_leads: bool
    ) -> Chain:
        """Return a chain with the drafts of all sources that guess, as far as they pay."""
        exact = len(chain.drafts)
        least = exact  # drafts that the step has in any case
        if best is not None and not drafter_leads:
            chain.add(best.source, best.drafts)
        chain.add(self.remote, chain.offered(self.remote))
        if drafter_leads and chain.has(self.remote):
            least = len(chain.drafts)  # the policy has chosen so many
        elif drafter_leads and best is not None:
            chain.add(best.source, best.drafts)  # the step begins, and nothing else is here
        if len(chain.drafts) > exact:
            self._add_others(chain)
        count = len(chain.drafts)
        if count > least:
            count, _ = self._draft_length.best_drafts(self.acceptance(chain.parts), least)
        return chain.first(count)

    def _add_others(self, chain: _GrowingChain) -> None:
        """Let the sources in hand that have no drafts in a chain continue it."""
        for source in self._in_hand:
            if not chain.has(source) and not self._draft_length.withholds(source.name):
                chain.add(source, chain.offered(source))
