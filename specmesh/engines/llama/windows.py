"""A cache of a model with sliding windows, whose sequences can be cut anywhere.

Layers with a window attend to the last ids only. llama.cpp gives a cell that has left the window
of its sequence to other ids, even if there is a cell for each id. But it does so only if the cell
belongs to one sequence. Here a further sequence, the keeper, holds such cells too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specmesh.core.events import Span
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, SavedState
from specmesh.engines.llama.library import quoted_errors
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import EngineError

_HEADER = np.dtype(np.int64)
_WHOLE = 0


class WindowCache(LlamaCache):
    """A LlamaCache with as many cells for windows as for the rest.

    Each step ends within n_swa ids of its beginning or before, so cells leave a window only after
    the step that filled them: until then the keeper has them.
    """

    def __init__(self, model: LlamaModel, sizes: CacheSizes) -> None:
        super().__init__(model, replace(sizes, helpers=2))
        self._partial = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._n_swa: int = self.lib.llama_model_n_swa(model.handle)
        self._keeper = sizes.sequences
        self._spare = sizes.sequences + 1  # parts of a sequence pass through it
        # By sequence, the ids from the beginning on whose cells the keeper holds.
        self._kept: dict[int, int] = {}

    def decode(self, spans: Sequence[Span]) -> None:
        super().decode(spans)
        for span in spans:
            # Windows may begin at multiples of n_swa, or move with each id: then they end later.
            if span.end // self._n_swa * self._n_swa > self._kept.get(span.seq, 0):
                self._keep(span.seq, span.end)

    def _keep(self, seq: int, length: int) -> None:
        self._seq_cp(self._memory, seq, self._keeper, self._kept.get(seq, 0), length)
        self._kept[seq] = length

    def _release(self, seq: int, length: int) -> None:
        """Have the keeper hold no cells of a sequence beyond a length."""
        if self._kept.get(seq, 0) <= length:
            return
        self._kept[seq] = length
        self._seq_rm(self._memory, self._keeper, length, -1)
        for other, kept in self._kept.items():
            if kept > length:
                self._seq_cp(self._memory, other, self._keeper, length, kept)

    def remove(self, seq: int, length: int) -> bool:
        removed = super().remove(seq, length)
        if removed:
            self._release(seq, length)
        return removed

    def clear(self, seq: int) -> None:
        super().clear(seq)
        self._release(seq, 0)

    def share(self, seq: int, source: int, length: int) -> None:
        super().share(seq, source, length)
        self._kept[seq] = min(self._kept.get(source, 0), length)

    # --- offloading: llama.cpp saves the ids of the last window only, of those layers

    def save(self, seq: int, reuse: SavedState | None = None) -> SavedState:
        """Copy a sequence: its state, and each earlier window as the state of a part."""
        held: int = self.lib.llama_memory_seq_pos_max(self._memory, seq) + 1
        ends = range(held - self._n_swa, 0, -self._n_swa)
        sizes = [self._size(seq, _WHOLE)]
        for end in ends:
            self._part(seq, end)
            sizes.append(self._size(self._spare, self._partial))
        header = np.array([len(sizes), *sizes], _HEADER).view(np.uint8)
        state = np.empty(len(header) + sum(sizes), np.uint8)
        state[: len(header)] = header
        at = len(header)
        self._copy_out(seq, _WHOLE, state[at : at + sizes[0]])
        at += sizes[0]
        for end, size in zip(ends, sizes[1:], strict=True):
            self._part(seq, end)
            self._copy_out(self._spare, self._partial, state[at : at + size])
            at += size
        self._seq_rm(self._memory, self._spare, -1, -1)
        return state

    def _part(self, seq: int, end: int) -> None:
        """Have the spare sequence hold the window before `end` of another one, and no more."""
        self._seq_rm(self._memory, self._spare, -1, -1)
        self._seq_cp(self._memory, seq, self._spare, max(end - self._n_swa, 0), end)

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
        [count] = state[: _HEADER.itemsize].view(_HEADER)
        at = _HEADER.itemsize * (1 + int(count))
        sizes = state[_HEADER.itemsize : at].view(_HEADER).tolist()
        self.clear(seq)
        self._copy_in(seq, _WHOLE, state[at : at + sizes[0]])
        at += sizes[0]
        self._keep(seq, self.lib.llama_memory_seq_pos_max(self._memory, seq) + 1)
        for size in sizes[1:]:
            self._copy_in(self._spare, self._partial, state[at : at + size])
            at += size
            for other in (seq, self._keeper):
                self._seq_cp(self._memory, self._spare, other, -1, -1)
            self._seq_rm(self._memory, self._spare, -1, -1)
        self.remove(seq, length)

    def _copy_in(self, seq: int, flags: int, state: SavedState) -> None:
        pointer = self.pointer(state)
        size = len(state)
        if not self.lib.llama_state_seq_set_data_ext(self._handle, pointer, size, seq, flags):
            self.clear(seq)
            reason = quoted_errors()
            raise EngineError(f"llama.cpp did not restore the state of sequence {seq} ({reason})")
