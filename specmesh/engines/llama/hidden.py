"""Hidden states of a target's rows: kept from each of its steps until its own head reads them."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.engines.llama.library import extension, keeping_gil

States = NDArray[np.float32]
"""Hidden states, (rows, width)."""

KEPT_ROWS = 64
"""Rows before those of the newest step that a head can still read, at least."""


@dataclass(slots=True)
class _Kept:
    """The hidden states of a sequence at the positions `start` and after.

    ids: of its rows. states: memory for them, perhaps for more.
    """

    start: int
    states: States
    ids: list[int] = field(default_factory=list[int])

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def cut(self, position: int) -> None:
        """Forget the rows from a position on."""
        del self.ids[max(position - self.start, 0) :]

    def add(self, ids: Sequence[int], rows: States) -> None:
        """Add rows after the last one."""
        count = len(self.ids)
        if count + len(ids) > len(self.states):
            self._make_room(len(ids))
            count = len(self.ids)
        self.states[count : count + len(ids)] = rows
        self.ids += ids

    def _make_room(self, rows: int) -> None:
        """Make room for so many rows: only the last KEPT_ROWS ones stay."""
        staying = min(len(self.ids), KEPT_ROWS)
        last = self.states[len(self.ids) - staying : len(self.ids)].copy()
        self.start = self.end - staying
        self.ids = self.ids[len(self.ids) - staying :]
        if staying + rows > len(self.states):
            self.states = np.empty((staying + rows + KEPT_ROWS, last.shape[1]), np.float32)
        self.states[:staying] = last


def _joined(spans: Sequence[Span]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Yield sequence, position and ids of a step's rows; spans that follow each other are one.

    So all rows of a step are there after it, also those before the last id of a prompt.
    """
    seq = position = -1
    ids: list[int] = []
    for span in spans:
        if span.seq == seq and span.position == position + len(ids):
            ids += span.ids
            continue
        if ids:
            yield seq, position, ids
        seq = span.seq
        position = span.position
        ids = [*span.ids]
    if ids:
        yield seq, position, ids


class HiddenStates:
    """The hidden states of all sequences of a target.

    Llama.cpp has those of the last decode only, in memory that the next one overwrites. So they
    are copied after each.
    """

    def __init__(self, lib: Any, context: Any, *, width: int, rows: int, on_gpu: bool) -> None:
        """Have a llama_context compute hidden states from its next decode on.

        width: of a row. rows: most rows of a decode.
        """
        self.width = width
        self._lib = lib
        self._context = context
        self._shape = (rows, width)
        self._on_gpu = on_gpu
        self._get = keeping_gil(extension(), "llama_get_embeddings_nextn", ctypes.c_void_p)
        self._address = 0
        self._memory = np.empty((0, width), np.float32)
        self._kept: dict[int, _Kept] = {}
        self.available = True
        """False once llama.cpp has returned none."""
        extension().llama_set_embeddings_nextn(context, True, False)

    def take(self, spans: Sequence[Span]) -> None:
        """Copy the hidden states of the decode that just ended; its rows were those of `spans`."""
        if self._on_gpu:
            self._lib.llama_synchronize(self._context)
        address = self._get(self._context)
        if not address:
            self.available = False
            return
        if address != self._address:
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._memory = np.ctypeslib.as_array(pointer, self._shape)
            self._address = address
        begin = 0
        for seq, position, ids in _joined(spans):
            end = begin + len(ids)
            self._add(seq, position, ids, self._memory[begin:end])
            begin = end

    def _add(self, seq: int, position: int, ids: Sequence[int], rows: States) -> None:
        kept = self._kept.get(seq)
        if kept is None or not kept.start <= position <= kept.end:
            kept = _Kept(position, np.empty((KEPT_ROWS, self.width), np.float32))
            self._kept[seq] = kept
        kept.cut(position)
        kept.add(ids, rows)

    def cut(self, seq: int, length: int) -> None:
        """Forget the rows of a sequence from `length` on; all if it is empty then."""
        kept = self._kept.get(seq)
        if kept is None:
            return
        if length <= kept.start:
            del self._kept[seq]
        else:
            kept.cut(length)

    def known(self, seq: int, position: int, ids: Sequence[int]) -> tuple[int, int]:
        """Return the positions [begin, end) whose hidden states are known.

        ids: of the text from `position` on. Rows of other ids there are forgotten, with all after
        them: the target has taken them back, or will before its next step.
        """
        kept = self._kept.get(seq)
        if kept is None:
            return position, position
        for index in range(max(kept.start - position, 0), min(kept.end - position, len(ids))):
            if kept.ids[position + index - kept.start] != ids[index]:
                kept.cut(position + index)
                break
        return kept.start, kept.end

    def rows(self, seq: int, begin: int, end: int) -> States:
        """Return the hidden states at the positions [begin, end), which are known."""
        if begin == end:
            return np.empty((0, self.width), np.float32)
        kept = self._kept[seq]
        return kept.states[begin - kept.start : end - kept.start]

    def ids(self, seq: int, begin: int, end: int) -> list[int]:
        """Return the ids at the positions [begin, end), which are known."""
        kept = self._kept[seq]
        return kept.ids[begin - kept.start : end - kept.start]
