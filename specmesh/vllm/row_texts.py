"""Which row of a vLLM batch is which text.

vLLM names no requests to a proposer. A row has a length, its ids, and the ids that it got in the
step. Rows move: when a text ends, another one takes its row. A row vanishes when vLLM needs its
memory, and comes back later. And two rows may have the same ids.

A text is first looked for in the row where it was, by its last ids. That takes a microsecond, and
it is nearly always there. Then it is looked for in the other rows, by all ids. A text that is taken
for another costs its drafts, and nothing else: vLLM verifies each draft for its own row.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specmesh.core.verifier.session import VerifierSession

TAIL_IDS = 32
"""Ids by which a text is found in its row."""

RowIds = NDArray[np.int32]
"""The ids of all rows, (rows, most ids of a text). Those after a row's length mean nothing."""


class BatchRows(NamedTuple):
    """The rows of a batch, as a call shows them.

    lengths: of each row's text, the new ids included.
    new: ids that each row got in the step; none while its prompt is read, which is known whole.
    ids: of all rows.
    """

    lengths: Sequence[int]
    new: Sequence[Sequence[int]]
    ids: RowIds


@dataclass(slots=True, eq=False, kw_only=True)
class RowText:
    """A text that a row shows.

    number: of its client at the core. session: its session at the core; None once that has ended.
    ids: those of the session, which stay when it ends. length: of the text after the newest call.
    row: the row that shows it.
    endless: it went on after an id that ends texts, so such an id does not end it.
    unreadable: some of its ids are no tokens, as in the place of a picture. It has no session, as
        no drafter could read it.
    """

    number: int
    session: VerifierSession | None
    ids: "array[int]"
    length: int
    row: int
    endless: bool = False
    unreadable: bool = False

    def may_begin(self, rows: BatchRows, index: int) -> bool:
        """Return True if a row may begin with this text, by the last ids of the text."""
        length = self.length
        if rows.lengths[index] < length:
            return False
        tail = slice(max(length - TAIL_IDS, 0), length)
        return rows.ids[index, tail].tobytes() == self.ids[tail].tobytes()

    def begins(self, rows: BatchRows, index: int) -> bool:
        """Return True if a row begins with this text, by all ids, and its session goes on."""
        if self.session is None or not self.may_begin(rows, index):
            return False
        length = self.length
        return rows.ids[index, :length].tobytes() == self.ids[:length].tobytes()


class RowTexts:
    """The texts of the newest call, by row."""

    def __init__(self) -> None:
        """Begin without texts."""
        self.by_row: dict[int, RowText] = {}

    def matched(self, rows: BatchRows) -> list[RowText]:
        """Give each row its text; return the texts that no row shows any more.

        A row with a new text gets none. Each text is given to one row only.
        """
        before = self.by_row
        found: dict[int, RowText] = {}
        unmatched: list[int] = []
        for index in range(len(rows.lengths)):
            text = before.get(index)
            if text is not None and text.may_begin(rows, index):
                found[index] = text
            else:
                unmatched.append(index)
        self.by_row = found
        if len(found) == len(before):
            return []
        left = [text for index, text in before.items() if found.get(index) is not text]
        for index in unmatched:
            moved = self._moved(left, rows, index)
            if moved is not None:
                moved.row = index
                found[index] = moved
                left.remove(moved)
        return left

    @staticmethod
    def _moved(left: Sequence[RowText], rows: BatchRows, index: int) -> RowText | None:
        """Return the longest text that a row begins with; None if it begins with none of them."""
        fitting = [text for text in left if text.begins(rows, index)]
        return max(fitting, key=lambda text: text.length, default=None)

    def forget(self) -> list[RowText]:
        """Forget and return all texts."""
        texts = list(self.by_row.values())
        self.by_row = {}
        return texts
