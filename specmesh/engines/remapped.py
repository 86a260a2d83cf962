"""A draft engine that speaks the vocabulary of another model."""

from collections.abc import Sequence

from specmesh.core.kv_orders import KVOrder
from specmesh.core.sampling.sampler import Logits, Sampler
from specmesh.core.vocabulary.remap import NONE, Remap
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Ask, DraftEngine, EngineInfo
from specmesh.errors import LocalProtocolError


class RemappedDrafter:
    """`DraftEngine` around one of another vocabulary; `vocabulary` and all ids are the verifier's.

    Logits are put in the order of the verifier's ids before a token is chosen. The noise of coupled
    sampling belongs to the verifier's ids, so the acceptance rate does not suffer.
    """

    def __init__(self, engine: DraftEngine, remap: Remap, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._remap = remap
        self.vocabulary = vocabulary

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        """Draft in the engine's ids and return the verifier's; None for a draft without one."""
        drafts = self._engine.predict([self._translated(ask) for ask in asks])
        return [None if draft == NONE else draft for draft in drafts]

    def _translated(self, ask: Ask) -> Ask:
        ids = ask.ids
        if ids and not 0 <= min(ids) <= max(ids) < self._remap.n_verifier:
            allowed = f"[0, {self._remap.n_verifier})"
            raise LocalProtocolError(f"an id outside {allowed} for sequence {ask.seq}")
        sampler = None
        if ask.sampler is not None:
            sampler = _Translating(ask.sampler, self._remap)
        return Ask(ask.seq, self._remap.to_draft(ids), sampler, ask.shift)

    def carry_out(self, order: KVOrder) -> int:
        return self._engine.carry_out(order)

    def use_threads(self, threads: int) -> None:
        self._engine.use_threads(threads)

    @property
    def offloaded_bytes(self) -> int:
        return self._engine.offloaded_bytes

    def close(self) -> None:
        self._engine.close()


class _Translating(Sampler):
    """Chooses one of the verifier's ids, or NONE if the best draft has no counterpart."""

    __slots__ = ("_remap", "_sampler")

    def __init__(self, sampler: Sampler, remap: Remap) -> None:
        super().__init__(sampler.params)
        self._sampler = sampler
        self._remap = remap
        self.argmax = False  # an engine's own argmax would be one of its ids

    def choose(self, logits: Logits, position: int) -> int:
        best = self._remap.to_verifier(int(logits.argmax()))
        if best == NONE or self._sampler.argmax:
            return best
        return self._sampler.choose(self._remap.reordered(logits), position)
