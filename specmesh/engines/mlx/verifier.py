"""MLX as verifier."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, assert_never

import mlx.core as mx
import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.kv_reuse import KVReuse
from specmesh.engines.base import Capabilities, EngineInfo, Progress, Sequences, Unthreaded
from specmesh.engines.chat_template import MAX_TEMPLATE, template_renderer
from specmesh.engines.kv_size import ContextSize
from specmesh.engines.mlx.caches import Caches
from specmesh.engines.mlx.encoder import MlxEncoder, coverage_of
from specmesh.engines.mlx.memory import checkpoints_for, keep_resident, size_for
from specmesh.engines.mlx.model import MlxModel, free, mapped
from specmesh.engines.mlx.target_sequence import TargetSequence
from specmesh.engines.mlx.trial import check_bits, check_rollback
from specmesh.engines.tokenizer import ChatTokenizer, ChosenTemplate
from specmesh.errors import ConfigError, EngineError, LocalProtocolError
from specmesh.paths import read_text

_log = structlog.get_logger("specmesh.engines.mlx")

N_BATCH = 512

WIDTH = 4
"""Rows of a reproducible step. They must not depend on measurements: the next start could bring
others.
"""

CLEARED_EVERY = 256
"""Steps after which MLX frees what it keeps for later ones, as mlx-lm has it."""

LONG_READ = 128
"""Ids of a prompt, read in one step, after which it does too."""

TOGETHER = 32
"""Most ids of a prompt that are read in one pass with its last id, which has logits.

Of more ids, all but the last run without logits: the output layer is wide.
"""

Rows = NDArray[np.float32] | None


class MlxVerifier(Unthreaded):
    """A Hugging Face target model, `VerifyEngine` by mlx-lm's models and caches.

    The thread that opened it must make every call, `close` included: MLX's streams belong to a
    thread. Each sequence has caches of its own. So its rows are computed apart from those of
    others, and do not depend on them.
    """

    def __init__(
        self,
        settings: ModelSettings,
        progress: Progress | None = None,
        *,
        n_batch: int = N_BATCH,
        max_draft: int = MAX_DRAFTS,
        guests: int = 0,
    ) -> None:
        """Load the model, and try it. Raises ConfigError or EngineError.

        n_batch: most rows of one step, unless there are more sequences.
        max_draft: most rows of a sequence that are taken back after a step.
        guests: sequences for short texts, beside those of sessions, if they take little memory.
        """
        self._memories: list[TargetSequence] = []
        self._sequences = Sequences(0, 0, 0, 0)
        self._steps = 0
        self._width = WIDTH if settings.reproducible else None
        chosen = _chosen_template(settings)
        try:
            model = MlxModel(settings, progress)
            self._reserve(model, settings, n_batch=n_batch, max_draft=max_draft, guests=guests)
            self._try_out()
            self.tokenizer = _tokenizer(model, self._n_vocab, chosen)
        except BaseException:  # the caller gets no engine to close, whatever interrupted this
            chosen.renderer.close()
            self._free()
            raise

    def _reserve(
        self,
        model: MlxModel,
        settings: ModelSettings,
        *,
        n_batch: int,
        max_draft: int,
        guests: int,
    ) -> None:
        """Measure the memory of sequences, and note what the engine can do."""
        keep_resident()
        first = TargetSequence(model.module)
        with mapped(_failed):
            self._n_vocab = first.measure()
        caches = first.caches
        is_pool = self._width is None and caches.cell_bytes > 0
        size = size_for(settings, model.trained_ctx, caches, shared=is_pool)
        if 0 < model.trained_ctx < size.n_ctx:
            _log.warning("context_beyond_training", n_ctx=size.n_ctx, trained=model.trained_ctx)
        if self._width is not None or not caches.can_cut:
            guests = 0
        sequences = size.max_sessions + guests
        rows = max(min(n_batch, size.cells), sequences)
        outputs = min(sequences * (max_draft + 1), rows)
        if self._width is not None:
            # Rows of a prompt fit beside the sessions' steps.
            outputs = self._width * size.max_sessions
            rows += outputs
        self._memories = [TargetSequence(model.module) for _ in range(sequences)]
        self._sequences = Sequences(sequences, size.n_ctx, self._n_vocab, rows, outputs)
        self.info = EngineInfo(
            model=model.name,
            n_ctx=size.n_ctx,
            n_batch=rows,
            n_outputs=outputs,
            max_sessions=size.max_sessions,
            backend=model.backend,
            capabilities=self._capabilities(caches, size, model.name),
            cells=size.cells if is_pool else None,
            cell_bytes=caches.cell_bytes,
            guests=guests,
            bos=model.bos,
        )

    def _capabilities(self, caches: Caches, size: ContextSize, name: str) -> Capabilities:
        if caches.can_cut:
            reuse: KVReuse = "copied" if self._width is None else "cut"
            return Capabilities(trimming="removal", reuse=reuse, width=self._width)
        if self._width is not None:
            reason = f"{name} has states or windows that rows cannot be removed from"
            effect = "so its steps cannot be filled up to one width"
            raise ConfigError(f"{reason}, {effect}", "leave --reproducible out")
        checkpoints = checkpoints_for(caches, size.max_sessions)
        return Capabilities(trimming="restore", reuse="whole", checkpoints=checkpoints)

    def _try_out(self) -> None:
        check_rollback(self)
        if self._width is not None:
            check_bits(self)

    def close(self) -> None:
        self.tokenizer.close()
        self._free()

    def _free(self) -> None:
        self._memories = []
        self._sequences = Sequences(0, 0, 0, 0)  # further calls name no sequence that exists
        free()

    # --- steps

    def decode(self, spans: Sequence[Span]) -> list[Rows]:
        self._sequences.check_step(spans)
        if self._width is not None:
            _check_width(spans, self._width)
        try:
            with mapped(_failed):
                rows = self._decode(spans)
        except EngineError:  # which ids were taken in is not known
            for span in spans:
                self._cut(KVCut(span.seq, 0))
            raise
        for span in spans:
            self._sequences.lengths[span.seq] = span.end
        return rows

    def _decode(self, spans: Sequence[Span]) -> list[Rows]:
        """Run a step; return the logits of each span."""
        lazy = list(self._passes(spans))
        wanted: list[Any] = []
        for span, rows in zip(spans, lazy, strict=True):
            caches = self._memories[span.seq].caches
            if rows is None:  # nothing but the states is evaluated: the output layer never runs
                wanted.append(caches.arrays())
            else:
                wanted += [rows, caches.watched_arrays()]
        mx.eval(wanted)
        self._steps += 1
        read = max((len(span.ids) for span in spans if not span.logits), default=0)
        if read >= LONG_READ or self._steps % CLEARED_EVERY == 0:
            mx.clear_cache()
        return [None if rows is None else np.asarray(rows) for rows in lazy]

    def _passes(self, spans: Sequence[Span]) -> Iterator[Any]:
        """Yield the logits of each span, which are not evaluated yet; None for one without."""
        begun: Span | None = None  # it is read in one pass with the next one
        for span, following in zip_longest(spans, spans[1:]):
            memory = self._memories[span.seq]
            if begun is not None:
                rows = memory.append((*begun.ids, *span.ids), drafted=False)
                yield _single(rows[-1:])
                begun = None
            elif span.logits:
                yield self._verified(memory, span)
            elif self._goes_on(span, following):
                begun = span
                yield None
            else:
                memory.append(span.ids, drafted=False)
                yield None

    def _goes_on(self, span: Span, following: Span | None) -> bool:
        """Return True if a prompt's last id is the next span, and one pass is best for both."""
        if following is None or following.seq != span.seq or self._width is not None:
            return False
        return following.logits and len(following.ids) == 1 and len(span.ids) <= TOGETHER

    def _verified(self, memory: TargetSequence, span: Span) -> Any:
        """Return the logits of a span, filled up to the width of all steps if there is one."""
        count = len(span.ids)
        missing = 0 if self._width is None else self._width - count
        rows = memory.append((*span.ids, *[0] * missing), drafted=True)
        if missing and memory.trim(span.end) != span.end:
            step = f"a step of sequence {span.seq}"
            raise EngineError(f"MLX did not remove the rows that filled up {step}")
        return _single(rows[:count] if missing else rows)

    # --- orders

    def carry_out(self, order: KVOrder) -> int:
        match order:
            case KVCut():
                return self._cut(order)
            case KVCopy():
                self._copy(order)
            case KVSave():
                self._save(order)
            case KVDrop(seq, length):
                self._sequences.held(seq)
                self._memories[seq].drop(length)
            case KVOffload() | KVNarrow():
                pass
            case _:
                assert_never(order)
        return self._sequences.held(order.seq)

    def _cut(self, cut: KVCut) -> int:
        """Cut a sequence; one that cannot be cut so far back is emptied."""
        kept = self._sequences.check_cut(cut)
        memory = self._memories[cut.seq]
        try:
            with mapped(_failed):
                kept = memory.trim(kept)
        except EngineError:
            memory.clear()
            kept = 0
        self._sequences.lengths[cut.seq] = kept
        return kept

    def _copy(self, copy: KVCopy) -> None:
        self._sequences.check_copy(copy)
        memory = self._memories[copy.seq]
        try:
            memory.begin_as(self._memories[copy.source], copy.length)
        except EngineError:
            memory.clear()
            raise
        self._sequences.lengths[copy.seq] = copy.length

    def _save(self, order: KVSave) -> None:
        held = self._sequences.held(order.seq)
        if order.length != held or not self.info.capabilities.checkpoints:
            state = f"a state of {order.length} ids of sequence {order.seq}, which has {held}"
            raise LocalProtocolError(f"{state}, cannot be saved")
        with mapped(_failed):
            self._memories[order.seq].keep()

    @property
    def offloaded_bytes(self) -> int:  # type: ignore[override] # it changes here
        """Return the size of all checkpoints."""
        sizes: dict[int, int] = {}
        for memory in list(self._memories):
            for checkpoint in list(memory.checkpoints.values()):
                sizes[id(checkpoint)] = checkpoint.size_bytes
        return sum(sizes.values())


def _single(rows: Any) -> Any:
    """Return logits in single precision."""
    return rows.astype(mx.float32)


def _check_width(spans: Sequence[Span], width: int) -> None:
    """Raise LocalProtocolError for a span with more logits than each step has rows."""
    for span in spans:
        if span.logits and len(span.ids) > width:
            rows = f"{len(span.ids)} rows with logits"
            raise LocalProtocolError(f"a span of {rows}: each step has {width}")


def _failed(reason: str) -> EngineError:
    return EngineError(f"MLX cannot run this model: {reason}")


def _chosen_template(settings: ModelSettings) -> ChosenTemplate:
    """Return the template of the settings, and the process that renders it."""
    source = None
    if settings.chat_template is not None:
        source = read_text(settings.chat_template, MAX_TEMPLATE, "a chat template")
    renderer = template_renderer()
    renderer.prepare()
    return ChosenTemplate(renderer=renderer, source=source, tool_format=settings.tool_format)


def _tokenizer(model: MlxModel, n_vocab: int, chosen: ChosenTemplate) -> ChatTokenizer:
    """Return the model's tokenizer. Raises ConfigError."""
    vocabulary = model.vocabulary(n_vocab)
    coverage = coverage_of(model.tokenizer_json, vocabulary.pieces)
    encoder = MlxEncoder(model.backend_tokenizer, vocabulary, coverage)
    return ChatTokenizer(model.name, encoder, model.texts, chosen)
