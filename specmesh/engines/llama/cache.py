"""A llama_context: its KV cells and recurrent states, and decodes into them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.engines.llama.library import quoted_errors
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import ConfigError, EngineError

_NO_SLOT = 1

SavedState = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """What to reserve.

    n_ctx:     tokens per sequence.
    rows:      most rows of one decode; outputs: most of those with logits.
    snapshots: states of recurrent layers that llama.cpp keeps per sequence for rollback.
    width:     rows that steps are filled up to, in cells of each sequence's own, so that a token's cell does not depend
               on other sequences; None: no filling, and all sequences share the cells.
    """

    n_ctx: int
    n_seq: int
    rows: int
    outputs: int
    threads: int
    snapshots: int = 0
    width: int | None = None

    @property
    def cells(self) -> int:
        """Rows to be rolled back take cells too, and those that fill a step up."""
        return (self.n_ctx + self.snapshots + (self.width or 0)) * self.n_seq


class LlamaCache:
    """A llama_context: the memory of several sequences. Callers check that it is open, and spans (`Sequences`).

    `snapshots`: what llama.cpp granted; 0 where the architecture does not know how.
    """

    def __init__(self, model: LlamaModel, sizes: CacheSizes) -> None:
        """Reserve the memory. Raises ConfigError."""
        self.lib = model.lib
        self._partial = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._address, self._logits = 0, np.empty((0, model.n_vocab), np.float32)
        self._n_vocab = model.n_vocab
        self._handle = _create(model, sizes)
        self._memory = self.lib.llama_get_memory(self._handle)
        self._rows = sizes.rows
        self._batch = _Batch(self.lib, sizes.rows)
        self.snapshots: int = self.lib.llama_n_rs_seq(self._handle)
        if self._memory is None:
            self.close()
            raise ConfigError(f"{model.name} keeps no context: choose a model that generates text")

    def run(self, spans: Sequence[Span]) -> None:
        """One llama_decode over all spans; after an EngineError any number of the rows are held."""
        code = self.lib.llama_decode(self._handle, self._batch.fill(spans)) if spans else 0
        if code != 0:
            rows = sum(len(span.ids) for span in spans)
            if code == _NO_SLOT:
                raise EngineError(f"llama.cpp found no room in its cache for a step of {rows} rows")
            raise EngineError(f"llama.cpp failed in a step of {rows} rows (code {code}: {quoted_errors()})")

    def read(self, span: Span) -> None:
        """Decode a span without logits in parts. Raises EngineError."""
        for at in range(0, len(span.ids), self._rows):
            self.run([Span(span.seq, span.position + at, span.ids[at : at + self._rows], logits=False)])

    def use_threads(self, threads: int) -> None:
        self.lib.llama_set_n_threads(self._handle, threads, threads)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Return the wanted logits of the last run: llama.cpp's own memory, valid until the next."""
        if rows == 0:
            # A step without logits may still be running on a GPU; callers time steps.
            self.lib.llama_synchronize(self._handle)
            return self._logits[:0]
        pointer = self.lib.llama_get_logits(self._handle)
        if not pointer:
            raise EngineError("llama.cpp returned no logits")
        address = ctypes.addressof(pointer.contents)
        if address != self._address or rows > len(self._logits):
            self._address = address
            self._logits = np.ctypeslib.as_array(pointer, shape=(rows, self._n_vocab))
        return self._logits[:rows]

    def remove(self, seq: int, length: int) -> bool:
        """Keep the first `length` tokens of a sequence; False, with nothing changed, where the model cannot.

        With `snapshots` True for up to so many recurrent rows, whether or not the last run wrote that many states.
        """
        return bool(self.lib.llama_memory_seq_rm(self._memory, seq, length, -1))

    def forget(self, seq: int) -> None:
        """Empty a sequence: possible for every model."""
        self.lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def share(self, seq: int, source: int, length: int) -> None:
        """Let the empty `seq` share the cells of the first `length` tokens of `source`. Only for attention in shared
        cells: llama.cpp copies whole sequences otherwise, or ends the process."""
        self.lib.llama_memory_seq_cp(self._memory, source, seq, 0, length)

    def save(self, seq: int, reuse: SavedState | None = None) -> SavedState:
        """Copy a sequence's state but for attention's part, which `remove` can cut; into `reuse` where it fits.

        Raises EngineError.
        """
        size: int = self.lib.llama_state_seq_get_size_ext(self._handle, seq, self._partial)
        try:
            state = reuse if reuse is not None and len(reuse) == size else np.empty(size, np.uint8)
        except MemoryError as error:
            raise EngineError(f"no memory for {size} bytes of a sequence's state ({error})") from None
        get = self.lib.llama_state_seq_get_data_ext
        if size == 0 or get(self._handle, _pointer(state), size, seq, self._partial) != size:
            raise EngineError(f"llama.cpp did not save the state of sequence {seq} ({quoted_errors()})")
        return state

    def load(self, seq: int, length: int, state: SavedState | None) -> None:
        """Restore the `length` tokens that a sequence held when `state` was saved (None: nothing).

        After an EngineError its state is unknown.
        """
        if state is None:
            self.forget(seq)
            return
        done = self.lib.llama_state_seq_set_data_ext(self._handle, _pointer(state), len(state), seq, self._partial)
        if not done or not self.remove(seq, length):
            raise EngineError(f"llama.cpp did not restore the state of sequence {seq} ({quoted_errors()})")

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self.lib.llama_free(handle)

    @property
    def closed(self) -> bool:
        return self._handle is None


def _pointer(state: SavedState) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _create(model: LlamaModel, sizes: CacheSizes) -> Any:
    params = model.lib.llama_context_default_params()
    params.n_ctx = sizes.cells
    params.n_batch = params.n_ubatch = sizes.rows
    params.n_seq_max = sizes.n_seq
    params.n_rs_seq = sizes.snapshots
    params.n_outputs_max = sizes.outputs
    params.n_threads = params.n_threads_batch = sizes.threads
    params.flash_attn_type = model.lib.LLAMA_FLASH_ATTN_TYPE_AUTO
    params.kv_unified = sizes.width is None
    # A window-sized cache would let a deep cut succeed and then attend to ids it has dropped.
    params.swa_full = True
    params.no_perf = True
    handle = model.lib.llama_init_from_model(model.handle, params)
    if handle is None:
        raise ConfigError(
            f"no context of {sizes.n_ctx} ids x {sizes.n_seq} sequences for {model.name} "
            f"({quoted_errors()}): choose a smaller context or fewer sequences"
        )
    return handle


class _Batch:
    """A llama_batch of `capacity` rows, each in one sequence; refilled for every step."""

    def __init__(self, lib: Any, capacity: int) -> None:
        self._ids = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._seqs = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        int32 = ctypes.POINTER(ctypes.c_int32)
        start = self._seqs.ctypes.data
        self._seq_pointers = (int32 * capacity)(*(ctypes.cast(start + 4 * row, int32) for row in range(capacity)))
        ids, positions, counts = (array.ctypes.data_as(int32) for array in (self._ids, self._positions, self._counts))
        wanted = self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch = lib.llama_batch(0, ids, None, positions, counts, self._seq_pointers, wanted)

    def fill(self, spans: Sequence[Span]) -> Any:
        end = 0
        for span in spans:
            row, end = end, end + len(span.ids)
            self._ids[row:end] = span.ids
            self._positions[row:end] = np.arange(span.position, span.end)
            self._seqs[row:end] = span.seq
            self._wanted[row:end] = span.logits
        self._batch.n_tokens = end
        return self._batch
