"""A llama_context: its KV cells and recurrent states, and decodes into them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.kv_slots import GUEST_IDS
from specmesh.engines.base import Trimming, rows_of
from specmesh.engines.llama.hidden import HiddenStates
from specmesh.engines.llama.library import keeping_gil, quiet, quoted_errors
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.llama.params import set_context_options
from specmesh.engines.llama.scratch import align
from specmesh.errors import ConfigError, EngineError, LocalProtocolError, NoRoom

_NO_SLOT = 1
_SCRATCH_BYTES = (
    16  # of a number of a row, in a step's scratch memory; feed-forward layers are wide
)
_INT32_POINTER = ctypes.POINTER(ctypes.c_int32)

SavedState = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """The sizes of a cache.

    n_ctx: most tokens of a sequence.
    shared_cells: that all sequences but guests share. None: `n_ctx` for each.
    rows: most rows of one decode.
    outputs: most rows of one decode that have logits.
    width: rows that steps are filled up to, in cells of each sequence's own, so that a token's
        cell does not depend on other sequences. None: steps are not filled up, and all sequences
        share the cells.
    guests: further sequences, of `guest_ids` tokens.
    drafts: most drafts of a sequence in a step; 0 for a drafter.
    native: rows that a recurrent model is to take back by states that llama.cpp keeps.
    helpers: sequences of the cache's own.
    swa_full: layers with a sliding window have a cell for each id.
    head: the cache is that of the model's NextN layers.
    """

    n_ctx: int
    max_sessions: int
    rows: int
    outputs: int
    threads: int
    width: int | None = None
    guests: int = 0
    guest_ids: int = GUEST_IDS
    drafts: int = 0
    native: int = 0
    helpers: int = 0
    swa_full: bool = True
    shared_cells: int | None = None
    head: bool = False

    @property
    def cells(self) -> int:
        """Return the cells of all sequences."""
        cells = self.shared_cells
        if cells is None:
            ids = self.n_ctx + (self.width or 0)  # rows that fill a step up take cells too
            cells = ids * self.max_sessions
        return cells + self.guest_ids * self.guests

    @property
    def sequences(self) -> int:
        """Return the number of all sequences."""
        return self.max_sessions + self.guests


class NoContext(ConfigError):
    """llama.cpp made no context, probably for want of memory."""


class LlamaCache:
    """A llama_context: the memory of several sequences. Callers check spans (`Sequences`).

    This class takes rows back by removing them from memory; `rollback.Restore` is for models that
    do not allow it. Other Python threads run during llama_decode, and while a GPU is waited for.
    The other calls are too short for that: getting the GIL back from a busy thread takes longer.
    """

    trimming: Trimming = "removal"
    atomic = True
    """A step without room changes nothing."""

    def __init__(self, model: LlamaModel, sizes: CacheSizes) -> None:
        lib = model.lib
        self.lib = lib
        self.cell_bytes = 0  # measured by `rollback.open_cache`
        self.hidden: HiddenStates | None = None
        """Hidden states of all rows, if the model's own head wants them."""
        self._state_flags = 0
        self._get_logits = keeping_gil(lib, "llama_get_logits", ctypes.c_void_p)
        self._seq_rm = keeping_gil(lib, "llama_memory_seq_rm")
        self._seq_cp = keeping_gil(lib, "llama_memory_seq_cp")
        self._shape = (sizes.outputs, model.n_vocab)
        self._address: int = 0
        self._logits = np.empty((0, model.n_vocab), np.float32)
        self._on_gpu = model.on_gpu
        # States and windows that do not grow with a text are apart from the rest.
        self._partial = model.has_states or not sizes.swa_full
        self._handle = _create(model, sizes)
        self._memory = lib.llama_get_memory(self._handle)
        self._rows = sizes.rows
        self._ubatch = int(lib.llama_n_ubatch(self._handle))
        self._width = sizes.width or 0
        self._n_embd = int(lib.llama_model_n_embd(model.handle))
        self._batch = RowBatch(lib, sizes.rows)
        if self._memory is None:
            self.close()
            reason = f"{model.name} keeps no context"
            raise ConfigError(reason, "choose a model that generates text")

    def run(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        """Run one step; return the `outputs` wanted rows in order, valid until the next step.

        Raises EngineError.
        """
        self.decode(spans)
        return self.logits(outputs)

    def trim(self, seq: int, length: int) -> bool:
        """Keep `length` tokens, 0 < length < held; return False if that is out of reach.

        Nothing has changed then. This may only note the length: the next step then brings the
        memory up to date, within its time.
        """
        return self.remove(seq, length)

    def trim_offloaded(self, seq: int, length: int) -> bool:  # noqa: ARG002
        """Return True if an offloaded sequence can have `length` tokens when it is loaded."""
        return True

    def clear(self, seq: int) -> None:
        """Empty a sequence and free its saved states: possible for every model."""
        self.vacate(seq)

    def vacate(self, seq: int) -> None:
        """Empty the cells of a sequence that is loaded again later."""
        self._seq_rm(self._memory, seq, -1, -1)

    def share(self, seq: int, source: int, length: int) -> None:
        """Let the empty `seq` share the cells of the first `length` tokens of `source`.

        Only for attention in shared cells: llama.cpp copies whole sequences otherwise, or ends the
        process.
        """
        self._seq_cp(self._memory, source, seq, 0, length)

    def align_scratch(self) -> None:
        """Have llama.cpp take the memory that a step of all rows computes in, at a good address.

        It is taken when such a step begins, which is then aborted. No sequence holds anything.
        """
        lib = self.lib
        abort = lib.ggml_abort_callback(_abort)
        none = lib.ggml_abort_callback()

        def begin(rows: int) -> None:
            batch = self._batch.fill([Span(0, 0, (0,) * rows, logits=False)])
            lib.llama_set_abort_callback(self._handle, abort, None)
            with quiet():
                lib.llama_decode(self._handle, batch)
            lib.llama_set_abort_callback(self._handle, none, None)

        rows = min(self._rows, self._ubatch)
        align(begin, rows, rows * self._n_embd * _SCRATCH_BYTES)
        self.clear(0)

    def use_threads(self, threads: int) -> None:
        if self._handle is None:
            raise LocalProtocolError("the engine is closed")
        self.lib.llama_set_n_threads(self._handle, threads, threads)

    def close(self) -> None:
        handle = self._handle
        self._handle = None
        if handle is not None:
            self.lib.llama_free(handle)

    # --- llama.cpp's own calls

    def decode(self, spans: Sequence[Span]) -> None:
        """Call llama_decode for all spans; after an EngineError any number of rows are held."""
        code = self.lib.llama_decode(self._handle, self._batch.fill(spans))
        if code == 0:
            if self.hidden is not None:
                self.hidden.take(spans)
            return
        rows = rows_of(spans)
        if code == _NO_SLOT:
            raise NoRoom(f"llama.cpp found no room in its cache for a step of {rows} rows")
        reason = f"code {code}: {quoted_errors()}"
        raise EngineError(f"llama.cpp failed in a step of {rows} rows ({reason})")

    def show_hidden(self, model: LlamaModel) -> HiddenStates:
        """Keep the hidden states of all rows from the next decode on."""
        width = int(self.lib.llama_model_n_embd_out(model.handle))
        self.hidden = HiddenStates(
            self.lib, self._handle, width=width, rows=self._rows, on_gpu=self._on_gpu
        )
        return self.hidden

    def read(self, span: Span) -> None:
        """Decode a span without logits in parts. Raises EngineError."""
        for start in range(0, len(span.ids), self._rows):
            ids = span.ids[start : start + self._rows]
            self.decode([Span(span.seq, span.position + start, ids, logits=False)])

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Return the wanted logits of the last decode, valid until the next.

        They are llama.cpp's own memory.
        """
        if self._on_gpu or rows == 0:  # callers time steps, also those without logits
            self.lib.llama_synchronize(self._handle)
        if rows == 0:
            return self._logits[:0]
        address = self._get_logits(self._handle)
        if not address:
            raise EngineError("llama.cpp returned no logits")
        if address != self._address:
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._logits = np.ctypeslib.as_array(pointer, self._shape)
            self._address = address
        return self._logits[:rows]

    def remove(self, seq: int, length: int) -> bool:
        """Keep the first `length` tokens of a sequence; return False if the model cannot.

        Nothing has changed then.
        """
        return bool(self._seq_rm(self._memory, seq, length, -1))

    def size_of(self, seq: int) -> int:
        """Return the bytes of a sequence's state."""
        size: int = self.lib.llama_state_seq_get_size_ext(self._handle, seq, self._state_flags)
        return size

    def save(self, seq: int, reuse: SavedState | None = None) -> SavedState:
        """Copy a sequence's state, into `reuse` if it fits. Raises EngineError."""
        size = self.size_of(seq)
        state = reuse
        if state is None or len(state) != size:
            state = np.empty(size, np.uint8)
        written = 0
        if size:
            written = self.lib.llama_state_seq_get_data_ext(
                self._handle, self.pointer(state), size, seq, self._state_flags
            )
        if size == 0 or written != size:
            reason = quoted_errors()
            raise EngineError(f"llama.cpp did not save the state of sequence {seq} ({reason})")
        return state

    def end(self, seq: int) -> int:
        """Return the position after the last token of a sequence."""
        return int(self.lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def attention_bytes(self, seq: int) -> int:
        """Return the bytes of a sequence's state that grow with its tokens."""
        size: int = self.lib.llama_state_seq_get_size_ext(self._handle, seq, 0)
        if self._partial:
            flags = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
            size -= int(self.lib.llama_state_seq_get_size_ext(self._handle, seq, flags))
        return size

    @staticmethod
    def pointer(state: SavedState) -> Any:
        """Return the address of a state, as llama.cpp takes it."""
        return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))

    def load(self, seq: int, length: int, state: SavedState | None) -> None:
        """Restore the `length` tokens that a sequence held when `state` was saved.

        A state of None: no tokens. After an EngineError the sequence's state is unknown.
        """
        if state is None:
            self._seq_rm(self._memory, seq, -1, -1)
            return
        done = self.lib.llama_state_seq_set_data_ext(
            self._handle, self.pointer(state), len(state), seq, self._state_flags
        )
        if not done or not self.remove(seq, length):
            reason = quoted_errors()
            raise EngineError(f"llama.cpp did not restore the state of sequence {seq} ({reason})")


def _abort(_user: object) -> bool:
    """Return True: a step that asks ends."""
    return True


def _create(model: LlamaModel, sizes: CacheSizes) -> Any:
    params = model.lib.llama_context_default_params()
    params.n_ctx = sizes.cells
    params.n_batch = sizes.rows
    params.n_seq_max = sizes.sequences + sizes.helpers
    params.n_outputs_max = max(sizes.outputs, params.n_seq_max)
    params.n_threads = params.n_threads_batch = sizes.threads
    set_context_options(params, model.options)
    params.kv_unified = sizes.width is None
    params.swa_full = sizes.swa_full
    if sizes.head:
        params.ctx_type = model.lib.LLAMA_CONTEXT_TYPE_MTP
    params.n_rs_seq = sizes.native
    params.no_perf = True
    handle = model.lib.llama_init_from_model(model.handle, params)
    if handle is None:
        reason = f"no context of {sizes.cells} tokens for {model.name} ({quoted_errors()})"
        raise NoContext(reason, "give a smaller --ctx, --kv-cache or --max-sessions")
    try:
        model.adapt(handle)
    except ConfigError:
        model.lib.llama_free(handle)
        raise
    return handle


class RowBatch:
    """A llama_batch of `capacity` rows, each in one sequence; refilled for every step.

    ctypes arrays take a few items in less time than numpy's.
    """

    def __init__(self, lib: Any, capacity: int, width: int = 0) -> None:
        """Reserve memory; width: of a hidden state of each row, 0 if rows have none."""
        self.states = np.empty((capacity, width), np.float32)
        int32s: Any = ctypes.c_int32 * capacity
        self._ids = int32s()
        self._positions = int32s()
        self._seqs = int32s()
        self._wanted: Any = (ctypes.c_int8 * capacity)()
        seqs = (_INT32_POINTER * capacity)()
        first = ctypes.addressof(self._seqs)
        for row in range(capacity):
            seqs[row] = ctypes.cast(first + 4 * row, _INT32_POINTER)
        counts = int32s(*(1,) * capacity)
        states = None
        if width:
            states = self.states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        columns = (self._ids, states, self._positions, counts, seqs, self._wanted)
        self._batch = lib.llama_batch(0, *columns)

    def fill(self, spans: Sequence[Span]) -> Any:
        """Write the rows of a step, and return the llama_batch."""
        end = 0
        for span in spans:
            count = len(span.ids)
            start = end
            end += count
            self._ids[start:end] = span.ids
            self._positions[start:end] = range(span.position, span.position + count)
            self._seqs[start:end] = (span.seq,) * count
            self._wanted[start:end] = (span.logits,) * count
        self._batch.n_tokens = end
        return self._batch
