"""KV slots: which sequence of an engine a session gets, and the prefix cache of ended sessions.

A session that ends leaves its ids in its sequence, and another one may begin with them. The next
turn of a chat, or the same system prompt, then costs its new ids only. Ids are compared, never just
digests of them.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specmesh.core.kv_contents import ANY_LENGTH, NO_CONTENTS, KVContents
from specmesh.core.kv_orders import (
    KVCopy,
    KVCut,
    KVOffload,
    KVOrder,
)
from specmesh.core.kv_pool import Eviction, KVBeginning, KVPool
from specmesh.core.kv_reuse import Candidate, KVReuse, NewText, ReuseFinder
from specmesh.core.kv_states import SavedStates
from specmesh.core.kv_windows import WindowSizes
from specmesh.core.prefix import common_length
from specmesh.core.statistics.snapshot import PrefixCacheSection

NO_SEQ = -1  # no sequence
GUEST_IDS = 512
"""Cells that suffice for a short text beside `max_sessions` others: its ids and rows of a step."""


@dataclass(slots=True, eq=False, kw_only=True)
class KVSlot:
    """A sequence that a session has.

    It holds its text from the beginning, or a window of it (`core.drafter.window`).

    length: cells that it fills, once the orders given so far are carried out.
    start: position in the text of the window's first id; 0 if it holds the text's beginning.
    bos: cells before that id, which hold the BOS of the model; 0 or 1.
    peak: cells that it fills for a moment when it comes back from the host's memory; 0 otherwise.
    stops: lengths at which its state is to be saved, in ascending order. No step reads beyond one.
    """

    seq: int
    length: int = 0
    start: int = 0
    bos: int = 0
    peak: int = 0
    stops: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Return the position in the text after the last id that it holds."""
        return self.start + max(self.length - self.bos, 0)

    def part_end(self, end: int) -> int:
        """Return the length up to which a step may read, `end` at most."""
        for stop in self.stops:
            if self.length < stop < end:
                return stop
        return end


NO_WINDOWS = WindowSizes()


class KVSlots:
    """The sequences of one engine, and its orders before the next step.

    - A session that begins gets the sequence, or the copy, of which most is reused (`ReuseFinder`).
    - A sequence keeps its ids when its session ends, until the ids of all sequences without a
      session exceed `room`: then the least recently used ones are emptied.
    - A sequence that a failed step has used is emptied.
    - If the sequences share a pool of cells, those without a session leave it when others need the
      cells, the least recently used first: to the host's memory if there is room, or for good.

    At a verifier only this and the engine note what a sequence holds: here its KVSlot has the
    length while it has a session, and its KVContents have the ids afterwards.

    It is false while no sequence is free.

    has_orders: `orders` may return some.
    changed: ids were reused, kept or lost since the last `snapshot`, perhaps.
    steps: of the engine; counted by the caller, if the sequences share a pool.
    cells_left: of a pool, at least; counted by the caller, less than 0 while it is unknown.
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
        checkpoints: int = 0,
        copies: bool = True,
        windows: WindowSizes = NO_WINDOWS,
        pool: KVPool | None = None,
        offload_after: int = 0,
        shares: bool = True,
    ) -> None:
        """Begin with empty sequences: 0 .. max_sessions + guests - 1.

        room: ids that sequences without a session may hold together. The least recently used are
            emptied first.
        part: ids of a prompt that are read at once, if equal ids must have equal bits. Then only
            ids are reused that a session would read in the same way. None if that does not matter.
        offloads: steps pay for all that sequences hold. Then a session that begins while there are
            no others has the rest offloaded before its first step, but for sequences that it shares
            half of or more: ids among those of others are reached through them anyway.
        guests: sequences for short texts, beside the others. All share the cells of `max_sessions`
            sequences, and GUEST_IDS more for each guest.
        n_ctx: ids of a text that is not short, at most; needed only if there are guests.
        checkpoints: states of sequences that may be saved.
        copies: a sequence may begin with a checkpoint of another one.
        windows: of the model's layers; they need no room if there is a cell for each id.
        pool: the cells that sequences share, but for those of guests. None if each has its own.
            Then `room` counts for nothing.
        shares: a copy has the cells of its source; else it takes others.
        offload_after: with a pool, steps after which a sequence is offloaded that steps pay for.
        """
        self._reuse = reuse
        self._shares = shares and reuse == "copied"  # others begin with a saved state
        self._room = room
        self._offloads = offloads
        self._guests = guests
        self._n_ctx = n_ctx
        self.pool = pool
        if pool is not None and not offloads:
            pool.host_ids = 0  # its engine takes no order that a sequence goes there
        self._offload_after = offload_after
        self.steps = 0
        self.cells_left = -1
        self._states = SavedStates(checkpoints, windows, whole=reuse == "whole")
        # Without any a round is spared the look for them.
        self._keeps_states = checkpoints > 0 or windows.ids > 0
        self._away: set[int] = set()  # sequences that were to be offloaded
        self._woken: set[int] = set()  # those that come back with the next step
        # Sequences without a session, the least recently used first.
        self._free = dict.fromkeys(range(max_sessions + guests), NO_CONTENTS)
        self._finder = ReuseFinder(
            self._free,
            reuse,
            part,
            self._states,
            copies=reuse == "copied" or (checkpoints > 0 and copies),
        )
        self._taken: dict[int, KVSlot] = {}
        self.has_orders = False
        self.changed = False
        self._orders: list[KVOrder] = []
        # Since the last orders: ids of a session that began with no others, and of those after it.
        self._began: list[Sequence[int]] = []
        self._hits = 0
        self._saved = 0

    def __bool__(self) -> bool:
        """Return True if a sequence is free."""
        return bool(self._free)

    @property
    def free(self) -> int:
        """Return the number of sequences that no session has."""
        return len(self._free)

    def holding(self, ids: tuple[int, ...], cells: int) -> int | None:
        """Return a sequence that holds just these ids, if `cells` can be filled; None without one.

        To be asked while there are no sessions.
        """
        pool = self.pool
        if pool is not None and self.filled({}) + cells > pool.cells:
            return None
        for seq, contents in self._free.items():
            if contents.ids == ids:
                return seq
        return None

    def snapshot(self) -> PrefixCacheSection:
        """Return the prefix cache's counts."""
        self.changed = False
        kept = [len(contents.ids) for contents in self._free.values() if contents.ids]
        return PrefixCacheSection(self._hits, self._saved, len(kept), sum(kept))

    # --- a session begins

    def acquire(
        self,
        ids: Sequence[int],
        prompt: int,
        others: Iterable[tuple[int, KVContents]] = (),
        *,
        cached: bool = True,
        crc_at: Callable[[int], int] | None = None,
        claims: Mapping[int, int] | None = None,
    ) -> KVSlot:
        """Return the slot of a session that begins with these ids; a sequence must be free.

        The slot never holds the last id, as its logits are needed.

        prompt: so many ids are to be read as a prompt.
        others: the sequences of other sessions, with the ids that they hold for certain.
        cached: cached ids may be reused.
        crc_at: returns the CRC of the first ids, by their number; needed to reuse windows.
        claims: with a pool, the cells that the sequence of each other session is to fill. The
            sequences without a session leave the pool as far as the new one needs their cells. None
            for a guest, which has cells of its own, but reuses no ids of a longer idle text.
        """
        self.has_orders = True
        self.changed = True
        self.cells_left = -1
        text = array("i", ids)  # arrays are compared in less than 1e-9 s an id
        if self._began or not self._taken:
            self._began.append(text)
        most = GUEST_IDS if self.pool is not None and claims is None else ANY_LENGTH
        best = self._finder.best(NewText(text[:-1], prompt, crc_at, most), others, cached=cached)
        if best.reused:
            self._hits += 1
            self._saved += best.reused
        common = 0
        if cached and self._states.checkpoints:
            common = self._finder.longest_common(text[:-1])
        if self.pool is None or claims is None:
            slot = self._take(best)
            self._shrink()
        else:
            slot = self._take_cells(best, len(ids), claims)
        if not slot.start:
            slot.stops = self._states.begun(slot.seq, slot.length, prompt + 1, common)
        return slot

    def fits(
        self,
        ids: Sequence[int],
        prompt: int,
        others: Iterable[tuple[int, KVContents]],
        claims: Mapping[int, int],
        *,
        cached: bool = True,
        growth: int = 0,
    ) -> bool:
        """Return True if the pool has cells for a session on these ids, besides `claims`.

        Sequences without a session do not count: they leave.

        ids, prompt, others, cached: as in `acquire`. claims: as there, with each other session.
        growth: cells for ids that all of them get yet.
        """
        pool = self.pool
        if pool is None:
            return True
        room = pool.cells - growth
        most = max([len(ids), *pool.away.values()])
        if pool.used(claims) + most <= room:  # whatever is reused
            return True
        text = NewText(array("i", ids)[:-1], prompt, None)
        best = self._finder.best(text, others, cached=cached)
        shares = self._shares and not self._saved_cells(pool, best.source)
        shared = best.cells if shares else 0
        beginning = KVBeginning(best.source, shared, self._peak(best, len(ids)))
        return pool.used(claims, (beginning,)) <= room

    def _peak(self, chosen: Candidate, cells: int) -> int:
        """Return the most cells that a sequence fills until it has `cells` ids.

        A sequence comes back from the host's memory with all its ids, whatever is reused of them.
        """
        if not chosen.reused or self.pool is None:
            return cells
        return max(cells, self._saved_cells(self.pool, chosen.source))

    def _take_cells(self, chosen: Candidate, cells: int, claims: Mapping[int, int]) -> KVSlot:
        """Give a sequence away that is to fill `cells` cells of the pool."""
        wanted = self._peak(chosen, cells)
        before = self._orders
        self._orders = []
        slot = self._take(chosen)
        slot.peak = wanted if wanted > cells else 0
        taking = self._orders
        self._orders = before
        # Others leave first: the copy of an offloaded sequence takes cells at once.
        claims = {**claims, slot.seq: wanted}
        self.make_room(claims, kept=chosen.source)
        self._orders += taking
        self.make_room(claims)
        return slot

    def _take(self, chosen: Candidate) -> KVSlot:
        """Give a sequence away, and order what makes it hold the reused ids."""
        source = chosen.source
        in_place = source == chosen.seq
        if source in self._free:
            self._free[source] = self._free.pop(source)  # used just now
        del self._free[chosen.seq]
        if chosen.lost:
            self.cut(chosen.seq, chosen.cells if in_place else 0)
            if in_place:
                self._states.windows.restore(chosen.seq, chosen.cells)
        elif in_place and chosen.reused and not chosen.begin.start:
            # The text may yet go on in another way.
            self._orders += self._states.note_place(chosen.seq, chosen.reused)
        if chosen.reused:
            self._states.checkpoints.use(source, chosen.reused)
        if not in_place:
            self._orders.append(KVCopy(chosen.seq, source, chosen.reused))
            self._states.copied(chosen.seq, source, chosen.reused)
        if self.pool is not None:
            saved = self._saved_cells(self.pool, chosen.source) if chosen.reused else 0
            if in_place:
                self.pool.taken(chosen.seq, chosen.cells, saved)
            else:
                cells = chosen.cells
                self.pool.copied(chosen.seq, source, cells, saved, shares=self._shares)
        begin = chosen.begin
        slot = KVSlot(seq=chosen.seq, length=chosen.cells, start=begin.start, bos=begin.bos)
        self._taken[slot.seq] = slot
        if slot.seq in self._away:
            self._away.discard(slot.seq)
            self._woken.add(slot.seq)
        return slot

    def _saved_cells(self, pool: KVPool, seq: int) -> int:
        """Return the cells of a sequence that is in the host's memory; 0 if it is not."""
        slot = self._taken.get(seq)
        return pool.saved_cells(seq, 0 if slot is None else slot.length)

    # --- the pool

    def make_room(
        self, claims: Mapping[int, int], more: int = 0, *, kept: int | None = None
    ) -> int:
        """Have sequences without a session leave the pool until the others have room.

        Return the cells that are left then; less than 0 if there are too few without them too.

        claims: the cells that the sequence of each session is to fill, but for guests.
        more: cells that are wanted besides. kept: a sequence that stays.
        """
        pool = self.pool
        if pool is None:
            return ANY_LENGTH
        evictions, left = pool.make_room(claims, self._idle(), more, kept=kept)
        self._let_go(evictions)
        return left

    def filled(self, claims: Mapping[int, int]) -> int:
        """Return the cells of the pool that sessions fill, and sequences without one."""
        pool = self.pool
        return 0 if pool is None else pool.used({**claims, **pool.present(self._idle())})

    def empty_pool(self) -> bool:
        """Have all sequences without a session leave the pool; return False if there are none."""
        pool = self.pool
        if pool is None:
            return False
        evictions = pool.empty(self._idle())
        self._let_go(evictions)
        return bool(evictions)

    def _idle(self) -> dict[int, int]:
        """Return the cells of sequences without a session, the least recently used first."""
        return {seq: contents.cells for seq, contents in self._free.items() if contents.ids}

    def _let_go(self, evictions: Iterable[Eviction]) -> None:
        """Order that sequences leave the pool, or the host's memory."""
        for seq, to_host in evictions:
            if to_host:
                self._orders.append(KVOffload(seq, now=True))
                self.has_orders = True
                self.changed = True
            else:
                self._forget(seq)

    def lost(self, seqs: Iterable[int]) -> None:
        """Note that the engine has emptied sequences; some may have a session."""
        self.changed = True
        self.cells_left = -1
        for seq in seqs:
            self._states.cut(seq, 0)
            if self.pool is not None:
                self.pool.emptied(seq)
            if seq in self._free:
                self._free[seq] = NO_CONTENTS
            elif seq in self._taken:
                self._taken[seq].length = 0

    # --- a session ends

    def release(self, seq: int, contents: KVContents) -> None:
        """Take a session's sequence back.

        contents: its ids; NO_CONTENTS if they are not to be used again.
        """
        self.changed = True
        self.cells_left = -1
        pool = self.pool
        saved = 0 if pool is None else self._saved_cells(pool, seq)
        self._taken.pop(seq, None)
        self._free[seq] = contents
        if not contents.ids:
            self._forget(seq)
        elif pool is not None and saved:
            pool.left(seq, saved)  # it never came back
        self._shrink()

    def _shrink(self) -> None:
        """Empty the least recently used sequences until the others leave room for all sessions."""
        if self.pool is not None:
            return  # they leave once their cells are wanted
        room = self._room
        if self._guests:
            # Long texts that may yet begin, or have ended. Ended guests hold less.
            long = max(len(self._free) - self._guests, 0)
            room = min(room, long * self._n_ctx + GUEST_IDS)
        kept = sum(len(other.ids) for other in self._free.values())
        for other_seq, other in list(self._free.items()):
            if kept > room and other.ids:
                self._forget(other_seq)
                kept -= len(other.ids)

    def clear(self) -> None:
        """Empty the sequences without a session."""
        self.changed = True
        for seq, contents in self._free.items():
            if contents.ids:
                self._forget(seq)

    def _forget(self, seq: int) -> None:
        self._free[seq] = NO_CONTENTS
        if self.pool is not None:
            self.pool.emptied(seq)
        self.cut(seq, 0)

    # --- the engine

    def cut(self, seq: int, length: int) -> None:
        """Order that a sequence keeps its first `length` cells."""
        self._orders.append(KVCut(seq, length))
        self.has_orders = True
        if self._keeps_states:
            self._states.cut(seq, length)

    def reached(self, slot: KVSlot) -> None:
        """Order that the state of a session's sequence is saved, if it is at one of its stops."""
        stops = slot.stops
        while stops and stops[0] < slot.length:
            stops.pop(0)
        if stops and stops[0] == slot.length:
            stops.pop(0)
            self._orders += self._states.save(slot.seq, slot.length)
            self.has_orders = self.has_orders or bool(self._orders)

    def relocated(self, seq: int, length: int) -> None:
        """Note that a sequence holds at most `length` cells."""
        self._states.checkpoints.cut(seq, length)
        slot = self._taken.get(seq)
        if slot is not None:
            slot.length = min(slot.length, length)
            return
        self.changed = True
        contents = self._free[seq]
        if length < contents.cells:
            kept = contents.ids[: max(length - contents.begin.bos, 0)]
            self._free[seq] = NO_CONTENTS
            if kept:
                prompt = min(contents.prompt, len(kept))
                self._free[seq] = replace(contents, ids=kept, prompt=prompt)

    def orders(self, rows: int = 0) -> tuple[KVOrder, ...]:
        """Return the orders to carry out before the next step, in this order.

        rows: of that step.
        """
        if self._began and self._offloads:
            for seq, contents in list(self._free.items()):
                shared = max(common_length(contents.ids, ids) for ids in self._began)
                if len(contents.ids) > 2 * shared:
                    self._spare_others(seq)
        self._began = []
        orders = self._orders
        self._orders = []
        self.has_orders = False
        if self._states.windows.limited:
            orders = self._states.with_room(orders, self._held(), rows, self._loads_next)
            self._woken = set()
            self.has_orders = True  # the next step may need room too
        return tuple(orders)

    def _spare_others(self, seq: int) -> None:
        """Have a sequence offloaded whose cells cost the steps of others time.

        With a pool this was to be found `offload_after` steps ago, and the host must have room.
        """
        pool = self.pool
        if pool is None:
            self._orders.append(KVOffload(seq))
            self._away.add(seq)
            return
        if not self._free[seq].ids or seq in pool.away:
            return
        if self.steps - pool.costs_since(seq, self.steps) >= self._offload_after:
            self._let_go(pool.to_host(seq, self._idle()))

    def _loads_next(self, seq: int) -> bool:
        """Return True if a sequence is loaded from the host's memory with its next step."""
        if self.pool is None:
            return seq in self._woken
        return self._saved_cells(self.pool, seq) > 0

    def _held(self) -> dict[int, int]:
        """Return the cells of each sequence but those offloaded, the least recently used first."""
        away = self._away if self.pool is None else self.pool.away
        held: dict[int, int] = {}
        for seq, contents in self._free.items():
            if contents.ids and seq not in away:
                held[seq] = contents.cells
        for seq, slot in self._taken.items():
            held[seq] = slot.length
        return held

    def doubt(self, seqs: set[int]) -> None:
        """Empty these sequences, but for those of sessions: what they hold is in doubt, or junk."""
        for seq in self._free.keys() & seqs:
            self._forget(seq)
