"""The window of a text that a draft model has read.

A drafter needs the last ids of a text, not all of them. With five texts of 5,500 ids, windows of
1,024 to 2,048 ids had the acceptance rate of the whole text: .812 .856 .829 .853 .868 beside .806
.844 .810 .839 .856.

- The ids of a text stay whole at the drafter. What its engine holds is a window of them: the ids
  `[start, end)` at the positions 0, 1, ... of a sequence, behind the model's BOS if it has one.
- A text that fits a sequence is read whole, unless windows were found to be as good.
- A longer text is read from half a window back.
- A window that is full is read again, from half a window back, ahead of need: piece by piece
  between drafts, in a spare sequence, which then takes over.
- A model whose memory does not grow reads on, and no text again.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from specmesh.core.draft_length import MAX_LEAD
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.kv_slots import KVSlot
from specmesh.core.statistics.snapshot import WindowSection

WINDOW_IDS = 2048
"""Ids of a window by default; see above."""
SPARES = 2
"""Sequences that windows are read again in, for all sessions.

One is read while another one waits for the drafts of its session.
"""
LEAST_SLACK = 2 * MAX_LEAD
"""Cells that a window has to spare, at least, while the next one is read."""
FIRST_PIECE = 16  # ids of a piece, while no piece was measured
JUDGED = 200  # drafts after which the acceptance rate of a way to read counts
WORTH = 0.02  # acceptance rate that reading a whole text must bring, for what it costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows that a draft model reads.

    n_ctx: cells of a sequence.
    size: ids of a window; 0 if texts are read whole or not at all.
    bos: cells of the BOS that the model's texts begin with: 0 or 1.
    endless: a sequence may be longer than `n_ctx`, as the model's memory does not grow.
    spares: sequences for windows that are read again.
    most: ids of the longest text that is read whole from its beginning.
    full: ids after which the next window is read.
    back: ids that a new window begins with.
    """

    n_ctx: int
    size: int = 0
    bos: int = 0
    endless: bool = False
    spares: int = 0
    most: int = field(init=False)
    full: int = field(init=False)
    back: int = field(init=False)

    @property
    def any_length(self) -> bool:
        """Return True if no text is too long."""
        return self.size > 0 or self.endless

    def __post_init__(self) -> None:
        most = self.n_ctx - min(slack(self.size), self.n_ctx // 2)
        if self.endless:
            most = self.size
        full = min(self.size, most)
        object.__setattr__(self, "most", most)
        object.__setattr__(self, "full", full)
        object.__setattr__(self, "back", self.size if self.endless else full // 2)

    def begin(self, slot: KVSlot, length: int, *, whole: bool) -> None:
        """Have an empty slot begin where a text of `length` ids is to be read from.

        whole: from its beginning, if it fits.
        """
        # A window that does as well as the whole text is preferred: it is read sooner.
        fits = length <= self.most if whole else length <= self.full
        if fits or not self.size:
            slot.start = 0
            slot.bos = 0
        else:
            self.begin_next(slot, length)

    def begin_next(self, slot: KVSlot, length: int) -> None:
        """Have an empty slot begin half a window before the end of a text of `length` ids."""
        slot.start = max(length - self.back, 0)
        slot.bos = self.bos if slot.start else 0

    def limit(self, slot: KVSlot) -> int:
        """Return the position in the text up to which a slot can be filled."""
        if self.endless:
            return ANY_LENGTH
        return slot.start - slot.bos + self.n_ctx

    def quiet_until(self, slot: KVSlot) -> int:
        """Return how long a text may be until `is_behind` or `is_due` is to be looked at."""
        if not self.size:
            return ANY_LENGTH
        return slot.start + self.back if slot.start else self.most

    def suits(self, slot: KVSlot, length: int) -> bool:
        """Return True if a slot that was filled for another text is to be read on in.

        length: ids of the text that it gets.
        """
        if not self.size or self.endless:
            return not self.is_behind(slot, length)
        fits = length <= slot.start + self.most
        return fits and not self.is_behind(slot, length)

    def is_behind(self, slot: KVSlot, length: int) -> bool:
        """Return True if to begin a new window is less work than to read on in a slot."""
        # A text that is read whole from its beginning, and fits, has no window to move.
        has_choice = slot.start > 0 or length > self.most
        return self.size > 0 and has_choice and length - slot.end > self.back

    def is_due(self, slot: KVSlot, length: int) -> bool:
        """Return True if the next window is to be read, ahead of need.

        length: ids of the text that are committed.
        """
        if not self.size or self.endless:
            return False
        most = self.full if slot.start else self.most
        return length - slot.start > most


def slack(size: int) -> int:
    """Return the cells that a window of `size` ids has to spare, while the next one is read."""
    return max(size // 4, LEAST_SLACK)


class Piece(NamedTuple):
    """A piece of a window that is read between drafts.

    ids: how many. urgent: it comes between drafts that the next step wants; else after them.
    """

    ids: int
    urgent: bool


class WindowReader:
    """The reading of windows, for all sessions of a draft model.

    chunk: most ids of a step that drafts nothing.
    spares_left: spare sequences that no session has.
    takeovers: windows that have taken over.
    held_up: rounds of verifiers that had no drafts because a window was read.
    """

    def __init__(self, windows: Windows, chunk: int) -> None:
        """Begin without measurements."""
        self.windows = windows
        self.takeovers = 0
        self.held_up = 0
        self.chunk = chunk
        self.spares_left = windows.spares
        self._id_seconds = 0.0  # recent seconds of an id in a piece
        self._accepted = {True: 0, False: 0}  # drafts of texts that were read whole, or not
        self._judged = {True: 0, False: 0}

    def begin(self, slot: KVSlot, length: int) -> None:
        """Have an empty slot begin where a text of `length` ids is to be read from."""
        self.windows.begin(slot, length, whole=self._prefers_whole())

    def snapshot(self) -> WindowSection:
        """Return the counts for `stats`."""
        return WindowSection(
            size=self.windows.size,
            takeovers=self.takeovers,
            held_up=self.held_up,
            acceptance_whole=_rounded(self.acceptance(whole=True)),
            acceptance_windows=_rounded(self.acceptance(whole=False)),
        )

    # --- the size of a piece

    def piece(self, rest: int, room: int, drafts: int, seconds: float) -> Piece:
        """Return the next piece of a window.

        It takes no longer than `seconds`. But it is as large as it must be for the window to be
        read before the other one is full.

        rest: ids to read. room: ids until the other window is full.
        drafts: ids that the text may grow by between two pieces.
        """
        in_time = FIRST_PIECE
        if self._id_seconds:
            # In about the time that a burst of drafts takes: nobody waits longer for a piece than
            # for drafts.
            in_time = int(seconds / self._id_seconds)
        # The text grows by so many ids between two pieces, until the other window is full.
        pieces_left = max(room // max(drafts, 1), 1)
        needed = ceil(rest / pieces_left)
        ids = min(max(in_time, needed, 1), self.chunk)
        return Piece(ids, urgent=needed >= in_time)

    def read(self, ids: int, seconds: float) -> None:
        """Note a piece of so many ids, and its seconds."""
        id_seconds = seconds / ids
        if self._id_seconds:
            self._id_seconds += (id_seconds - self._id_seconds) / 8
        else:
            self._id_seconds = id_seconds

    # --- whole texts or windows

    def judge(self, slot: KVSlot, length: int, *, accepted: int, rejected: int) -> None:
        """Note the drafts of a round, if the text could have been read either way."""
        windows = self.windows
        has_choice = not windows.endless and 0 < windows.size < length <= windows.most
        if has_choice:
            whole = slot.start == 0
            self._accepted[whole] += accepted
            self._judged[whole] += accepted + rejected

    def acceptance(self, *, whole: bool) -> float | None:
        """Return the acceptance rate of texts that were read whole, or by windows.

        These are texts that could be read either way. None if there were too few.
        """
        judged = self._judged[whole]
        return self._accepted[whole] / judged if judged >= JUDGED else None

    def _prefers_whole(self) -> bool:
        """Return True if a text that can be read either way is to be read whole.

        Both ways are tried, windows first: they are read sooner.
        """
        of_whole = self.acceptance(whole=True)
        of_windows = self.acceptance(whole=False)
        if of_whole is None or of_windows is None:
            # The way that fewer drafts were judged of is tried next, until both are known.
            return self._judged[True] < self._judged[False]
        return of_whole > of_windows + WORTH


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)
