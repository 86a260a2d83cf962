"""MLX as drafter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specmesh.config import ModelSettings
from specmesh.core.kv_orders import KVCut, KVOrder
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.base import (
    ANY_ID,
    Ask,
    Capabilities,
    EngineInfo,
    Progress,
    Sequences,
    Unthreaded,
    context_of,
)
from specmesh.engines.mlx.model import MlxModel, free
from specmesh.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from specmesh.engines.mlx.sequence import MlxSequence


class MlxDrafter(Unthreaded):
    """A Hugging Face draft model, `DraftEngine` by mlx-lm's models and caches.

    The thread that opened it must make every call, `close` included: MLX's streams belong to a
    thread. A thread of its own would cost two wake-ups a token: 3 to 6 % of a small model's step.
    """

    def __init__(
        self,
        settings: ModelSettings,
        progress: Progress | None = None,
        n_batch: int = 512,
        *,
        spares: int = 0,
    ) -> None:
        """Load the model.

        progress: called with the share that is loaded. n_batch: most ids of one call.
        spares: further sequences. Raises ConfigError or EngineError.
        """
        self._memories: list[MlxSequence] = []
        try:
            model = MlxModel(settings, progress)
            self._load(model, settings, n_batch, spares)
        except BaseException:  # the caller gets no engine to close, whatever interrupted this
            self.close()
            raise

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> int | None:
        self._sequences.check_append(ask.seq, ask.ids)
        memory = self._memories[ask.seq]
        try:
            return memory.feed(ask.ids, ask.sampler, ask.shift)
        finally:
            self._sequences.lengths[ask.seq] = memory.length

    def carry_out(self, order: KVOrder) -> int:
        """Cut a sequence; a model without removal returns to the newest snapshot below."""
        if not isinstance(order, KVCut):
            return self._sequences.decline(order)
        self._sequences.check_cut(order)
        memory = self._memories[order.seq]
        try:
            return memory.trim(order.length)
        finally:
            self._sequences.lengths[order.seq] = memory.length

    def close(self) -> None:
        self._memories = []
        self._sequences = Sequences(0, 0, 0, 0)  # further calls name no sequence that exists
        free()

    def _load(self, model: MlxModel, settings: ModelSettings, n_batch: int, spares: int) -> None:
        # MLX itself is known to be there by now.
        from specmesh.engines.mlx.sequence import MlxSequence  # noqa: PLC0415

        max_sessions = settings.max_sessions
        sequences = max_sessions + spares
        self._memories = [MlxSequence(model.module) for _ in range(sequences)]
        first = self._memories[0]
        first.feed([0, 0], None)  # once each way: kernels are compiled before a session waits
        first.feed([0], Sampler(SamplingParams()))
        try:
            first.trim(2)
        except EngineError as error:
            reason = f"{model.name} does not return to an earlier state, so it cannot draft"
            raise ConfigError(f"{reason}: {error}", "choose another model") from None
        n_vocab = first.n_vocab
        first.clear()
        self.vocabulary = model.vocabulary(n_vocab)
        n_ctx = context_of(settings.ctx, model.trained_ctx)
        if first.caches.can_cut:
            capabilities = Capabilities(trimming="removal", reuse="cut")
        else:
            capabilities = Capabilities(
                trimming="restore", reuse="whole", endless=first.caches.is_endless
            )
        self.info = EngineInfo(
            model=model.name,
            n_ctx=n_ctx,
            n_batch=n_batch,
            max_sessions=max_sessions,
            backend=model.backend,
            capabilities=capabilities,
            guests=spares,
            bos=model.bos,
        )
        most = ANY_ID if capabilities.endless else n_ctx
        self._sequences = Sequences(sequences, most, n_vocab, n_batch)
