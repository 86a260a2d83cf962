"""The reuse of ids: the sequence that a session begins with, by the ids that others have left."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specmesh.core.kv_contents import ANY_LENGTH, TEXT_BEGIN, KVBegin, KVContents
from specmesh.core.kv_states import SavedStates
from specmesh.core.prefix import common_length

KVReuse = Literal["copied", "cut", "whole"]
"""The part of a sequence that another session may have:

- copied: any beginning, also as a copy in another sequence;
- cut: any beginning, if the rest is cut off;
- whole: nothing less than all of it, or than a checkpoint of it (`core.kv_checkpoints`).
"""
MIN_REUSED_IDS = 16
"""Any two prompts may begin alike, and to compute fewer ids again takes one small step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sequence that a session could have.

    source: the sequence that holds the ids. reused: how many of them. lost: cached ids that go.
    begin: the place in the text of the first of them.
    """

    seq: int
    source: int
    reused: int
    lost: int
    begin: KVBegin = TEXT_BEGIN

    @property
    def cells(self) -> int:
        """Return the cells that the reused ids fill."""
        return self.reused + self.begin.bos if self.reused else 0

    @property
    def gain(self) -> int:
        """Return the ids that are cached more with this choice than without a cache."""
        return self.reused - self.lost


@dataclass(frozen=True, slots=True)
class NewText:
    """The text that a session begins with, without its last id.

    prompt, crc_at: as in `KVSlots.acquire`.
    most: ids of a sequence without a session of which some may be reused.
    """

    ids: Sequence[int]
    prompt: int
    crc_at: Callable[[int], int] | None
    most: int = ANY_LENGTH

    def after(self, begin: KVBegin) -> Sequence[int]:
        """Return the ids from a place on; none if the text is another one before it."""
        if not begin.start:
            return self.ids
        if self.crc_at is None or begin.start >= len(self.ids):
            return ()
        if self.crc_at(begin.start) != begin.crc:
            return ()
        return self.ids[begin.start :]


class ReuseFinder:
    """Finds the sequence of which a session reuses most. It changes nothing.

    - That is the sequence, or the copy, by which most ids are reused, minus the cached ids that are
      lost for it.
    - If nothing is reused it is an empty sequence, else the least recently used one.
    - Fewer than MIN_REUSED_IDS are never reused.
    """

    def __init__(
        self,
        free: Mapping[int, KVContents],
        reuse: KVReuse,
        part: int | None,
        states: SavedStates,
        *,
        copies: bool,
    ) -> None:
        """Begin.

        free: the sequences without a session, the least recently used first.
        reuse, part: as in `KVSlots`. states: of all sequences.
        copies: a sequence may begin as a copy of another one, or of a checkpoint of it.
        """
        self._free = free
        self._reuse = reuse
        self._part = part
        self._states = states
        self._copies = copies

    def best(
        self, text: NewText, others: Iterable[tuple[int, KVContents]], *, cached: bool
    ) -> Candidate:
        """Return the sequence for a session on this text; nothing is changed."""
        victim = self._victim()
        best = Candidate(seq=victim, source=victim, reused=0, lost=len(self._free[victim].ids))
        if cached:
            for candidate in self._candidates(text, others, victim):
                if candidate.gain > best.gain:
                    best = candidate
        return best

    def longest_common(self, text: Sequence[int]) -> int:
        """Return how many ids a text shares with one that a free sequence holds."""
        longest = 0
        for contents in self._free.values():
            if not contents.begin.start:
                longest = max(longest, common_length(contents.ids, text))
        return longest

    def _victim(self) -> int:
        """Return the sequence of a session that reuses nothing: an empty one, if there is one."""
        empty = [seq for seq, contents in self._free.items() if not contents.ids]
        return min(empty) if empty else next(iter(self._free))

    def _candidates(
        self,
        text: NewText,
        others: Iterable[tuple[int, KVContents]],
        victim: int,
    ) -> Iterator[Candidate]:
        """Yield the sequences that a session on this text could begin with."""
        usable: dict[int, int] = {}
        for seq, contents in self._free.items():
            if len(contents.ids) > text.most:
                continue
            count = self._usable(seq, contents, text)
            usable[seq] = count
            if count:
                yield Candidate(
                    seq=seq,
                    source=seq,
                    reused=count,
                    lost=len(contents.ids) - count,
                    begin=contents.begin,
                )
        if not self._copies:
            return
        source = victim
        most = 0
        for seq, contents in others:
            count = self._copyable(seq, self._usable(seq, contents, text))
            if count > most:
                source = seq
                most = count
        # Of equal ones a session's comes first, then the newest: an offloaded one shares no cells.
        for seq, whole in reversed(usable.items()):
            count = self._copyable(seq, whole)
            if count > most and seq != victim:
                source = seq
                most = count
        if most:
            lost = len(self._free[victim].ids)
            yield Candidate(seq=victim, source=source, reused=most, lost=lost)

    def _copyable(self, seq: int, usable: int) -> int:
        """Return how many of the usable ids of a sequence another one can begin with."""
        if self._reuse == "copied":
            return usable
        return self._states.checkpoints.reachable(seq, usable)

    def _usable(self, seq: int, contents: KVContents, text: NewText) -> int:
        """Return how many ids of a sequence a session can begin with, if that pays."""
        count = common_length(contents.ids, text.after(contents.begin))
        if contents.begin.start and 2 * count < len(contents.ids):
            return 0  # the window would be short
        prompt = text.prompt
        same_parts = contents.prompt == prompt <= count
        if self._part is not None and not same_parts:
            # Only whole parts of a prompt are read in the same way.
            count = min(count, contents.prompt, prompt)
            count -= count % self._part
        if self._reuse == "whole" and count < len(contents.ids):
            if contents.begin.start:
                return 0
            count = self._states.checkpoints.reachable(seq, count)
        if count < len(contents.ids) and not self._states.windows.reaches(seq, count):
            count = self._states.checkpoints.reachable(seq, count)
        return count if count >= MIN_REUSED_IDS else 0
