"""A cache of a model with sliding windows, whose sequences can be cut far behind their ends.

Layers with a window attend to the last ids only. llama.cpp gives a cell that has left the window
of its sequence to other ids, even if there is a cell for each id. But it does so only if the cell
belongs to one sequence. Here a further sequence, the keeper, holds such cells too, until the
daemon's core gives them up.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specmesh.core.events import Span
from specmesh.engines.base import rows_of
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, SavedState
from specmesh.engines.llama.library import quoted_errors
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import EngineError

_HEADER = np.dtype(np.int64)
"""Type of the numbers that a saved state begins with: see `_empty_state`."""
_WHOLE = 0

HELPERS = 2
"""Sequences of the cache's own: the keeper, and one that parts of others pass through."""

LEAST_CELLS = 2048
"""Cells for windows, at least: llama.cpp reserves a window for each sequence, even a short one.

bench/beside.py, gemma-3-270m, two sessions: with 4,096 a prompt of 6,000 ids takes 1.03 times as
long, as each row goes over all cells; bench/prefixes.py has the same ids either way.
"""


def has_keeper(model: LlamaModel, sizes: CacheSizes) -> bool:
    """Return True if a model has windows, in cells that all sequences share, and room for a keeper.

    In cells of its own a sequence is never overwritten before they are full.
    """
    if model.has_states or not model.n_swa or sizes.width is not None:
        return False
    most: int = model.lib.llama_max_parallel_sequences()
    return sizes.sequences + HELPERS <= most


def helpers_of(model: LlamaModel, sizes: CacheSizes) -> int:
    """Return how many sequences of its own a cache with few cells for windows has."""
    most: int = model.lib.llama_max_parallel_sequences()
    wanted = (LEAST_CELLS - sizes.rows) // model.n_swa - sizes.sequences
    return min(max(wanted, HELPERS), most - sizes.sequences)


def cells_of(model: LlamaModel, sizes: CacheSizes) -> int:
    """Return the cells that the sequences of such a cache have for windows, at least.

    What is loaded passes through some more.
    """
    own = sizes.sequences + helpers_of(model, sizes) - HELPERS
    return model.n_swa * own + sizes.rows


class WindowCache(LlamaCache):
    """A LlamaCache whose keeper holds the cells that windows have left.

    A cell leaves its window after the step that filled it, and the keeper gets it before another
    step begins.
    """

    def __init__(self, model: LlamaModel, sizes: CacheSizes) -> None:
        helpers = HELPERS if sizes.swa_full else helpers_of(model, sizes)
        super().__init__(model, replace(sizes, helpers=helpers))
        self._window_only = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._n_swa = model.n_swa
        self._keeper = sizes.sequences
        self._spare = sizes.sequences + 1  # parts of a sequence pass through it
        # By sequence. The keeper holds its cells from `begins` to before `kept`.
        self._begins: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._limited = not sizes.swa_full
        self._saved: dict[int, dict[int, SavedState]] = {}  # by sequence and length
        # Of offloaded sequences that were cut to a checkpoint, the window there.
        self._ends: dict[int, SavedState] = {}
        self.state_bytes = 0

    def decode(self, spans: Sequence[Span]) -> None:
        rest = spans
        if rows_of(spans) > self._ubatch:
            rest = self._without_prompts(spans)
        if rest:
            super().decode(rest)
        for span in spans:
            # In some models windows begin at multiples of n_swa. In the others they move with each
            # id, so that cells leave them later.
            if span.end // self._n_swa * self._n_swa > self._kept.get(span.seq, 0):
                self._share_with_keeper(span.seq, span.end)

    def _without_prompts(self, spans: Sequence[Span]) -> list[Span]:
        """Decode the spans without logits part by part; return the others.

        llama.cpp takes more rows than `_ubatch` in turns, in which cells could leave their windows.
        """
        for span in spans:
            self._share_with_keeper(span.seq, max(span.position, self._kept.get(span.seq, 0)))
        rest: list[Span] = []
        for span in spans:
            if span.logits:
                rest.append(span)
                continue
            for start in range(0, len(span.ids), self._ubatch):
                ids = span.ids[start : start + self._ubatch]
                super().decode([Span(span.seq, span.position + start, ids, logits=False)])
                self._share_with_keeper(span.seq, span.position + start + len(ids))
        return rest

    def _share_with_keeper(self, seq: int, length: int) -> None:
        """Have the keeper hold the cells of a sequence up to a length too."""
        begin = max(self._kept.get(seq, 0), self._begins.get(seq, 0))
        if begin < length:
            self._seq_cp(self._memory, seq, self._keeper, begin, length)
        self._kept[seq] = length

    def narrow(self, seq: int, begin: int) -> None:
        """Let the cells of a sequence before `begin` be lost, in layers with a window."""
        before = self._begins.get(seq, 0)
        self._begins[seq] = max(begin, before)
        end = min(begin, self._kept.get(seq, 0))
        if before < end:
            self._take_from_keeper(before, end)

    def _take_from_keeper(self, begin: int, end: int) -> None:
        """Empty these positions of the keeper, but for the sequences that still want them held."""
        self._seq_rm(self._memory, self._keeper, begin, end)
        for other, kept in self._kept.items():
            first = max(begin, self._begins.get(other, 0))
            last = min(end, kept)
            if first < last:
                self._seq_cp(self._memory, other, self._keeper, first, last)

    def reaches(self, seq: int, length: int) -> bool:
        """Return True if a sequence that is longer can be cut to this length."""
        begin = self._begins.get(seq, 0)
        return begin == 0 or length >= begin + self._n_swa

    def can_copy(self, seq: int, length: int, held: int) -> bool:
        """Return True if another sequence can begin with so many ids of a sequence."""
        is_end = seq in self._ends and length == held
        return is_end or self.reaches(seq, length) or length in self._saved.get(seq, {})

    def trim_offloaded(self, seq: int, length: int) -> bool:
        if not self.reaches(seq, length):
            window = self._saved.get(seq, {}).get(length)
            if window is None:
                return False
            self._ends[seq] = window
        self._saved[seq] = self._saved_up_to(seq, length)
        return True

    def trim(self, seq: int, length: int) -> bool:
        window = None
        if not self.reaches(seq, length):
            window = self._saved.get(seq, {}).get(length)
            if window is None:
                return False
        self._saved[seq] = self._saved_up_to(seq, length)
        self.remove(seq, length)
        if window is not None:
            self._restore(seq, length, window)
        return True

    def _restore(self, seq: int, length: int, window: SavedState) -> None:
        """Give a sequence of this length its last window, in cells of its own."""
        self._release(seq, 0)
        self._begins[seq] = max(length - self._n_swa, 0)
        self._copy_in(seq, self._window_only, window)
        self._share_with_keeper(seq, length)

    # --- checkpoints

    def measure(self, held: int) -> None:
        """Note the size of a checkpoint, while sequence 0 holds so many ids."""
        if self._limited:
            self.state_bytes = self._size(0, self._window_only) * self._n_swa // held

    def keep(self, seq: int, length: int) -> None:
        """Save the window before a length of a sequence that reaches it. Raises EngineError."""
        self._saved.setdefault(seq, {})[length] = self._window(seq, length)

    def drop(self, seq: int, length: int) -> None:
        """Forget a checkpoint."""
        self._saved.get(seq, {}).pop(length, None)

    def adopt(self, seq: int, source: int, length: int) -> None:
        """Give a sequence the checkpoints of another one, up to a length."""
        self._saved[seq] = self._saved_up_to(source, length)

    def _saved_up_to(self, seq: int, length: int) -> dict[int, SavedState]:
        """Return the checkpoints of a sequence up to a length."""
        saved = self._saved.get(seq, {})
        return {other: saved[other] for other in saved if other <= length}

    @property
    def kept_bytes(self) -> int:
        """Return the size of all checkpoints."""
        states: dict[int, int] = {}
        for saved in list(self._saved.values()):
            for state in list(saved.values()):
                states[id(state)] = len(state)
        return sum(states.values())

    def _window(self, seq: int, length: int) -> SavedState:
        """Return the window before a length, saved or copied now."""
        if not self.reaches(seq, length):
            return self._saved[seq][length]
        self._fill_spare(seq, length)
        window = np.empty(self._size(self._spare, self._window_only), np.uint8)
        self._copy_out(self._spare, self._window_only, window)
        self._seq_rm(self._memory, self._spare, -1, -1)
        return window

    # --- cells

    def _release(self, seq: int, length: int) -> None:
        """Have the keeper hold no cells of a sequence beyond a length."""
        kept = self._kept.get(seq, 0)
        if kept > length:
            self._kept[seq] = length
            self._take_from_keeper(length, kept)

    def remove(self, seq: int, length: int) -> bool:
        removed = super().remove(seq, length)
        if removed:
            self._release(seq, length)
        return removed

    def clear(self, seq: int) -> None:
        super().clear(seq)
        self._begins.pop(seq, None)
        self._saved.pop(seq, None)
        self._ends.pop(seq, None)

    def vacate(self, seq: int) -> None:
        super().vacate(seq)
        self._release(seq, 0)

    def share(self, seq: int, source: int, length: int) -> None:
        """Let the empty `seq` share the cells of the first `length` tokens of `source`.

        A cell of two sequences is never given away. So where cells are few, `seq` has only those of
        other layers in common, and a copy of the last window.
        """
        self.adopt(seq, source, length)
        if self._limited:
            window = self._window(source, length)
            super().share(seq, source, length)
            self._restore(seq, length, window)
            return
        super().share(seq, source, length)
        self._begins[seq] = self._begins.get(source, 0)
        self._kept[seq] = min(self._kept.get(source, 0), length)

    def share_offloaded(self, seq: int, source: int, length: int) -> None:
        """Have `seq` begin like an offloaded one when it is loaded."""
        self.adopt(seq, source, length)
        if not self.reaches(source, length):
            if source in self._ends:
                self._ends[seq] = self._ends[source]
            else:
                self._ends[seq] = self._saved[source][length]
        if self._limited:
            self._begins[seq] = max(length - self._n_swa, 0)

    # --- offloading: llama.cpp saves the ids of the last window only, of those layers

    def save(self, seq: int, reuse: SavedState | None = None) -> SavedState:  # noqa: ARG002
        """Copy a sequence: its state, and each earlier window as the state of a part."""
        first = self._begins.get(seq, 0)
        ends = range(self.end(seq) - self._n_swa, first, -self._n_swa)
        sizes = [self._size(seq, _WHOLE)]
        for end in ends:
            self._fill_spare(seq, end)
            sizes.append(self._size(self._spare, self._window_only))
        state = _empty_state(first, sizes)
        _, parts = _parts_of(state)
        self._copy_out(seq, _WHOLE, parts[0])
        for end, part in zip(ends, parts[1:], strict=True):
            self._fill_spare(seq, end)
            self._copy_out(self._spare, self._window_only, part)
        self._seq_rm(self._memory, self._spare, -1, -1)
        return state

    def _fill_spare(self, seq: int, end: int) -> None:
        """Have the spare sequence hold the window before `end` of another one, and no more."""
        self._seq_rm(self._memory, self._spare, -1, -1)
        begin = max(end - self._n_swa, self._begins.get(seq, 0))
        self._seq_cp(self._memory, seq, self._spare, begin, end)

    def _size(self, seq: int, flags: int) -> int:
        size: int = self.lib.llama_state_seq_get_size_ext(self._handle, seq, flags)
        return size

    def _copy_out(self, seq: int, flags: int, state: SavedState) -> None:
        pointer = self.pointer(state)
        size = len(state)
        written = self.lib.llama_state_seq_get_data_ext(self._handle, pointer, size, seq, flags)
        if size == 0 or written != size:
            reason = quoted_errors()
            raise EngineError(f"llama.cpp did not save the state of sequence {seq} ({reason})")

    def load(self, seq: int, length: int, state: SavedState | None) -> None:
        if state is None:
            self.clear(seq)
            return
        first, parts = _parts_of(state)
        begin = max(first, self._begins.get(seq, 0))
        self.vacate(seq)
        self._copy_in(seq, _WHOLE, parts[0])
        self._begins[seq] = begin
        end = self.end(seq)
        super().remove(seq, length)  # what is not needed leaves before more comes
        self._share_with_keeper(seq, length)
        for part in parts[1:]:
            end -= self._n_swa
            if end <= begin:
                break
            if end - self._n_swa < length:
                self._load_window(seq, part, begin, length)
        window = self._ends.pop(seq, None)
        if window is not None:
            self._restore(seq, length, window)
        elif not self.trim(seq, length):
            raise EngineError(f"sequence {seq} cannot go back to {length} ids")

    def _load_window(self, seq: int, window: SavedState, begin: int, length: int) -> None:
        """Give a sequence and the keeper the part of a window that is in [begin, length).

        The window passes through the spare sequence.
        """
        self._copy_in(self._spare, self._window_only, window)
        self._seq_rm(self._memory, self._spare, 0, begin)
        self._seq_rm(self._memory, self._spare, length, -1)
        for other in (seq, self._keeper):
            self._seq_cp(self._memory, self._spare, other, -1, -1)
        self._seq_rm(self._memory, self._spare, -1, -1)

    def _copy_in(self, seq: int, flags: int, state: SavedState) -> None:
        pointer = self.pointer(state)
        size = len(state)
        if not self.lib.llama_state_seq_set_data_ext(self._handle, pointer, size, seq, flags):
            self.clear(seq)
            reason = quoted_errors()
            raise EngineError(f"llama.cpp did not restore the state of sequence {seq} ({reason})")


def _empty_state(first: int, sizes: Sequence[int]) -> SavedState:
    """Return a saved state whose parts are not written yet.

    It begins with numbers: the first id that windows hold, how many parts there are, and the bytes
    of each.
    """
    header = np.array([first, len(sizes), *sizes], _HEADER).view(np.uint8)
    state = np.empty(len(header) + sum(sizes), np.uint8)
    state[: len(header)] = header
    return state


def _parts_of(state: SavedState) -> tuple[int, list[SavedState]]:
    """Return the first id that windows hold, and views of a saved state's parts."""
    counts = 2 * _HEADER.itemsize
    first, count = state[:counts].view(_HEADER).tolist()
    begin = counts + count * _HEADER.itemsize
    parts: list[SavedState] = []
    for size in state[counts:begin].view(_HEADER).tolist():
        parts.append(state[begin : begin + size])
        begin += size
    return first, parts
