"""Memories that do more than `LlamaCache`: steps of one width, and models whose rows cannot be removed.

Attention forgets rows one by one. A recurrent layer keeps one state, so that of an earlier position must have been
saved before (`Restore`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.engines.base import Trimming
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, SavedState
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import ConfigError, EngineError, LocalProtocolError

CARRY = 8
"""Most tokens that are decoded again within the next step. More are decoded on their own, and saved after."""

SAVE_EVERY = 32
"""Tokens after which a drafter saves again: as far as it drafts ahead, so the save before reaches behind the chain."""

NOISE = 0.05
"""Share of the logits' spread by which kernels of different width may differ; a wrong state differs by all of it."""


class FixedWidth(LlamaCache):
    """Steps of one constant width, whose logits depend on nothing but the tokens before them. Kernels are chosen by the
    number of rows of a decode, and round differently; and attention sums over cells wherever there was room. So each
    sequence is decoded on its own, in cells of its own, and rows with logits are filled up to `width` by rows after
    them, to which no row attends and which are removed."""

    def run(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        """As in general; also raises LocalProtocolError for a span with logits that is too wide."""
        for span in spans:
            if span.logits and len(span.ids) > self._width:
                raise LocalProtocolError(
                    f"a span of {len(span.ids)} rows with logits: each step has {self._width}"
                )
        shown: list[NDArray[np.float32]] = []
        for span in spans:
            if span.logits:
                rows = self._step(span)
                shown.append(rows if span is spans[-1] else rows.copy())
            else:
                self.read(span)
        if not outputs:
            return self.logits(0)
        return shown[0] if len(shown) == 1 else np.concatenate(shown)

    def _step(self, span: Span) -> NDArray[np.float32]:
        missing = self._width - len(span.ids)
        filling = [Span(span.seq, span.end, (0,) * missing, logits=True)] if missing else []
        self.decode([span, *filling])
        if missing and not self.remove(span.seq, span.end):
            raise EngineError(
                f"llama.cpp did not remove what filled a step of sequence {span.seq} up"
            )
        return self.logits(self._width)[: len(span.ids)]


@dataclass(slots=True)
class _Track:
    """One sequence: its tokens; states saved, oldest first, by the tokens before them (None: of none); `behind`: tokens
    were taken back, and the memory is not there yet."""

    ids: list[int] = field(default_factory=list)
    states: list[tuple[int, SavedState | None]] = field(default_factory=lambda: [(0, None)])
    behind: bool = False


class Restore(LlamaCache):
    """The state is saved before rows that may be taken back; then it is restored, and what stays is decoded again.

    Up to CARRY tokens to decode again go at the head of the next step, which reads the weights only once; more are
    decoded on their own, and the state is saved after them.

    ahead: False for a verifier, which saves before each step with drafts. True for a drafter, whose rows come one by
           one: it saves every SAVE_EVERY tokens and keeps two, so that the older reaches behind everything drafted.
    """

    trimming: Trimming = "restore"

    def __init__(self, model: LlamaModel, sizes: CacheSizes, *, ahead: bool) -> None:
        super().__init__(model, sizes)
        # Attention's part stays where it is: `remove` cuts it.
        self._state_flags = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._ahead = ahead
        self._tracks = [_Track() for _ in range(sizes.max_sessions)]

    def run(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        logits = super().run(self._prepared(spans), outputs)
        for span in spans:
            self._tracks[span.seq].ids += span.ids
        return logits

    def _prepared(self, spans: Sequence[Span]) -> list[Span]:
        """Restore what was taken back, and save where that is due; return what to run."""
        carried: list[Span] = []
        for seq in {span.seq for span in spans}:
            again = self._restored(seq)
            if again is not None and len(again.ids) <= CARRY:
                carried.append(again)
                continue
            if again is not None:
                self.read(again)
            if self._due(seq, spans, settled=again is not None):
                self._save(seq)
        return [*carried, *spans]

    def _restored(self, seq: int) -> Span | None:
        """Restore the newest state that is not too new; return what must be decoded again."""
        track = self._tracks[seq]
        if not track.behind:
            return None
        while track.states[-1][0] > len(track.ids):
            track.states.pop()
        length, state = track.states[-1]
        self.load(seq, length, state)
        track.behind = False
        ids = tuple(track.ids[length:])
        return Span(seq, length, ids, logits=False) if ids else None

    def _due(self, seq: int, spans: Sequence[Span], *, settled: bool) -> bool:
        """Return whether to save before these spans. settled: tokens were just decoded again on their own."""
        track = self._tracks[seq]
        since = len(track.ids) - track.states[-1][0]
        if self._ahead:
            return since > 0 and (settled or since >= SAVE_EVERY)
        return since > 0 and any(
            span.seq == seq and span.logits and len(span.ids) > 1 for span in spans
        )

    def _save(self, seq: int) -> None:
        track, reused = self._tracks[seq], None
        if len(track.states) > self._ahead:
            _, reused = track.states.pop(0)
        track.states.append((len(track.ids), self.save(seq, reused)))

    def trim(self, seq: int, length: int) -> bool:
        track = self._tracks[seq]
        if length < track.states[0][0]:
            return False
        del track.ids[length:]
        track.behind = True
        return True

    def clear(self, seq: int) -> None:
        super().clear(seq)
        self._tracks[seq] = _Track()


def open_cache(model: LlamaModel, sizes: CacheSizes, *, drafter: bool) -> LlamaCache:
    """Reserve a model's memory. Raises ConfigError. A drafter's wrong state costs drafts only, a verifier's would be in
    the text: it is tried."""
    recurrent = model.has_states
    if recurrent and sizes.width is not None:
        what = "keeps states that rows cannot be removed from, so its steps cannot be filled up to one width"
        raise ConfigError(f"{model.name} {what}", "leave --reproducible out")
    cache: LlamaCache
    if recurrent:
        cache = Restore(
            model, replace(sizes, rows=sizes.rows + CARRY * sizes.max_sessions), ahead=drafter
        )
    else:
        cache = (LlamaCache if sizes.width is None else FixedWidth)(model, sizes)
    try:
        cache.run([Span(0, 0, (0, 0), logits=False)], 0)  # also warms up
    except EngineError as error:
        cache.close()
        raise ConfigError(f"{model.name} does not run: {error}") from error
    cache.clear(0)
    if recurrent and not drafter and not _takes_back(cache):
        cache.close()
        raise ConfigError(
            f"{model.name} does not return to a saved state, so it cannot verify",
            "choose another model",
        )
    return cache


def _takes_back(cache: LlamaCache) -> bool:
    """Return whether a third token's logits stay the same after two others were taken back before it."""

    def last(position: int, *ids: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = cache.run([Span(0, position, ids, logits=True)], len(ids))[-1]
        return row.copy()

    try:
        last(0, 1, 2)
        expected = last(2, 3)
        cache.clear(0)
        last(0, 1)
        last(1, 2, 4, 5)
        if not cache.trim(0, 2):
            return False
        spread = float(expected.max() - expected.mean())
        return float(np.abs(last(2, 3) - expected).max()) <= NOISE * spread
    except EngineError:
        return False
    finally:
        cache.clear(0)
