"""Sequences of a llama.cpp model: the steps that extend them, and cutting them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.core.places import Reuse
from specmesh.engines.base import EngineInfo, Span, context_of
from specmesh.engines.llama_cache import CacheSizes
from specmesh.engines.llama_model import LlamaModel, LlamaSettings
from specmesh.engines.llama_probe import open_cache
from specmesh.engines.llama_resting import Resting
from specmesh.engines.llama_separate import SeparateMemories
from specmesh.engines.llama_width import ConstantWidth
from specmesh.engines.sequences import Sequences
from specmesh.errors import ConfigError, EngineError, LocalProtocolError
from specmesh.host import physical_cores

_log = structlog.get_logger("specmesh.engines.llama")

_MAX_CELLS = 2**31 - 1


class LlamaContext:
    """Sequences of one model in one unified KV cache; used from one thread.

    n_outputs: most rows of logits of one step.
    rollback:  how many rows of a step are taken back at most; 0 for a drafter.
    width:     rows of every step with logits, see `ConstantWidth`; None for as many as are asked for.
    """

    def __init__(
        self, model: LlamaModel, settings: LlamaSettings, n_outputs: int, rollback: int, width: int | None = None
    ) -> None:
        """Reserve the cache; raises ConfigError where memory or the model do not allow it."""
        self._model = model
        n_ctx = _context_size(settings, model.lib.llama_model_n_ctx_train(model.handle))
        n_batch = max(min(settings.n_batch, n_ctx * settings.n_seq), settings.n_seq)
        rows = max(n_batch, 2, width or 0)
        n_batch += (width or 0) * settings.n_seq  # a prompt's rows fit beside everybody's step
        self._n_outputs = min(max(n_outputs, settings.n_seq), n_batch)
        threads = settings.threads or physical_cores()
        # llama.cpp wants a row of logits for each sequence.
        outputs = self._n_outputs if width is None else max(width, settings.n_seq)
        unified = settings.kv_unified and width is None
        sizes = CacheSizes(n_ctx, settings.n_seq, rows, outputs, threads, width=width, unified=unified)
        self.cache, self.rewind = open_cache(model, sizes, rollback)
        self._constant = self._of_width(width, rows) if width is not None else None
        trimming, reuse = self.rewind.trimming, self._reuse(unified)
        here = reuse == "copied" and not settings.rpc  # cells of other machines would cross the network twice
        self.sequences = Sequences(settings.n_seq, n_ctx, model.n_vocab, trees=here)
        self.resting = Resting(self.cache, self.sequences, settings.n_seq) if here else None
        separate = not unified and width is None and trimming == "removal"
        self.info = EngineInfo(
            model.name,
            n_ctx,
            n_batch,
            settings.n_seq,
            trimming,
            model.backend if model.on_gpu else _on_cpu(threads),
            width,
            reuse,
            batches=trimming == "removal",
            trees=here,
            separate=separate,
            n_outputs=self._n_outputs,
            threads=0 if model.on_gpu else threads,
        )
        self._separate = SeparateMemories(self.cache, self.sequences, rows) if separate else None

    def _of_width(self, width: int, rows: int) -> ConstantWidth:
        if self.rewind.trimming == "removal":
            return ConstantWidth(self.cache, width, rows)
        self.cache.close()
        raise ConfigError(
            f"{self._model.name} keeps states that rows cannot be removed from, so its steps cannot be filled up to "
            "one width: leave --reproducible out"
        )

    def _reuse(self, unified: bool) -> Reuse:
        """What is left of a sequence long after its steps.

        With a sliding window llama.cpp gives the cells that have left it to other sequences, so that one can only be
        gone on with. Cells of a sequence's own are not shared.
        """
        if self.rewind.trimming != "removal" or self._model.lib.llama_model_n_swa(self._model.handle) > 0:
            return "whole"
        return "copied" if unified else "cut"

    def decode(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """One step over all spans; the wanted logits in order, float32 (rows with logits, n_vocab).

        The array is llama.cpp's own memory, valid until the next call. Raises LocalProtocolError for spans
        that cannot be, with nothing done; EngineError when llama.cpp fails, with the sequences cut back to
        what they held before (to nothing, where that cannot be known).
        """
        self._check_open()
        self.sequences.check_step(spans, self.info.n_batch, self._n_outputs)
        if self.resting is not None:
            self.resting.step({seq for span in spans for seq in span.seqs})
        try:
            logits = self._run(spans)
        except EngineError:
            for seq in {seq for span in spans for seq in span.seqs}:
                self.sequences.set(seq, self.rewind.recover(seq, self.sequences.held(seq)))
            raise
        self.rewind.done(spans)
        for span in spans:
            for seq, length in span.ends.items():
                self.sequences.set(seq, length)
        return logits

    def _run(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        if self._constant is not None:
            return self._constant.run(spans)
        prepared = self.rewind.prepare(spans)
        if self._separate is not None:
            self._separate.run(prepared)
        else:
            self.cache.run(prepared)
        return self.cache.logits(sum(span.rows for span in spans if span.logits))

    def use_threads(self, threads: int) -> None:
        self.cache.use_threads(threads)
        if not self._model.on_gpu:
            self.info = replace(self.info, threads=threads, backend=_on_cpu(threads))

    def trim(self, seq: int, length: int) -> bool:
        """Keep the first `length` ids of a sequence; False, with nothing changed, where the model cannot.

        Raises LocalProtocolError unless 0 <= length <= held.
        """
        self._check_open()
        held = self.sequences.check_trim(seq, length)
        if self.resting is not None and length < held:
            self.resting.wake(seq) if length else self.resting.drop(seq)
        if length == 0:
            self.rewind.clear(seq)
        elif length < held and not self.rewind.trim(seq, length):
            return False
        self.sequences.set(seq, length)
        return True

    def copy(self, seq: int, source: int, length: int) -> None:
        self._check_open()
        if self.info.reuse != "copied":
            raise LocalProtocolError(f"sequences of {self.info.model} cannot share ids")
        self.sequences.check_copy(seq, source, length)
        if self.resting is not None:
            self.resting.wake(source)
        self.cache.share(seq, source, length)
        self.sequences.set(seq, length)

    @property
    def saved_bytes(self) -> int:
        return self.resting.size if self.resting is not None else 0

    def close(self) -> None:
        self.cache.close()
        self._model.close()

    def _check_open(self) -> None:
        if self.cache.closed:
            raise EngineError("the engine is closed")


def _on_cpu(threads: int) -> str:
    return f"CPU, {threads} threads"


def _context_size(settings: LlamaSettings, trained: int) -> int:
    n_ctx = context_of(settings.n_ctx, trained)
    if n_ctx * settings.n_seq > _MAX_CELLS:  # llama.cpp's 32-bit count would wrap around
        raise ConfigError(f"{n_ctx} ids x {settings.n_seq} sequences: choose a smaller context")
    if n_ctx > trained:
        _log.warning("context_beyond_training", n_ctx=n_ctx, trained=trained)
    return n_ctx
