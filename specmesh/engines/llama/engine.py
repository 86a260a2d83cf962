"""llama.cpp as verifier and as drafter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np
import structlog
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.kv_reuse import KVReuse
from specmesh.engines import grammar_compiler
from specmesh.engines.base import (
    ANY_ID,
    Ask,
    Capabilities,
    EngineInfo,
    Progress,
    Sequences,
)
from specmesh.engines.chat_template import MAX_TEMPLATE, template_renderer
from specmesh.engines.kv_size import ContextSize, context_size
from specmesh.engines.llama.cache import LlamaCache, SavedState
from specmesh.engines.llama.fitting import fitting_cache, free_memory, host_ids
from specmesh.engines.llama.model import LlamaModel, warn_of_nextn
from specmesh.engines.llama.mtp import MtpDrafter
from specmesh.engines.llama.plan import Plan, plan_of
from specmesh.engines.llama.rollback import Restore, open_cache
from specmesh.engines.llama.windows import WindowCache
from specmesh.engines.tokenizer import ChosenTemplate
from specmesh.errors import ConfigError, EngineError, LocalProtocolError, NoRoom
from specmesh.host import physical_memory
from specmesh.paths import read_text

_log = structlog.get_logger("specmesh.engines.llama")

OFFLOAD_AFTER = {"CPU": 0, "GPU": 256}
"""Steps of other sequences that a sequence idles for, at least, before it is offloaded.

By PCIe an offload should take some hundred times as long as a GPU takes to read the sequence's
cells once (nothing was measured). Without the wait, a long chat and short completions that take
turns would pay for it.
"""

CHECKPOINT_BYTES = 2 * 2**30
MAX_CHECKPOINTS = 32
"""Memory of the host for saved states, if that is not more than an eighth; and most of a sequence.
"""

N_BATCH = 512
_NO_LOGITS = np.empty((0, 0), np.float32)


class LlamaEngine:
    """A model and its sequences."""

    def __init__(
        self,
        settings: ModelSettings,
        progress: Progress | None = None,
        *,
        n_batch: int = N_BATCH,
        rollback: int = 0,
        guests: int = 0,
        mtp: bool = False,
    ) -> None:
        """Load the model and reserve its cache. Raises ConfigError.

        mtp: the model's own head too, if it has one.

        n_batch: most rows of one step, unless there are more sequences.
        rollback: most rows of a step that are taken back, one less than have logits; 0 for a
            drafter.
        guests: sequences for a target's short texts, if they take little memory; a drafter's spare
            ones, for windows, unless it reads texts without end.
        """
        self._model = LlamaModel(settings, progress, mtp=mtp)
        try:
            self._loaded()
            plan = plan_of(
                self._model,
                settings,
                n_batch=settings.llama.ubatch_size or n_batch,
                rollback=rollback,
                guests=guests,
            )
            self._reserve(plan)
        except BaseException:  # the caller gets no engine to close, whatever interrupted this
            self._model.close()
            raise

    def _loaded(self) -> None:
        """Begin what goes on while the cache is reserved."""

    def _reserve(self, plan: Plan) -> None:
        """Reserve the cache, and note what the engine can do."""
        model = self._model
        wish = plan.wish
        if plan.rollback:
            memory = _beside_head(free_memory(model), model)
            self._cache, size = fitting_cache(model, wish, memory, plan.cache_sizes)
        else:
            size = context_size(wish, 0, None)
            self._cache = open_cache(model, plan.cache_sizes(size), drafter=True)
        if 0 < wish.trained < size.n_ctx:
            _log.warning("context_beyond_training", n_ctx=size.n_ctx, trained=wish.trained)
        sequences = size.max_sessions + plan.guests
        longest = ANY_ID if plan.endless else size.n_ctx
        n_batch, n_outputs = plan.n_rows(size)
        self._sequences = Sequences(sequences, longest, model.n_vocab, n_batch, n_outputs)
        self._steps = 0
        self._offloaded: dict[int, SavedState] = {}
        # By sequence that is offloaded, or to be, the number of steps at the first request.
        self._idle: dict[int, int] = {}
        self.vocabulary = model.vocabulary
        self.info = self._info(plan, size)
        self.head = self._head(plan, size)

    def _head(self, plan: Plan, size: ContextSize) -> MtpDrafter | None:
        """Return the model's own head; None, and a warning, if llama.cpp cannot run it."""
        model = self._model
        if not model.nextn:
            return None
        sizes = plan.cache_sizes(size)
        try:
            return MtpDrafter(model, self._cache, sizes, model.nextn, self.info)
        except ConfigError as error:
            warn_of_nextn(error.what)
            return None

    def _info(self, plan: Plan, size: ContextSize) -> EngineInfo:
        model = self._model
        n_batch, n_outputs = plan.n_rows(size)
        is_pool = plan.rollback > 0 and plan.width is None and not model.recurrent
        cell_bytes = self._cache.cell_bytes
        return EngineInfo(
            model=model.name,
            n_ctx=size.n_ctx,
            n_batch=n_batch,
            max_sessions=size.max_sessions,
            backend=model.backend if model.on_gpu else _on_cpu(plan.threads),
            capabilities=self._capabilities(plan, size),
            cells=size.cells if is_pool else None,
            cell_bytes=cell_bytes,
            host_ids=host_ids(size.cells, cell_bytes),
            n_outputs=n_outputs,
            threads=0 if model.on_gpu else plan.threads,
            guests=plan.guests,
            bos=model.bos,
        )

    def _capabilities(self, plan: Plan, size: ContextSize) -> Capabilities:
        model = self._model
        trimming = self._cache.trimming
        reuse = self._reuse(plan.width)
        return Capabilities(
            trimming=trimming,
            reuse=reuse,
            width=plan.width,
            batches=not plan.rollback and trimming == "removal",
            # A network is too slow for it.
            offloads=reuse == "copied" and not plan.settings.rpc and not model.chunked,
            offload_after=OFFLOAD_AFTER["GPU" if model.on_gpu else "CPU"],
            endless=plan.endless,
            checkpoints=_checkpoints_of(self._cache, size.max_sessions + plan.guests),
            windows=plan.windows(size),
        )

    def _reuse(self, width: int | None) -> KVReuse:
        lacks_keeper = self._model.n_swa > 0 and not isinstance(self._cache, WindowCache)
        if self._cache.trimming != "removal" or (lacks_keeper and width is None):
            return "whole"
        if width is not None:
            return "cut"
        return "copied"

    def use_threads(self, threads: int) -> None:
        self._cache.use_threads(threads)
        if not self._model.on_gpu:
            self.info = replace(self.info, threads=threads, backend=_on_cpu(threads))

    def close(self) -> None:
        self._sequences = Sequences(0, 0, 0, 0)  # further calls name no sequence that exists
        if self.head is not None:
            self.head.close()
        self._cache.close()
        self._model.close()

    def _decode(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """Run one step; return the wanted logits in order, float32 (rows with logits, n_vocab)."""
        outputs = self._sequences.check_step(spans)
        if not spans:
            return _NO_LOGITS
        try:
            self._steps += 1
            asleep = [span.seq for span in spans if span.seq in self._idle]
            if asleep:
                self._wake_all(asleep)
            logits = self._cache.run(spans, outputs)
        except NoRoom as error:
            changed = {span.seq for span in spans if not self._is_unchanged(span.seq)}
            for seq in changed:
                self._cut(KVCut(seq, 0))
            raise NoRoom(error.what, error.lost | changed) from error
        except EngineError:  # which rows and states were written is not known
            for span in spans:
                self._cut(KVCut(span.seq, 0))
            raise
        lengths = self._sequences.lengths
        for span in spans:
            lengths[span.seq] = span.position + len(span.ids)
        return logits

    def _is_unchanged(self, seq: int) -> bool:
        """Return True if a sequence holds for certain what it did before a step without room."""
        return self._cache.atomic and self._cache.end(seq) == self._sequences.lengths[seq]

    def carry_out(self, order: KVOrder) -> int:
        match order:
            case KVCut():
                return self._cut(order)
            case KVCopy():
                self._copy(order)
            case KVOffload():
                self._offload(order.seq, now=order.now)
            case KVSave():
                self._save(order)
            case KVNarrow(seq, begin):
                if isinstance(self._cache, WindowCache):
                    self._cache.narrow(seq, begin)
            case KVDrop(seq, length):
                if isinstance(self._cache, Restore | WindowCache):
                    self._cache.drop(seq, length)
            case _:
                assert_never(order)
        return self._sequences.held(order.seq)

    def _cut(self, cut: KVCut) -> int:
        """Cut a sequence; one that cannot be cut so far back is emptied."""
        kept = self._sequences.check_cut(cut)
        seq = cut.seq
        held = self._sequences.lengths[seq]
        if kept == 0 or (kept < held and not self._trim(seq, kept)):
            self._cache.clear(seq)
            self._offloaded.pop(seq, None)
            self._idle.pop(seq, None)
            kept = 0
        self._sequences.lengths[seq] = kept
        if self._cache.hidden is not None:
            self._cache.hidden.cut(seq, kept)
        return kept

    def _trim(self, seq: int, length: int) -> bool:
        """Take rows back; an offloaded sequence is cut when it is back."""
        if seq in self._offloaded:
            return self._cache.trim_offloaded(seq, length)
        return self._cache.trim(seq, length)

    def _save(self, order: KVSave) -> None:
        seq = order.seq
        length = order.length
        held = self._sequences.held(seq)
        match self._cache:
            case Restore() as cache if length == held:
                cache.keep(seq)
            case WindowCache() as cache if (
                length <= held and seq not in self._offloaded and cache.reaches(seq, length)
            ):
                cache.keep(seq, length)
            case _:
                state = f"a state of {length} ids of sequence {seq}, which has {held}"
                raise LocalProtocolError(f"{state}, cannot be saved")

    def _copy(self, copy: KVCopy) -> None:
        capabilities = self.info.capabilities
        if capabilities.reuse != "copied" and not capabilities.checkpoints:
            raise LocalProtocolError(f"sequences of {self.info.model} cannot share ids")
        self._sequences.check_copy(copy)
        cache = self._cache
        held = self._sequences.held(copy.source)
        if isinstance(cache, WindowCache) and not cache.can_copy(copy.source, copy.length, held):
            raise LocalProtocolError(f"sequence {copy.source} has lost ids before {copy.length}")
        state = self._offloaded.get(copy.source)
        if state is not None:  # it comes back with the next step
            self._offloaded[copy.seq] = state
            self._idle[copy.seq] = self._steps
            if isinstance(cache, WindowCache):
                cache.share_offloaded(copy.seq, copy.source, copy.length)
        else:
            self._cache.share(copy.seq, copy.source, copy.length)
        self._sequences.lengths[copy.seq] = copy.length

    def _offload(self, seq: int, *, now: bool) -> None:
        """Keep a sequence in the host's memory.

        In cells that all sequences share, each step reads the cells of all, and masks those of
        others. llama-server does so with idle slots (--cache-idle-slots).

        now: its cells are wanted, so it is emptied if the host has no memory.
        """
        capabilities = self.info.capabilities
        if not capabilities.offloads or not self._sequences.held(seq) or seq in self._offloaded:
            return
        idle_for = self._steps - self._idle.setdefault(seq, self._steps)
        at_once = now or capabilities.windows.limited
        if idle_for < capabilities.offload_after and not at_once:
            return
        try:
            self._offloaded[seq] = self._cache.save(seq)
        except (EngineError, MemoryError) as error:
            _log.warning("not_offloaded", seq=seq, error=str(error))
            if now:
                self._cut(KVCut(seq, 0))
        else:
            self._cache.vacate(seq)

    @property
    def offloaded_bytes(self) -> int:
        states = {id(state): len(state) for state in list(self._offloaded.values())}
        size = sum(states.values())
        if isinstance(self._cache, Restore | WindowCache):
            size += self._cache.kept_bytes
        return size

    def _wake_all(self, seqs: Sequence[int]) -> None:
        """Bring sequences back, cut to their present lengths, if they are offloaded.

        Raise NoRoom, with those that are lost then, if there are too few cells.
        """
        lost = set[int]()
        for seq in seqs:
            self._idle.pop(seq, None)
            state = self._offloaded.pop(seq, None)
            if state is None:
                continue
            try:
                self._cache.load(seq, self._sequences.lengths[seq], state)
            except EngineError as error:
                _log.warning("not_brought_back", seq=seq, error=str(error))
                self._cut(KVCut(seq, 0))
                lost.add(seq)
        if lost:
            raise NoRoom("too few cells for what the host's memory held", lost)


def _checkpoints_of(cache: LlamaCache, sequences: int) -> int:
    """Return how many states may be saved in the host's memory; 0 where rows are removed."""
    if not isinstance(cache, Restore | WindowCache) or not cache.state_bytes:
        return 0
    room = min(CHECKPOINT_BYTES, physical_memory() // 8)
    return min(room // max(cache.state_bytes, 1), MAX_CHECKPOINTS * sequences)


def _beside_head(free: float | None, model: LlamaModel) -> float | None:
    """Return the free memory without that of the cells of the model's own head."""
    if free is None or not model.nextn:
        return free
    layers: int = model.lib.llama_model_n_layer(model.handle)
    return free * layers / (layers + model.nextn)


def _on_cpu(threads: int) -> str:
    return "CPU, 1 thread" if threads == 1 else f"CPU, {threads} threads"


class LlamaVerifier(LlamaEngine):
    """A GGUF target model, `VerifyEngine` by llama.cpp; `head` drafts for it, if it has one.

    One step has up to n_batch rows. Of these, max_draft + 1 per sequence have logits, or as many
    as the engine's one width.
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
        source = None
        if settings.chat_template is not None:
            source = read_text(settings.chat_template, MAX_TEMPLATE, "a chat template")
        renderer = template_renderer()
        renderer.prepare()
        chosen = ChosenTemplate(renderer=renderer, source=source, tool_format=settings.tool_format)
        try:
            super().__init__(
                settings,
                progress,
                n_batch=n_batch,
                rollback=max_draft,
                guests=guests,
                mtp=settings.mtp,
            )
        except BaseException:  # the process would stay, whatever interrupted this
            renderer.close()
            raise
        try:
            self.tokenizer = self._model.tokenizer(chosen)
        except ConfigError:
            super().close()
            raise

    def _loaded(self) -> None:
        model = self._model

        def prepare() -> object:
            # It is imported while llama.cpp reserves the cache.
            kept = None
            if grammar_compiler.trouble() is None:
                from specmesh.engines.grammar import is_prepared, prepared  # noqa: PLC0415

                if is_prepared(model.n_vocab, model.size):
                    kept = prepared(model.vocabulary)
            model.encoder.prepare()
            return kept

        self._for_grammars = model.reading.submit(prepare)

    def close(self) -> None:
        self.tokenizer.close()
        super().close()

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        logits = self._decode(spans)
        rows: list[NDArray[np.float32] | None] = []
        start = 0
        for span in spans:
            if span.logits:
                end = start + len(span.ids)
                rows.append(logits[start:end])
                start = end
            else:
                rows.append(None)
        return rows


class LlamaDrafter(LlamaEngine):
    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        lengths = self._sequences.lengths
        spans = list[Span]()
        for ask in asks:
            held = lengths.get(ask.seq, 0)  # the step is refused if there is no such sequence
            if ask.sampler is None:
                spans.append(Span(ask.seq, held, ask.ids, logits=False))
                continue
            before = len(ask.ids) - 1
            if before > 0:
                spans.append(Span(ask.seq, held, ask.ids[:-1], logits=False))
            spans.append(Span(ask.seq, held + before, ask.ids[-1:], logits=True))
        logits = iter(self._decode(spans))
        tokens = list[int | None]()
        for ask in asks:
            sampler = ask.sampler
            if sampler is None:
                tokens.append(None)
            elif sampler.argmax:
                tokens.append(int(next(logits).argmax()))
            else:
                position = lengths[ask.seq] + ask.shift
                tokens.append(sampler.choose(next(logits), position))
        return tokens
