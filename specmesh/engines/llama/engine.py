"""llama.cpp as verifier and as drafter."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.scheduling.kv_slots import KVReuse
from specmesh.core.session_params import ChatMessage
from specmesh.engines.base import Ask, EngineInfo, Progress, Sequences, context_of, physical_cores
from specmesh.engines.llama.cache import CacheSizes, LlamaCache
from specmesh.engines.llama.model import LlamaModel, LlamaSettings
from specmesh.engines.llama.rollback import open_cache
from specmesh.errors import ConfigError, EngineError, LocalProtocolError

_log = structlog.get_logger("specmesh.engines.llama")

CPU_ROWS, GPU_ROWS = 4, 8
"""Rows of a reproducible step: on a GPU eight cost hardly more than one; on a CPU they cost 1.5 to 3 times as much,
four 1.1 to 1.7 times. Some kernels take rows in fours, and the rest in another way. They must not depend on
measurements: the next start could bring others."""

_MAX_CELLS = 2**31 - 1
_PROBED_CTX, _PROBED_ROWS = 16, 4


class LlamaEngine:
    """A model and its sequences.

    n_outputs: most rows of logits of one step.
    rollback:  most rows of a step that are taken back; 0 for a drafter.
    """

    def __init__(
        self, settings: LlamaSettings, n_outputs: int = 1, rollback: int = 0, progress: Progress | None = None
    ) -> None:
        """Load the model and reserve its cache. Raises ConfigError, or EngineError when cancelled."""
        self._model = LlamaModel(settings, progress)
        try:
            self._reserve(settings, n_outputs, rollback)
        except BaseException:
            self._model.close()
            raise

    def _reserve(self, settings: LlamaSettings, n_outputs: int, rollback: int) -> None:
        model, n_seq = self._model, settings.n_seq
        width = None
        if settings.reproducible and rollback:
            width = GPU_ROWS if model.on_gpu else CPU_ROWS
            n_outputs, rollback = n_seq * width, width - 1
        n_ctx = _context_size(settings, model.lib.llama_model_n_ctx_train(model.handle))
        n_batch = max(min(settings.n_batch, n_ctx * n_seq), n_seq)
        rows = max(n_batch, 2, width or 0)
        n_batch += (width or 0) * n_seq  # a prompt's rows fit beside everybody's step
        self._n_outputs = min(max(n_outputs, n_seq), n_batch)
        threads = settings.threads or physical_cores()
        # llama.cpp wants a row of logits for each sequence.
        outputs = self._n_outputs if width is None else max(width, n_seq)
        sizes = CacheSizes(n_ctx, n_seq, rows, outputs, threads, width=width)
        self._cache, self._rewind = open_cache(model, sizes, rollback)
        if width is not None and self._rewind.trimming != "removal":
            self._cache.close()
            raise ConfigError(
                f"{model.name} keeps states that rows cannot be removed from, so its steps cannot be filled up to "
                "one width: leave --reproducible out"
            )
        self._fixed = FixedWidth(self._cache, width) if width is not None else None
        self._sequences = Sequences(n_seq, n_ctx, model.n_vocab)
        # With a sliding window llama.cpp gives the cells that have left it to other sequences.
        reuse: KVReuse = "copied" if width is None else "cut"
        if self._rewind.trimming != "removal" or model.lib.llama_model_n_swa(model.handle) > 0:
            reuse = "whole"
        self.vocabulary = model.vocabulary
        self.info = EngineInfo(
            model.name,
            n_ctx,
            n_batch,
            n_seq,
            self._rewind.trimming,
            model.backend if model.on_gpu else _on_cpu(threads),
            width,
            reuse,
            batches=not rollback and self._rewind.trimming == "removal",
            n_outputs=self._n_outputs,
            threads=0 if model.on_gpu else threads,
        )

    def use_threads(self, threads: int) -> None:
        self._check_open()
        self._cache.use_threads(threads)
        if not self._model.on_gpu:
            self.info = replace(self.info, threads=threads, backend=_on_cpu(threads))

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def close(self) -> None:
        self._cache.close()
        self._model.close()

    def _decode(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """Run one step; return the wanted logits in order, float32 (rows with logits, n_vocab).

        After an EngineError each sequence holds what it held before, or nothing.
        """
        self._check_open()
        self._sequences.check_step(spans, self.info.n_batch, self._n_outputs)
        try:
            if self._fixed is not None:
                logits = self._fixed.run(spans)
            else:
                self._cache.run(self._rewind.prepare(spans))
                logits = self._cache.logits(sum(len(span.ids) for span in spans if span.logits))
        except EngineError:
            for seq in {span.seq for span in spans}:
                self._sequences.set(seq, self._rewind.recover(seq, self._sequences.held(seq)))
            raise
        self._rewind.done(spans)
        for span in spans:
            self._sequences.set(span.seq, span.end)
        return logits

    def _trim(self, seq: int, length: int) -> bool:
        """Keep the first `length` tokens of a sequence; False, with nothing changed, where the model cannot."""
        self._check_open()
        held = self._sequences.check_trim(seq, length)
        if length == 0:
            self._rewind.clear(seq)
        elif length < held and not self._rewind.trim(seq, length):
            return False
        self._sequences.set(seq, length)
        return True

    def _check_open(self) -> None:
        if self._cache.closed:
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


class FixedWidth:
    """Steps of one constant width, whose logits depend on nothing but the tokens before them.

    Kernels are chosen by the number of rows of a decode, and round differently; and attention sums over cells wherever
    there was room. So each sequence is decoded on its own, in cells of its own, and rows with logits are filled up to
    `width` by rows after them, to which no row attends and which are removed.
    """

    def __init__(self, cache: LlamaCache, width: int) -> None:
        self._cache, self._width = cache, width

    def run(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """As `LlamaEngine._decode`. Raises LocalProtocolError for a span with logits that is too wide."""
        for span in spans:
            if span.logits and len(span.ids) > self._width:
                raise LocalProtocolError(f"a span of {len(span.ids)} rows with logits: each step has {self._width}")
        shown: list[NDArray[np.float32]] = []
        for span in spans:
            if not span.logits:
                self._cache.read(span)
                continue
            rows = self._step(span)
            shown.append(rows if span is spans[-1] else rows.copy())
        return shown[0] if len(shown) == 1 else np.concatenate(shown or [self._cache.logits(0)])

    def _step(self, span: Span) -> NDArray[np.float32]:
        missing = self._width - len(span.ids)
        filling = [Span(span.seq, span.end, (0,) * missing, logits=True)] if missing else []
        self._cache.run([span, *filling])
        if missing and not self._cache.remove(span.seq, span.end):
            raise EngineError(f"llama.cpp did not remove what filled a step of sequence {span.seq} up")
        return self._cache.logits(self._width)[: len(span.ids)]


def probe_trim(path: Path) -> bool:
    """Load a model, weights and all, and return whether rows can be taken back. Raises ConfigError."""
    settings = LlamaSettings(path, n_ctx=_PROBED_CTX, n_batch=_PROBED_CTX, gpu_layers=0)
    engine = LlamaEngine(settings, rollback=_PROBED_ROWS)
    engine.close()
    return engine.info.can_trim


class LlamaVerifier(LlamaEngine):
    """A GGUF target model, `VerifyEngine` by llama.cpp.

    One step has up to n_batch rows, n_seq * (max_draft + 1) of them with logits, or n_seq * info.width.
    """

    def __init__(self, settings: LlamaSettings, progress: Progress | None = None) -> None:
        most = settings.max_draft + 1
        super().__init__(settings, settings.n_seq * most, max(settings.max_draft, 1), progress)
        try:
            self._model.load_template(settings.chat_template)
        except ConfigError:
            self.close()
            raise

    def encode_chat(self, messages: Sequence[ChatMessage], *, continued: bool = False) -> list[int]:
        return self.encode(self._model.chat_text(messages, continued=continued))

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        rows: list[NDArray[np.float32] | None] = []
        block, end = self._decode(spans), 0
        for span in spans:
            start, end = end, end + len(span.ids) * span.logits
            rows.append(block[start:end] if span.logits else None)
        return rows

    def trim(self, seq: int, length: int) -> None:
        if not self._trim(seq, length):
            raise EngineError(f"{self.info.model} cannot remove so much of a sequence (cut {seq} to {length})")

    def copy(self, seq: int, source: int, length: int) -> None:
        self._check_open()
        if self.info.reuse != "copied":
            raise LocalProtocolError(f"sequences of {self.info.model} cannot share ids")
        self._sequences.check_copy(seq, source, length)
        self._cache.share(seq, source, length)
        self._sequences.set(seq, length)


class LlamaDrafter(LlamaEngine):
    """A GGUF draft model, `DraftEngine` and `Encoder` by llama.cpp."""

    def __init__(self, settings: LlamaSettings, progress: Progress | None = None) -> None:
        super().__init__(settings, progress=progress)

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        return self.predict_many([Ask(seq, tuple(ids), sampler)])[0]

    def predict_many(self, asks: Sequence[Ask]) -> list[int | None]:
        spans: list[Span] = []
        ends: list[int] = []
        for ask in asks:
            start = self._sequences.check_append(ask.seq, ask.ids, self.info.n_batch)
            *body, last = ask.ids
            end = start + len(ask.ids)
            if body:
                spans.append(Span(ask.seq, start, tuple(body), logits=False))
            spans.append(Span(ask.seq, end - 1, (last,), logits=ask.sampler is not None))
            ends.append(end)
        rows = iter(self._decode(spans))
        pairs = zip(asks, ends, strict=True)
        return [None if ask.sampler is None else ask.sampler.choose(next(rows), end) for ask, end in pairs]

    def trim(self, seq: int, length: int) -> int:
        """As `DraftEngine.trim`: a sequence that cannot be cut so far back is emptied."""
        if not self._trim(seq, self._sequences.check_cut(seq, length)):
            self._trim(seq, 0)
        return self._sequences.held(seq)
