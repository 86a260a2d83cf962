"""The reading of a session's text: its sequence, and a spare one for the next window.

Three lengths must not be confused:

- the text's, in ids from its beginning: `n_truth` of them are committed, the chain follows;
- the slot's `end`, a position in the text: ids up to there are in the sequence;
- the slot's `length`, in cells of the sequence: a window begins at `start`, behind a BOS.

So `end` = `start` + `length` - `bos`. Where a text is read whole, `start` and `bos` are 0, and all
is one number.
"""

from collections.abc import Callable

from specmesh.core import events as ev
from specmesh.core.drafter.chain import BURST, DraftChain
from specmesh.core.drafter.window import Piece, WindowReader
from specmesh.core.kv_contents import ANY_LENGTH, NO_CONTENTS, KVBegin
from specmesh.core.kv_slots import KVSlot, KVSlots
from specmesh.core.prefix import common_length


class TextReading:
    """The sequences that a text is read in.

    slot: its KV slot, if it has one. The slot holds ids of text and chain: the first, or a window.
    spare: the slot of the next window, while that is read.
    room: position of the text up to which the slot can be filled.
    quiet_until: committed ids up to which no window is due, while there is no spare.
    draft_rows: rows that were to draft, since the last round.
    """

    def __init__(self, chain: DraftChain, reader: WindowReader, slots: KVSlots) -> None:
        """Begin without a slot; reader, slots: of all sessions."""
        self.slot: KVSlot | None = None
        self.spare: KVSlot | None = None
        self.room = ANY_LENGTH
        self.quiet_until = ANY_LENGTH
        self.draft_rows = 0
        self._chain = chain
        self._ids = chain.ids
        self._reader = reader
        self._windows = reader.windows
        self._slots = slots
        self._pieces = 0  # of windows, since the last round
        self._rows_at_piece = 0  # draft rows before the last piece

    # --- its slot

    def take(self, slot: KVSlot) -> None:
        """Take a slot, perhaps with ids of the text; empty it if it is no good beginning."""
        # Its ids agree with the text's beginning. But to read on from so far back may be more work
        # than to begin a window near the end.
        if slot.length and not self._windows.suits(slot, self._chain.n_truth):
            self._empty(slot)
        self._read_in(slot)

    def begin(self, slot: KVSlot) -> None:
        """Have the slot, which is empty, begin where the text is to be read from."""
        self._reader.begin(slot, self._chain.n_truth)
        self._read_in(slot)

    def leave(self) -> None:
        """Have no slot any more."""
        self.slot = None
        self.room = ANY_LENGTH

    def _read_in(self, slot: KVSlot) -> None:
        """Read on in a slot, whose beginning is new."""
        self.slot = slot
        if slot.start or slot.bos:
            slot.stops = []  # its cells are not those of the text's beginning
        self.room = self._windows.limit(slot)
        self.quiet_until = self._windows.quiet_until(slot)
        self._chain.set_limit(self.room)

    def begin_of(self, slot: KVSlot) -> KVBegin:
        """Return the place in the text at which a slot begins."""
        return KVBegin(slot.start, slot.bos, self._chain.known.crc_at(slot.start))

    def cut(self, length: int) -> None:
        """Keep what the sequences hold of the first `length` ids."""
        for slot in (self.slot, self.spare):
            if slot is not None and slot.end > length:
                self.cut_to(slot, length)
        # The cut took all of it, so the window may begin further back than the text now ends.
        if self.spare is not None and not self.spare.length:
            self._windows.begin_next(self.spare, length)

    def cut_to(self, slot: KVSlot, end: int) -> None:
        """Have a slot end at a position of the text; it is empty if it begins there."""
        if end <= slot.start:
            self._empty(slot)
        else:
            slot.length = end - slot.start + slot.bos
            self._slots.cut(slot.seq, slot.length)

    def _empty(self, slot: KVSlot) -> None:
        """Have a slot hold nothing; its next row begins a window."""
        slot.length = 0
        self._slots.cut(slot.seq, 0)

    # --- windows

    def attend(self, take_spare: Callable[[], bool]) -> None:
        """Make the change that is due to the sequences before the next row.

        - The slot is emptied for a new window if the text has grown far past it, or if it is full
          and no sequence was there for the next window.
        - A spare sequence is taken when the next window is due. Without any the slot goes on.
        - The spare one takes over when its window is read, or if the slot is empty.

        take_spare: takes the spare sequence of another session; returns False if none is idle.
        """
        slot = self.slot
        assert slot is not None, "only a session with a slot has windows"
        spare = self.spare
        n_truth = self._chain.n_truth
        if not slot.length:
            # It has nothing to lose, and the spare one may have read a part.
            if spare is not None:
                self._take_over(spare)
        elif self._windows.is_behind(slot, n_truth):
            self.release_spare()
            self._empty(slot)
        elif spare is not None:
            # The rest fits the row that drafts next, so nothing waits for it.
            if len(self._ids) - spare.end <= self._piece(spare).ids:
                self._take_over(spare)
        elif self._windows.is_due(slot, n_truth):
            # No cell is left, and no sequence was spare in time. The same one begins again, now.
            if n_truth >= self.room:
                self._pieces += 1  # drafts wait for it
                self._empty(slot)
            elif self._reader.spares_left or take_spare():
                # `take_spare` counts the one that it takes as left.
                self._reader.spares_left -= 1
                self.spare = self._slots.acquire((), 0, cached=False)
                self._windows.begin_next(self.spare, n_truth)

    def release_spare(self) -> None:
        """Give the spare sequence back, if there is one."""
        spare = self.spare
        if spare is not None:
            self.spare = None
            self._reader.spares_left += 1
            self._slots.release(spare.seq, NO_CONTENTS)

    def _take_over(self, spare: KVSlot) -> None:
        """Go on in the spare sequence, and give the one before back."""
        self.spare = self.slot
        self.release_spare()
        self._read_in(spare)
        self._reader.takeovers += 1

    def _piece(self, spare: KVSlot) -> Piece:
        """Return the next piece of a window that is read in a spare sequence."""
        length = len(self._ids)
        return self._reader.piece(
            rest=length - spare.end,
            room=self.room - length,
            drafts=self._chain.burst() + 1,
            seconds=max(BURST, self._chain.interval),
        )

    def piece_is_due(self) -> bool:
        """Return True if the next window is read on before more is drafted.

        Drafts and pieces take turns, once the drafts are made that the next step wants, or where
        the window would not be read in time.
        """
        spare = self.spare
        if spare is None or self.draft_rows == self._rows_at_piece:
            return False
        chain = self._chain
        # Before that the verifier's next step would wait for the piece.
        has_wanted = len(self._ids) >= chain.n_truth + chain.draft_n
        return has_wanted or self._piece(spare).urgent

    def piece_end(self, spare: KVSlot) -> int:
        """Return the position up to which a row reads on in the next window."""
        return min(spare.end + self._piece(spare).ids, len(self._ids))

    # --- rows and rounds

    def read_piece(self, row: ev.DraftRow, seconds: float) -> None:
        """Take a row that read on in the next window; seconds: that the step took."""
        self._rows_at_piece = self.draft_rows
        self._pieces += 1
        self._reader.read(len(row.ids), seconds)
        spare = self.spare
        if spare is None or row.seq != spare.seq:
            return
        begin = row.text_position
        if (row.position, begin) != (spare.length, spare.end):  # the window was moved meanwhile
            # The engine has decoded cells that the slot does not count.
            self._slots.cut(spare.seq, spare.length)
            return
        spare.length += row.bos + len(row.ids)
        agreed = common_length(row.ids, self._ids[begin : begin + len(row.ids)])
        if agreed < len(row.ids):
            self.cut_to(spare, begin + agreed)

    def end_round(self, accepted: int, *, rejected: int) -> None:
        """Note the drafts of a round, and whether it had none because a window was read."""
        chain = self._chain
        # Within a window both ways to read are the same.
        beyond_window = chain.n_truth > self._windows.size
        if self.slot is not None and beyond_window and accepted + rejected:
            self._reader.judge(self.slot, chain.n_truth, accepted=accepted, rejected=rejected)
        in_hand = len(self._ids) - chain.n_truth
        if chain.draft_n and self._pieces and not self.draft_rows and not in_hand:
            self._reader.held_up += 1
        self._pieces = 0
        self.draft_rows = 0
        self._rows_at_piece = 0
