"""A draft engine of another vocabulary behind the verifier's ids.

Logits are put in the order of the verifier's ids before a token is chosen. Coupled sampling's noise belongs to the
verifier's ids, so the acceptance rate does not suffer.
"""

from collections.abc import Sequence

from specmesh.core.sampling.filters import Logits
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.vocabulary.vocabulary import Remap, Vocabulary
from specmesh.engines.base import Ask, DraftEngine, EngineInfo, predict_all
from specmesh.errors import LocalProtocolError


class RemappedDrafter:
    """`DraftEngine` around another one: `vocabulary` and all ids are the verifier's."""

    def __init__(self, engine: DraftEngine, remap: Remap, vocabulary: Vocabulary) -> None:
        self._engine, self._remap, self.vocabulary = engine, remap, vocabulary

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        return self.predict_many([Ask(seq, tuple(ids), sampler)])[0]

    def predict_many(self, asks: Sequence[Ask]) -> list[int | None]:
        asked = [self._translated(ask) for ask in asks]
        answers = zip(asked, predict_all(self._engine, asked), strict=True)
        return [
            ask.sampler.meaning(guess) if isinstance(ask.sampler, _Translating) and guess is not None else None
            for ask, guess in answers
        ]

    def _translated(self, ask: Ask) -> Ask:
        ids = ask.ids
        if ids and not 0 <= min(ids) <= max(ids) < self._remap.n_verifier:
            raise LocalProtocolError(f"an id outside [0, {self._remap.n_verifier}) for sequence {ask.seq}")
        sampler = None if ask.sampler is None else _Translating(ask.sampler, self._remap)
        return Ask(ask.seq, tuple(self._remap.feed(ids)), sampler)

    def trim(self, seq: int, length: int) -> int:
        return self._engine.trim(seq, length)

    def close(self) -> None:
        self._engine.close()


class _Translating(Sampler):
    """Chooses among the verifier's ids, and returns one of the engine's."""

    __slots__ = ("_chosen", "_remap", "_sampler")

    def __init__(self, sampler: Sampler, remap: Remap) -> None:
        super().__init__(sampler.params)
        self._sampler, self._remap = sampler, remap
        self._chosen: dict[int, int | None] = {}

    @property
    def greedy(self) -> bool:
        return self._sampler.greedy

    def choose(self, logits: Logits, position: int) -> int:
        """Return the draft model's id of the choice, or its own best where that has no counterpart."""
        best = int(logits.argmax())
        meant = self._remap.say(best)
        if meant is not None and not self._sampler.greedy:
            meant = self._sampler.choose(self._remap.scatter(logits), position)
            best = self._remap.feed((meant,))[0]
        self._chosen[best] = meant
        return best

    def meaning(self, guess: int) -> int | None:
        return self._chosen[guess] if guess in self._chosen else self._remap.say(guess)
