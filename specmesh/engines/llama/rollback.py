"""Memories that do more than `LlamaCache`.

FixedWidth runs steps of one width. Restore is for models whose rows cannot be removed: attention
forgets rows one by one, but a recurrent layer keeps one state, so that of an earlier position must
have been saved before.
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
"""Most tokens that are decoded again within the next step.

More are decoded on their own, and the state is saved after them.
"""

SAVE_EVERY = 32
"""Tokens after which a drafter saves again.

It drafts as far ahead at most, so the save before reaches behind all drafts.
"""

NOISE = 0.05
"""Share of the logits' spread by which kernels of different width may differ.

A wrong state differs by all of it.
"""


class FixedWidth(LlamaCache):
    """Steps of one constant width, whose logits depend on nothing but the tokens before them.

    Kernels are chosen by the number of rows of a decode, and round differently. Attention sums over
    cells in whatever places there was room. So each sequence is decoded on its own, in cells of its
    own. Rows with logits are filled up to `width` by rows after them, to which no row attends and
    which are removed.
    """

    def run(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        """Run a step as LlamaCache.run.

        Raises LocalProtocolError for a span with logits that is too wide.
        """
        for span in spans:
            if span.logits and len(span.ids) > self._width:
                count = f"{len(span.ids)} rows with logits"
                raise LocalProtocolError(f"a span of {count}: each step has {self._width}")
        blocks: list[NDArray[np.float32]] = []
        for span in spans:
            if not span.logits:
                self.read(span)
                continue
            rows = self._step(span)
            if span is not spans[-1]:
                rows = rows.copy()
            blocks.append(rows)
        if not outputs:
            return self.logits(0)
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks)

    def _step(self, span: Span) -> NDArray[np.float32]:
        missing = self._width - len(span.ids)
        spans = [span]
        if missing:
            spans.append(Span(span.seq, span.end, (0,) * missing, logits=True))
        self.decode(spans)
        if missing and not self.remove(span.seq, span.end):
            step = f"a step of sequence {span.seq}"
            raise EngineError(f"llama.cpp did not remove the rows that filled up {step}")
        return self.logits(self._width)[: len(span.ids)]


@dataclass(slots=True)
class _Track:
    """One sequence of Restore.

    ids: its tokens.
    states: saved states, oldest first, each with the number of tokens before it. None: the state
        of an empty sequence.
    behind: tokens were taken back, and the memory has not been restored yet.
    """

    ids: list[int] = field(default_factory=list)
    states: list[tuple[int, SavedState | None]] = field(default_factory=lambda: [(0, None)])
    behind: bool = False


class Restore(LlamaCache):
    """Saves the state before rows that may be taken back.

    To take rows back, the state is restored, and the tokens that stay are decoded again:

    - Up to CARRY tokens go at the head of the next step, which reads the weights only once.
    - More tokens are decoded on their own, and the state is saved after them.

    ahead: False for a verifier, which saves before each step with drafts. True for a drafter, whose
        rows come one by one: it saves every SAVE_EVERY tokens and keeps two states, so that the
        older reaches behind everything drafted.
    """

    trimming: Trimming = "restore"

    def __init__(self, model: LlamaModel, sizes: CacheSizes, *, ahead: bool) -> None:
        super().__init__(model, sizes)
        # The part of attention layers stays in its cells: `remove` cuts it.
        self._state_flags = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._ahead = ahead
        self._most_states = 2 if ahead else 1
        self._tracks = [_Track() for _ in range(sizes.sequences)]

    def run(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        logits = super().run(self._prepared(spans), outputs)
        for span in spans:
            self._tracks[span.seq].ids += span.ids
        return logits

    def _prepared(self, spans: Sequence[Span]) -> list[Span]:
        """Restore states that are behind, and save states that are due; return the spans to run."""
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
        """Restore the newest state that is not too new; return the span to decode again."""
        track = self._tracks[seq]
        if not track.behind:
            return None
        while track.states[-1][0] > len(track.ids):
            track.states.pop()
        length, state = track.states[-1]
        self.load(seq, length, state)
        track.behind = False
        ids = tuple(track.ids[length:])
        if not ids:
            return None
        return Span(seq, length, ids, logits=False)

    def _due(self, seq: int, spans: Sequence[Span], *, settled: bool) -> bool:
        """Return True if a state is to be saved before these spans.

        settled: tokens were just decoded again on their own.
        """
        track = self._tracks[seq]
        since = len(track.ids) - track.states[-1][0]
        if since <= 0:
            return False
        if self._ahead:
            return settled or since >= SAVE_EVERY
        return any(span.seq == seq and span.logits and len(span.ids) > 1 for span in spans)

    def _save(self, seq: int) -> None:
        track = self._tracks[seq]
        reused = None
        if len(track.states) >= self._most_states:
            _, reused = track.states.pop(0)
        state = self.save(seq, reused)
        track.states.append((len(track.ids), state))

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
    """Reserve a model's memory. Raises ConfigError.

    A drafter's wrong state costs drafts only, but a verifier's would be in the text, so it is
    tested.
    """
    cache = _cache_of(model, sizes, drafter=drafter)
    try:
        cache.run([Span(0, 0, (0, 0), logits=False)], 0)  # also warms up
    except EngineError as error:
        cache.close()
        raise ConfigError(f"{model.name} does not run: {error}") from error
    cache.clear(0)
    if model.has_states and not drafter and not _takes_back(cache):
        cache.close()
        reason = f"{model.name} does not return to a saved state, so it cannot verify"
        raise ConfigError(reason, "choose another model")
    return cache


def _cache_of(model: LlamaModel, sizes: CacheSizes, *, drafter: bool) -> LlamaCache:
    if sizes.width is None and model.has_states:
        rows = sizes.rows + CARRY * sizes.sequences
        return Restore(model, replace(sizes, rows=rows), ahead=drafter)
    if sizes.width is None:
        return LlamaCache(model, sizes)
    if model.has_states:
        reason = "keeps states that rows cannot be removed from"
        effect = "so its steps cannot be filled up to one width"
        raise ConfigError(f"{model.name} {reason}, {effect}", "leave --reproducible out")
    return FixedWidth(model, sizes)


def _takes_back(cache: LlamaCache) -> bool:
    """Return True if a token's logits stay the same after two others were taken back before it."""

    def last_row(position: int, *ids: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = cache.run([Span(0, position, ids, logits=True)], len(ids))[-1]
        return row.copy()

    try:
        last_row(0, 1, 2)
        expected = last_row(2, 3)
        cache.clear(0)
        last_row(0, 1)
        last_row(1, 2, 4, 5)
        if not cache.trim(0, 2):
            return False
        spread = float(expected.max() - expected.mean())
        difference = float(np.abs(last_row(2, 3) - expected).max())
    except EngineError:
        return False
    finally:
        cache.clear(0)
    return difference <= NOISE * spread
