"""llama.cpp as verifier and as drafter."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.events import Span
from specmesh.core.kv_slots import KVReuse
from specmesh.engines.base import Ask, EngineInfo, Progress, Sequences, context_of, physical_cores
from specmesh.engines.chat_template import MAX_TEMPLATE
from specmesh.engines.llama.cache import CacheSizes, SavedState
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.llama.rollback import open_cache
from specmesh.errors import ConfigError, EngineError, LocalProtocolError
from specmesh.paths import read_text

_log = structlog.get_logger("specmesh.engines.llama")

CPU_ROWS, GPU_ROWS = 4, 8
"""Rows of a reproducible step: on a GPU eight cost hardly more than one; on a CPU they cost 1.5 to 3 times as much,
four 1.1 to 1.7 times. Some kernels take rows in fours, and the rest in another way. They must not depend on
measurements: the next start could bring others."""

OFFLOAD_AFTER = {"CPU": 0, "GPU": 256}
"""Steps of others that a sequence idles for, at least, before it is offloaded. By PCIe that should take some hundred
times as long as a GPU takes to go through its cells once (nothing was measured): a long chat and short completions that
take turns must not pay for it."""

N_BATCH = 512
_MAX_CELLS = 2**31 - 1
_NO_LOGITS = np.empty((0, 0), np.float32)


class LlamaEngine:
    """A model and its sequences.

    n_batch:  most rows of one step, unless the sequences are more. rollback: most rows of a step
    that are taken back, and one less than have logits; 0 for a drafter. guests:   sequences for
    short texts, where that costs little.
    """

    def __init__(
        self,
        settings: ModelSettings,
        progress: Progress | None = None,
        *,
        n_batch: int = N_BATCH,
        rollback: int = 0,
        guests: int = 0,
    ) -> None:
        """Load the model and reserve its cache. Raises ConfigError."""
        self._model = LlamaModel(settings, progress)
        try:
            self._reserve(settings, n_batch, rollback, guests)
        except BaseException:  # nobody has what would close it, whatever interrupted this
            self._model.close()
            raise

    def _reserve(self, settings: ModelSettings, n_batch: int, rollback: int, guests: int) -> None:
        model, max_sessions = self._model, settings.max_sessions
        if settings.reproducible or model.has_states:  # each sequence has memory of its own
            guests = 0
        most: int = model.lib.llama_max_parallel_sequences()
        guests = min(guests, max(most - max_sessions, 0))
        sequences = max_sessions + guests
        width, n_outputs = None, sequences * (rollback + 1)
        if settings.reproducible and rollback:
            width = GPU_ROWS if model.on_gpu else CPU_ROWS
            n_outputs, rollback = max_sessions * width, width - 1
        n_ctx = _context_size(settings, model.lib.llama_model_n_ctx_train(model.handle))
        n_batch = max(min(n_batch, n_ctx * max_sessions), sequences)
        rows = max(n_batch, 2, width or 0)
        n_batch += (width or 0) * max_sessions  # a prompt's rows fit beside everybody's step
        n_outputs = min(n_outputs, n_batch)
        threads = settings.threads or physical_cores()
        # llama.cpp wants a row of logits for each sequence.
        outputs = n_outputs if width is None else max(width, max_sessions)
        sizes = CacheSizes(n_ctx, max_sessions, rows, outputs, threads, width=width, guests=guests)
        self._cache = open_cache(model, sizes, drafter=not rollback)
        self._sequences = Sequences(sequences, n_ctx, model.n_vocab, n_batch, n_outputs)
        self._offloaded: dict[int, SavedState] = {}
        self._idle: dict[
            int, int
        ] = {}  # by sequence to be offloaded, the number of steps when that was said first
        self._steps = 0
        # With a sliding window llama.cpp gives the cells that have left it to other sequences.
        reuse: KVReuse = "copied" if width is None else "cut"
        if self._cache.trimming != "removal" or model.lib.llama_model_n_swa(model.handle) > 0:
            reuse = "whole"
        # Of a sliding window only what is in it would come back; a network is too slow.
        self._offloads = reuse == "copied" and not settings.rpc
        self.vocabulary = model.vocabulary
        self.info = EngineInfo(
            model.name,
            n_ctx,
            n_batch,
            max_sessions,
            self._cache.trimming,
            model.backend if model.on_gpu else _on_cpu(threads),
            width,
            reuse,
            batches=not rollback and self._cache.trimming == "removal",
            n_outputs=n_outputs,
            threads=0 if model.on_gpu else threads,
            guests=guests,
        )

    def use_threads(self, threads: int) -> None:
        self._cache.use_threads(threads)
        if not self._model.on_gpu:
            self.info = replace(self.info, threads=threads, backend=_on_cpu(threads))

    def close(self) -> None:
        self._sequences = Sequences(0, 0, 0, 0)  # further calls name none that there is
        self._cache.close()
        self._model.close()

    def _decode(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """Run one step; return the wanted logits in order, float32 (rows with logits, n_vocab)."""
        outputs = self._sequences.check_step(spans)
        if not spans:
            return _NO_LOGITS
        try:
            self._steps += 1
            for span in spans if self._offloaded or self._idle else ():
                self._idle.pop(span.seq, None)
                self._fetch(span.seq)
            logits = self._cache.run(spans, outputs)
        except EngineError:  # which rows and states were written is not known
            for span in spans:
                self.trim(span.seq, 0)
            raise
        for span in spans:
            self._sequences.lengths[span.seq] = span.position + len(span.ids)
        return logits

    def trim(self, seq: int, length: int) -> int:
        """As `Engine.trim`: a sequence that cannot be cut so far back is emptied."""
        kept = self._sequences.check_trim(seq, length)
        if kept == 0 or (kept < self._sequences.lengths[seq] and not self._cache.trim(seq, kept)):
            self._cache.clear(seq)
            self._offloaded.pop(seq, None)
            self._idle.pop(seq, None)
            kept = 0
        self._sequences.lengths[seq] = kept
        return kept

    def offload(self, seq: int) -> None:
        """Keep a sequence in the host's memory: with cells that all sequences share each step goes through those of
        all, and masks what is another's. llama-server does so with idle slots (--cache-idle-slots)."""
        if not self._offloads or not self._sequences.held(seq) or seq in self._offloaded:
            return
        idle_for = self._steps - self._idle.setdefault(seq, self._steps)
        if idle_for < OFFLOAD_AFTER["GPU" if self._model.on_gpu else "CPU"]:
            return
        try:
            self._offloaded[seq] = self._cache.save(seq)
        except (EngineError, MemoryError) as error:  # it stays where it is
            _log.warning("not_offloaded", seq=seq, error=str(error))
        else:
            self._cache.clear(seq)
            del self._idle[seq]

    @property
    def offloaded_bytes(self) -> int:
        return sum(map(len, list(self._offloaded.values())))

    def _fetch(self, seq: int) -> None:
        """Bring back what a sequence holds, cut to the length that it has by now."""
        state = self._offloaded.pop(seq, None)
        if state is not None:
            self._cache.load(seq, self._sequences.lengths[seq], state)


def _on_cpu(threads: int) -> str:
    return "CPU, 1 thread" if threads == 1 else f"CPU, {threads} threads"


def _context_size(settings: ModelSettings, trained: int) -> int:
    n_ctx = context_of(settings.ctx, trained)
    if n_ctx * settings.max_sessions > _MAX_CELLS:  # llama.cpp's 32-bit count would wrap around
        raise ConfigError(
            f"{n_ctx} ids x {settings.max_sessions} sequences", "choose a smaller context"
        )
    if 0 < trained < n_ctx:
        _log.warning("context_beyond_training", n_ctx=n_ctx, trained=trained)
    return n_ctx


class LlamaVerifier(LlamaEngine):
    """A GGUF target model, `VerifyEngine` by llama.cpp. One step has up to n_batch rows, max_draft + 1 per sequence of
    them with logits, or info.width."""

    def __init__(
        self,
        settings: ModelSettings,
        progress: Progress | None = None,
        *,
        n_batch: int = N_BATCH,
        max_draft: int = MAX_DRAFTS,
        guests: int = 0,
    ) -> None:
        path = settings.chat_template
        chosen = read_text(path, MAX_TEMPLATE, "a chat template") if path is not None else None
        super().__init__(settings, progress, n_batch=n_batch, rollback=max_draft, guests=guests)
        self.tokenizer = self._model
        try:
            self._model.load_template(chosen, settings.tool_format)
        except ConfigError:
            self.close()
            raise

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        rows: list[NDArray[np.float32] | None] = []
        block, end = self._decode(spans), 0
        for span in spans:
            start, end = end, end + len(span.ids) * span.logits
            rows.append(block[start:end] if span.logits else None)
        return rows

    def copy(self, seq: int, source: int, length: int) -> None:
        if self.info.reuse != "copied":
            raise LocalProtocolError(f"sequences of {self.info.model} cannot share ids")
        self._sequences.check_copy(seq, source, length)
        if source in self._offloaded:
            self._cache.load(seq, length, self._offloaded[source])
        else:
            self._cache.share(seq, source, length)
        self._sequences.lengths[seq] = length


class LlamaDrafter(LlamaEngine):
    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        spans, ends = list[Span](), list[int]()
        for ask in asks:
            held, body = (
                self._sequences.held(ask.seq),
                ask.ids if ask.sampler is None else ask.ids[:-1],
            )
            ends.append(held + len(ask.ids))
            if body or ask.sampler is None:
                spans.append(Span(ask.seq, held, body, logits=False))
            if ask.sampler is not None:
                spans.append(Span(ask.seq, held + len(body), ask.ids[-1:], logits=True))
        rows, tokens = iter(self._decode(spans)), list[int | None]()
        for ask, end in zip(asks, ends, strict=True):
            tokens.append(None if ask.sampler is None else ask.sampler.choose(next(rows), end))
        return tokens
