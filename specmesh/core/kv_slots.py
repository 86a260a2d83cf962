"""KV slots: which sequence of an engine a session gets, and the prefix cache that ended sessions leave.

A session that ends leaves its ids in its sequence. One that begins gets the sequence, or a copy of what another one
holds, by which most is gained: the next turn of a chat, or the same system prompt, then costs its new ids only. Ids are
compared, never digests of them alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specmesh.core.prefix import common_length
from specmesh.core.statistics.snapshot import PrefixCacheSection

# what another session may have of a sequence: any beginning, also as a copy in another sequence; any beginning, what
# follows being cut off; or only all of it
KVReuse = Literal["copied", "cut", "whole"]
GUEST_IDS = 512
"""Cells of a short text beside `max_sessions` others, which it has enough of: ids, and rows of a
step."""

MIN_REUSED_IDS = (
    16  # any two prompts may begin alike, and to compute fewer again takes one small step
)


@dataclass(frozen=True, slots=True)
class KVContents:
    """What a sequence holds."""

    ids: Sequence[int]
    prompt: int  # so many were read as a prompt, in its parts; those behind them by steps


NO_CONTENTS = KVContents((), 0)


@dataclass(frozen=True, slots=True)
class KVCut:
    """An engine is to keep the first `length` ids of a sequence."""

    seq: int
    length: int


@dataclass(frozen=True, slots=True)
class KVCopy:
    """An engine is to let an empty sequence begin with the first `length` ids of the sequence `source`."""

    seq: int
    source: int
    length: int


@dataclass(frozen=True, slots=True)
class KVOffload:
    """An engine may keep a sequence where no step pays for it, until it is used."""

    seq: int


KVOrder = KVCut | KVCopy | KVOffload


@dataclass(frozen=True, slots=True)
class _Candidate:
    seq: int  # of the session
    source: int  # of the ids held
    held: int
    lost: int  # cached ids


class KVSlots:
    """The sequences 0 .. max_sessions - 1 of one engine, and the orders it is to carry out before
    its next step.

    room: ids that sequences without a session may hold together; the least recently used are
    emptied first. part: ids of a prompt that are read at once, where the same ids must have the
    same bits: only what a session would
          read in just the same way is reused. None where that does not matter.
    guests: sequences more, for short texts, and n_ctx: ids of any other one at most. All of them
    share
          the cells of `max_sessions` sequences, and GUEST_IDS more for each guest.
    offloads: steps pay for all that sequences hold. Sessions that begin while there are no others
    have what is left
          offloaded before their first step, where they have less than half of it themselves: ids that lie among others'
          are reached through those as long as they stay.
    """

    def __init__(
        self,
        max_sessions: int,
        reuse: KVReuse,
        room: int,
        part: int | None = None,
        *,
        offloads: bool = False,
        guests: int = 0,
        n_ctx: int = 0,
    ) -> None:
        self._max_sessions, self._offloads = max_sessions, offloads
        self._guests, self._n_ctx = guests, n_ctx
        self._begun = list[
            Sequence[int]
        ]()  # ids of sessions that began with no others, since the last orders
        self._reuse, self._room, self._part = reuse, room, part
        self._free = dict.fromkeys(
            range(max_sessions + guests), NO_CONTENTS
        )  # the least recently used first
        self._orders: list[KVOrder] = []
        self._hits = self._saved = 0

    def __bool__(self) -> bool:
        return bool(self._free)

    def snapshot(self) -> PrefixCacheSection:
        kept = [len(memory.ids) for memory in self._free.values() if memory.ids]
        return PrefixCacheSection(self._hits, self._saved, len(kept), sum(kept))

    # --- a session begins

    def acquire(
        self,
        ids: Sequence[int],
        prompt: int,
        live: Iterable[tuple[int, KVContents]] = (),
        *,
        cached: bool = True,
    ) -> tuple[int, int]:
        """Return a sequence for a session that begins with these ids, the first `prompt` of them to be read as a
        prompt, and how many of them it holds by the next step; never the last one, as its logits are needed. A sequence
        must be free. live: what sequences of other sessions hold for certain. cached: reuse what is held."""
        empty = (seq for seq, contents in self._free.items() if not contents.ids)
        victim = min(empty, default=next(iter(self._free)))
        if self._begun or len(self._free) == self._max_sessions + self._guests:
            self._begun.append(ids)
        cold = _Candidate(victim, victim, 0, len(self._free[victim].ids))
        reusable = self._cached(ids[:-1], prompt, live, victim) if cached else ()
        best = max((cold, *reusable), key=lambda one: one.held - one.lost)
        self._hits += best.held > 0
        self._saved += best.held
        if best.source in self._free:
            self._free[best.source] = self._free.pop(best.source)  # used just now
        del self._free[best.seq]
        itself = best.source == best.seq
        if best.lost:
            self._orders.append(KVCut(best.seq, best.held if itself else 0))
        if not itself:
            self._orders.append(KVCopy(best.seq, best.source, best.held))
        self._shrink()
        return best.seq, best.held

    def _cached(
        self,
        before: Sequence[int],
        prompt: int,
        live: Iterable[tuple[int, KVContents]],
        victim: int,
    ) -> Iterator[_Candidate]:
        held = {seq: self._usable(memory, before, prompt) for seq, memory in self._free.items()}
        for seq, memory in self._free.items():
            if held[seq]:
                yield _Candidate(seq, seq, held[seq], len(memory.ids) - held[seq])
        if self._reuse != "copied":
            return
        held.pop(victim, None)
        # Of equals a live one, then the newest: its cells are shared, those of one that was offloaded are not.
        held = {seq: self._usable(memory, before, prompt) for seq, memory in live} | dict(
            reversed(held.items())
        )
        source = max(held, key=lambda seq: held[seq], default=victim)
        if held.get(source):
            yield _Candidate(victim, source, held[source], len(self._free[victim].ids))

    def _usable(self, memory: KVContents, before: Sequence[int], prompt: int) -> int:
        """How many ids of a sequence a prompt can begin with, if it pays: whole parts, where it matters how it is
        cut."""
        held = common_length(memory.ids, before)
        if self._part is not None and not (memory.prompt == prompt <= held):
            held = min(held, memory.prompt, prompt)
            held -= held % self._part
        if held < MIN_REUSED_IDS or (self._reuse == "whole" and held < len(memory.ids)):
            return 0
        return held

    # --- a session ends

    def release(self, seq: int, memory: KVContents) -> None:
        """A session has ended: its sequence holds this, NO_CONTENTS where that is not to be used again."""
        self._free[seq] = memory
        if not memory.ids:
            self._forget(seq)
        self._shrink()

    def _shrink(self) -> None:
        """Empty the least recently used sequences, until the others leave room for every
        session."""
        room, kept = self._room, sum(len(one.ids) for one in self._free.values())
        if self._guests:
            ended = len(self._free) - self._guests  # or begun as guests: these need less
            room = min(room, max(ended, 0) * self._n_ctx + GUEST_IDS)
        for old, held in list(self._free.items()):
            if kept > room and held.ids:
                self._forget(old)
                kept -= len(held.ids)

    def clear(self) -> None:
        for seq, memory in self._free.items():
            if memory.ids:
                self._forget(seq)

    def _forget(self, seq: int) -> None:
        self._free[seq] = NO_CONTENTS
        self._orders.append(KVCut(seq, 0))

    # --- the engine

    def cut(self, seq: int, length: int) -> None:
        self._orders.append(KVCut(seq, length))

    def relocated(self, seq: int, length: int) -> None:
        """A sequence without a session holds fewer ids than it was to be cut to."""
        if length < len(self._free[seq].ids):
            self._free[seq] = KVContents(
                self._free[seq].ids[:length], min(self._free[seq].prompt, length)
            )

    def orders(self) -> tuple[KVOrder, ...]:
        """Return what to carry out now, in this order, before the next step."""
        due, self._orders = self._orders, []
        if self._begun and self._offloads:
            for seq, contents in self._free.items():
                shared = max(common_length(contents.ids, ids) for ids in self._begun)
                if len(contents.ids) > 2 * shared:
                    due.append(KVOffload(seq))
        self._begun = []
        return tuple(due)

    def doubt(self, seqs: Iterable[int]) -> None:
        """Empty those of these sequences that have no session: a step failed that had to do with them."""
        for seq in self._free.keys() & set(seqs):
            self._forget(seq)
