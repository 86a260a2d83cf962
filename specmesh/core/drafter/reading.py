"""The reading of a session's text: its sequence, and a spare one for the next window."""

from enum import Enum

from specmesh.core import events as ev
from specmesh.core.drafter.chain import BURST, DraftChain
from specmesh.core.drafter.window import Piece, WindowReader
from specmesh.core.kv_slots import KVBegin, KVCut, KVSlot
from specmesh.core.prefix import common_length


class WindowNeed(Enum):
    """A change of the sequence that a session reads its text in.

    - ANEW: its own is to be emptied, and to begin with a new window.
    - SPARE: a spare one is to be given to it, for the next window.
    - TAKEOVER: the spare one takes over.
    """

    ANEW = "anew"
    SPARE = "spare"
    TAKEOVER = "takeover"


class TextReading:
    """The sequences that a text is read in.

    slot: its KV slot, if it has one. The slot holds ids of text and chain: the first, or a window.
    spare: the slot of the next window, while that is read.
    windows: those of all texts.
    """

    def __init__(self, chain: DraftChain, reader: WindowReader) -> None:
        """Begin without a slot; reader: of all sessions."""
        self.slot: KVSlot | None = None
        self.spare: KVSlot | None = None
        self._chain = chain
        self._ids = chain.ids
        self._reader = reader
        self.windows = reader.windows
        self._piece_is_next = False  # of the next window, else drafts
        self._pieces = 0  # of windows, since the last round
        self._draft_rows = 0  # since the last round

    # --- its slot

    def take(self, slot: KVSlot) -> list[KVCut]:
        """Take a slot, perhaps with ids of the text; empty it if it is no good beginning."""
        self.slot = slot
        cuts: list[KVCut] = []
        if slot.length and not self.windows.suits(slot, self._chain.n_truth):
            cuts.append(emptied(slot))
        return cuts

    def begin(self, slot: KVSlot) -> None:
        """Have an empty slot begin where the text is to be read from."""
        self._reader.begin(slot, self._chain.n_truth)

    def begin_of(self, slot: KVSlot) -> KVBegin:
        """Return the place in the text at which a slot begins."""
        return KVBegin(slot.start, slot.bos, self._chain.known.crc_at(slot.start))

    def cut(self, length: int) -> list[KVCut]:
        """Keep what the sequences hold of the first `length` ids."""
        cuts: list[KVCut] = []
        for slot in (self.slot, self.spare):
            if slot is not None and slot.end > length:
                cuts.append(cut_to(slot, length))
        if self.spare is not None and not self.spare.length:
            self.windows.begin_next(self.spare, length)
        return cuts

    # --- windows

    def need(self) -> WindowNeed | None:
        """Return the change that is due before the next row; None for none.

        A window is read anew if the text has grown far past it, or if it is full and no sequence
        was there for the next one.
        """
        slot = self.slot
        if slot is None or not self.windows.size:
            return None
        if not slot.length:
            return WindowNeed.TAKEOVER if self.spare is not None else None
        windows = self.windows
        if windows.is_behind(slot, self._chain.n_truth):
            return WindowNeed.ANEW
        if self.spare is not None:
            read = len(self._ids) - self.spare.end <= self._piece(self.spare).ids
            return WindowNeed.TAKEOVER if read else None
        if not windows.is_due(slot, self._chain.n_truth):
            return None
        is_full = self._chain.n_truth >= windows.limit(slot)
        return WindowNeed.ANEW if is_full else WindowNeed.SPARE

    def begin_anew(self) -> KVCut:
        """Empty the slot, for a new window."""
        slot = self.slot
        assert slot is not None, "only a session with a slot has windows"
        if not self.windows.is_behind(slot, self._chain.n_truth):
            self._pieces += 1  # drafts wait for it
        return emptied(slot)

    def begin_spare(self, spare: KVSlot) -> None:
        """Begin to read the next window in a spare sequence."""
        self.spare = spare
        self.windows.begin_next(spare, self._chain.n_truth)

    def take_over(self) -> None:
        """Go on in the spare sequence. The one before is the spare one then."""
        before = self.slot
        self.slot = self.spare
        self.spare = before
        self._reader.takeovers += 1

    def _piece(self, spare: KVSlot) -> Piece:
        """Return the next piece of a window that is read in a spare sequence."""
        slot = self.slot
        assert slot is not None, "only a session with a slot has a spare one"
        length = len(self._ids)
        return self._reader.piece(
            rest=length - spare.end,
            room=self.windows.limit(slot) - length,
            drafts=self._chain.burst() + 1,
            seconds=max(BURST, self._chain.interval),
        )

    def piece_is_due(self) -> bool:
        """Return True if the next window is read on before more is drafted.

        Drafts and pieces take turns, once the drafts are made that the next step wants, or where
        the window would not be read in time.
        """
        spare = self.spare
        if spare is None or not self._piece_is_next:
            return False
        chain = self._chain
        has_wanted = len(self._ids) >= chain.n_truth + chain.draft_n
        return has_wanted or self._piece(spare).urgent

    def piece_end(self, spare: KVSlot) -> int:
        """Return the position up to which a row reads on in the next window."""
        return min(spare.end + self._piece(spare).ids, len(self._ids))

    # --- rows and rounds

    def drafted(self) -> None:
        """Note a row that was to draft."""
        self._draft_rows += 1
        self._piece_is_next = True

    def read_piece(self, row: ev.DraftRow, seconds: float) -> list[KVCut]:
        """Take a row that read on in the next window; seconds: that the step took."""
        self._piece_is_next = False
        self._pieces += 1
        self._reader.read(len(row.ids), seconds)
        spare = self.spare
        if spare is None or row.seq != spare.seq:
            return []
        begin = row.text_position
        if (row.position, begin) != (spare.length, spare.end):  # the window was moved meanwhile
            return [KVCut(spare.seq, spare.length)]
        spare.length += row.bos + len(row.ids)
        agreed = common_length(row.ids, self._ids[begin : begin + len(row.ids)])
        return [cut_to(spare, begin + agreed)] if agreed < len(row.ids) else []

    def end_round(self, accepted: int, *, corrected: bool) -> None:
        """Note the drafts of a round, and whether it had none because a window was read."""
        chain = self._chain
        if self.slot is not None and (accepted or corrected):
            rejected = 1 if corrected else 0
            self._reader.judge(self.slot, chain.n_truth, accepted=accepted, rejected=rejected)
        in_hand = len(self._ids) - chain.n_truth
        if chain.draft_n and self._pieces and not self._draft_rows and not in_hand:
            self._reader.held_up += 1
        self._pieces = 0
        self._draft_rows = 0
        self._piece_is_next = False


def cut_to(slot: KVSlot, end: int) -> KVCut:
    """Have a slot end at a position of the text; it is empty if it begins there."""
    if end <= slot.start:
        return emptied(slot)
    slot.length = end - slot.start + slot.bos
    return KVCut(slot.seq, slot.length)


def emptied(slot: KVSlot) -> KVCut:
    """Empty a slot."""
    slot.length = 0
    return KVCut(slot.seq, 0)
