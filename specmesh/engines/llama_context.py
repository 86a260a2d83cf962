"""A llama.cpp context: the KV cache of several sequences and the steps that extend and cut it."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.engines.base import EngineInfo, Span
from specmesh.engines.llama_model import LlamaModel, LlamaSettings, physical_cores, quoted_errors
from specmesh.engines.sequences import Sequences
from specmesh.errors import ConfigError, EngineError

_log = structlog.get_logger("specmesh.engines.llama")

_NO_SLOT = 1
_MAX_CELLS = 2**31 - 1


class LlamaContext:
    """Sequences of one model in one unified KV cache; used from one thread.

    n_outputs: most rows of logits of one step.
    """

    def __init__(self, model: LlamaModel, settings: LlamaSettings, n_outputs: int) -> None:
        """Reserve the cache; raises ConfigError where memory or the model do not allow it."""
        self._lib = model.lib
        self._model = model
        n_ctx = _context_size(settings, self._lib.llama_model_n_ctx_train(model.handle))
        n_batch = max(min(settings.n_batch, n_ctx * settings.n_seq), settings.n_seq)
        self._n_outputs = min(max(n_outputs, settings.n_seq), n_batch)
        self._handle = self._create(settings, n_ctx, n_batch)
        self._memory = self._lib.llama_get_memory(self._handle)
        self._batch = _Batch(self._lib, max(n_batch, 2))
        self.sequences = Sequences(settings.n_seq, n_ctx, model.n_vocab)
        try:
            can_trim = self._probe_trim()
        except ConfigError:
            self.close()
            raise
        self.info = EngineInfo(model.name, n_ctx, n_batch, settings.n_seq, can_trim, model.backend)

    def decode(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """One step over all spans; the wanted logits in order, float32 (rows with logits, n_vocab).

        The array is llama.cpp's own memory, valid until the next call. Raises LocalProtocolError for spans
        that cannot be, with nothing done; EngineError when llama.cpp fails, with the sequences cut back to
        what they held before (to nothing, where the model cannot be cut).
        """
        self._check_open()
        self.sequences.check_step(spans, self.info.n_batch, self._n_outputs)
        code = self._lib.llama_decode(self._handle, self._batch.fill(spans)) if spans else 0
        if code != 0:
            self._restore({span.seq for span in spans})
            raise EngineError(_decode_failure(code, sum(len(span.ids) for span in spans)))
        for span in spans:
            self.sequences.set(span.seq, span.position + len(span.ids))
        return self._logits(sum(len(span.ids) for span in spans if span.logits))

    def trim(self, seq: int, length: int) -> bool:
        """Keep the first `length` ids of a sequence; False, with nothing changed, where the model cannot.

        Raises LocalProtocolError unless 0 <= length <= held.
        """
        self._check_open()
        if length == self.sequences.check_trim(seq, length):
            return True
        if not self._lib.llama_memory_seq_rm(self._memory, seq, length, -1):
            return False
        self.sequences.set(seq, length)
        return True

    def close(self) -> None:
        """Free the cache and then the model; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.llama_free(handle)
        self._model.close()

    def _create(self, settings: LlamaSettings, n_ctx: int, n_batch: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = n_ctx * settings.n_seq
        params.n_batch = params.n_ubatch = n_batch
        params.n_seq_max = settings.n_seq
        params.n_outputs_max = self._n_outputs
        params.n_threads = params.n_threads_batch = settings.threads or physical_cores()
        params.flash_attn_type = self._lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        params.kv_unified = True
        # A window-sized cache would let a deep cut succeed and then attend to ids it has dropped.
        params.swa_full = True
        params.no_perf = True
        handle = self._lib.llama_init_from_model(self._model.handle, params)
        if handle is None:
            raise ConfigError(
                f"no context of {n_ctx} ids x {settings.n_seq} sequences for {self._model.name} "
                f"({quoted_errors()}): choose a smaller context or fewer sequences"
            )
        return handle

    def _probe_trim(self) -> bool:
        """Whether part of a sequence can be removed; also pays what only the very first step costs."""
        if self._memory is None:
            raise ConfigError(f"{self._model.name} keeps no context: choose a model that generates text")
        code = self._lib.llama_decode(self._handle, self._batch.fill([Span(0, 0, (0, 0), logits=False)]))
        if code != 0:
            raise ConfigError(f"{self._model.name} does not run: {_decode_failure(code, 2)}")
        can_trim = bool(self._lib.llama_memory_seq_rm(self._memory, 0, 1, -1))
        self._lib.llama_memory_clear(self._memory, True)
        return can_trim

    def _restore(self, touched: set[int]) -> None:
        """Cut sequences back to their recorded lengths: after a failure part of a step may be left."""
        for seq in touched:
            if not self._lib.llama_memory_seq_rm(self._memory, seq, self.sequences.held(seq), -1):
                self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
                self.sequences.set(seq, 0)

    def _logits(self, rows: int) -> NDArray[np.float32]:
        if rows == 0:
            # A step without logits may still be running on a GPU; callers time steps.
            self._lib.llama_synchronize(self._handle)
            return np.empty((0, self._model.n_vocab), np.float32)
        pointer = self._lib.llama_get_logits(self._handle)
        if not pointer:
            raise EngineError("llama.cpp returned no logits")
        return np.ctypeslib.as_array(pointer, shape=(rows, self._model.n_vocab))

    def _check_open(self) -> None:
        if self._handle is None:
            raise EngineError("the engine is closed")


def _context_size(settings: LlamaSettings, trained: int) -> int:
    n_ctx = settings.n_ctx or trained
    if n_ctx * settings.n_seq > _MAX_CELLS:  # llama.cpp's 32-bit count would wrap around
        raise ConfigError(f"{n_ctx} ids x {settings.n_seq} sequences: choose a smaller context")
    if n_ctx > trained:
        _log.warning("context_beyond_training", n_ctx=n_ctx, trained=trained)
    return n_ctx


def _decode_failure(code: int, rows: int) -> str:
    if code == _NO_SLOT:
        return f"llama.cpp found no room in its cache for a step of {rows} rows"
    return f"llama.cpp failed in a step of {rows} rows (code {code}: {quoted_errors()})"


class _Batch:
    """One llama_batch over arrays of `capacity` rows, each row in one sequence; refilled for every step."""

    def __init__(self, lib: Any, capacity: int) -> None:
        self._ids = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._seqs = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        start = self._seqs.ctypes.data
        self._seq_pointers = (ctypes.POINTER(ctypes.c_int32) * capacity)(
            *(ctypes.cast(start + 4 * row, ctypes.POINTER(ctypes.c_int32)) for row in range(capacity))
        )
        self._batch = lib.llama_batch(
            0,
            self._ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            None,
            self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            self._seq_pointers,
            self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, spans: Sequence[Span]) -> Any:
        """The llama_batch of these spans, valid until the next call."""
        row = 0
        for span in spans:
            end = row + len(span.ids)
            self._ids[row:end] = span.ids
            self._positions[row:end] = range(span.position, span.position + len(span.ids))
            self._seqs[row:end] = span.seq
            self._wanted[row:end] = span.logits
            row = end
        self._batch.n_tokens = row
        return self._batch
