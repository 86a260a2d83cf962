"""MLX as verifier."""

from collections.abc import Sequence
from typing import Any

import structlog

from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVOrder, KVSave
from specmesh.core.kv_reuse import KVReuse
from specmesh.engines.base import Capabilities, EngineInfo, Progress, Sequences, Unthreaded
from specmesh.engines.chat_template import MAX_TEMPLATE, template_renderer
from specmesh.engines.kv_size import ContextSize
from specmesh.engines.mlx.caches import Caches
from specmesh.engines.mlx.encoder import MlxEncoder, coverage_of
from specmesh.engines.mlx.memory import checkpoints_for, keep_resident, size_for
from specmesh.engines.mlx.model import MlxModel, free, mapped
from specmesh.engines.mlx.ranks import LeadingSequences, join
from specmesh.engines.mlx.target_sequences import Rows, TargetSequences
from specmesh.engines.mlx.trial import check_bits, check_rollback
from specmesh.engines.tokenizer import ChatTokenizer, ChosenTemplate
from specmesh.errors import ConfigError, EngineError, LocalProtocolError
from specmesh.paths import read_text

_log = structlog.get_logger("specmesh.engines.mlx")

_N_BATCH = 512

_WIDTH = 4
"""Rows of a reproducible step. They must not depend on measurements: the next start could bring
others.
"""


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
        n_batch: int = _N_BATCH,
        max_draft: int = MAX_DRAFTS,
        guests: int = 0,
    ) -> None:
        """Load the model, and try it. Raises ConfigError or EngineError.

        n_batch: most rows of one step, unless there are more sequences.
        max_draft: most rows of a sequence that are taken back after a step.
        guests: sequences for short texts, beside those of sessions, if they take little memory.
        """
        self._sequences = Sequences(0, 0, 0, 0)
        self._targets: TargetSequences | None = None
        self._width = width_of(settings)
        chosen = _chosen_template(settings)
        try:
            group = join() if settings.distributed else None
            model = MlxModel(settings, progress, group=group)
            self._targets = targets_of(model, self._width, group)
            self._reserve(model, settings, n_batch=n_batch, max_draft=max_draft, guests=guests)
            self._try_out()
            self.tokenizer = _tokenizer(model, self._targets.n_vocab, chosen)
        except BaseException:  # the caller gets no engine to close, whatever interrupted this
            chosen.renderer.close()
            self._free()
            raise

    @property
    def _running(self) -> TargetSequences:
        """Return the sequences of the loaded model. Raises EngineError once it is closed."""
        if self._targets is None:
            raise EngineError("the model is closed")
        return self._targets

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
        targets = self._running
        caches = targets.members[0].caches
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
        targets.reserve(sequences)
        self._sequences = Sequences(sequences, size.n_ctx, targets.n_vocab, rows, outputs)
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
            return Capabilities(trimming="removal", reuse=reuse, shares=False, width=self._width)
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
        self._sequences = Sequences(0, 0, 0, 0)  # further calls name no sequence that exists
        if self._targets is not None:
            self._targets.close()
            self._targets = None
        free()

    # --- steps

    def decode(self, spans: Sequence[Span]) -> list[Rows]:
        self._sequences.check_step(spans)
        if self._width is not None:
            _check_width(spans, self._width)
        targets = self._running
        try:
            with mapped(failed):
                rows = targets.decode(spans)
        except EngineError:  # which ids were taken in is not known
            for span in spans:
                self._empty(span.seq)
            raise
        for span in spans:
            self._sequences.lengths[span.seq] = span.end
        return rows

    def _empty(self, seq: int) -> None:
        self._running.clear(seq)
        self._sequences.lengths[seq] = 0

    # --- orders

    def carry_out(self, order: KVOrder) -> int:
        self._check(order)
        try:
            with mapped(failed):
                held = self._running.carry_out(order)
        except EngineError:
            self._empty(order.seq)
            if not isinstance(order, KVCut):
                raise
            held = 0
        self._sequences.lengths[order.seq] = held
        return held

    def _check(self, order: KVOrder) -> None:
        """Raise LocalProtocolError for an order that cannot be carried out."""
        held = self._sequences.held(order.seq)
        match order:
            case KVCut():
                self._sequences.check_cut(order)
            case KVCopy(_, source, length):
                self._sequences.check_copy(order)
                if not self._running.members[source].can_share(length):
                    reason = f"no state of {length} ids of sequence {source} was saved"
                    raise LocalProtocolError(f"a sequence cannot share ids with it: {reason}")
            case KVSave(seq, length):
                if length != held or not self.info.capabilities.checkpoints:
                    state = f"a state of {length} ids of sequence {seq}, which has {held}"
                    raise LocalProtocolError(f"{state}, cannot be saved")
            case _:
                pass

    @property
    def offloaded_bytes(self) -> int:  # type: ignore[override] # it changes here
        """Return the size of all checkpoints."""
        targets = self._targets
        sizes: dict[int, int] = {}
        for memory in [] if targets is None else list(targets.members):
            for checkpoint in list(memory.checkpoints.values()):
                sizes[id(checkpoint)] = checkpoint.size_bytes
        return sum(sizes.values())


def width_of(settings: ModelSettings) -> int | None:
    """Return the rows of each step; None if they differ."""
    return _WIDTH if settings.reproducible else None


def targets_of(model: MlxModel, width: int | None, group: Any = None) -> TargetSequences:
    """Return the sequences of a model. Raises ConfigError if it does not run.

    group: the ranks that do the same.
    """

    def does_not_run(reason: str) -> ConfigError:
        return ConfigError(f"{model.name} does not run: {reason}", "choose another model")

    with mapped(does_not_run):
        if group is not None:
            return LeadingSequences(model.module, width, group)
        return TargetSequences(model.module, width)


def _check_width(spans: Sequence[Span], width: int) -> None:
    """Raise LocalProtocolError for a span with more logits than each step has rows."""
    for span in spans:
        if span.logits and len(span.ids) > width:
            rows = f"{len(span.ids)} rows with logits"
            raise LocalProtocolError(f"a span of {rows}: each step has {width}")


def failed(reason: str) -> EngineError:
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
