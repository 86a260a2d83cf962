"""Memories that do more than `LlamaCache`.

FixedWidth runs steps of one width. Restore is for models whose rows cannot be removed: attention
forgets rows one by one, but a recurrent layer keeps one state, so that of an earlier position must
have been saved before.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.engines.base import Trimming
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, SavedState
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.llama.windows import WindowCache, has_keeper
from specmesh.errors import ConfigError, EngineError, LocalProtocolError

CARRY = 8
"""Most tokens that are decoded again within the next step.

More are decoded on their own, and the state is saved after them.
"""

SAVE_EVERY = 32
"""Tokens after which a drafter saves again.

It drafts as far ahead at most, so the save before reaches behind all drafts.
"""

LEAST_NATIVE_BYTES = 64 * 2**20
"""Memory that the states of native rollback may always take."""

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

    atomic = False

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


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved state.

    length: tokens before it. state: None is that of an empty sequence.
    checkpoint: the daemon's core has ordered it, and drops it.
    """

    length: int
    state: SavedState | None
    checkpoint: bool = False


_EMPTY = _Saved(0, None)


@dataclass(slots=True)
class _Track:
    """One sequence of Restore.

    ids: its tokens.
    saved: its states, the shortest first.
    behind: tokens were taken back, and the memory has not been restored yet.
    """

    ids: list[int] = field(default_factory=list)
    saved: list[_Saved] = field(default_factory=lambda: [_EMPTY])
    behind: bool = False

    def newest(self, length: int) -> _Saved | None:
        """Return the longest state of at most `length` tokens."""
        found: _Saved | None = None
        for saved in self.saved:
            if saved.length <= length:
                found = saved
        return found

    def add(self, saved: _Saved) -> None:
        """Add a state in its place, instead of another of its length."""
        others = [other for other in self.saved if other.length != saved.length]
        self.saved = sorted([*others, saved], key=lambda other: other.length)

    def cut(self, length: int) -> None:
        """Forget tokens, and the states beyond them."""
        del self.ids[length:]
        self.saved = [saved for saved in self.saved if saved.length <= length]


class Restore(LlamaCache):
    """Saves the state before rows that may be taken back, and at checkpoints.

    To take rows back, the state is restored, and the tokens that stay are decoded again:

    - Up to CARRY tokens go at the head of the next step, which reads the weights only once.
    - More tokens are decoded on their own, and the state is saved after them.

    Where llama.cpp keeps the states of the last rows (`CacheSizes.native`), the rows of the newest
    step but its first are taken back by removing them, and nothing is saved for them. llama.cpp
    answers True for others too, and goes on from a wrong state.

    native: most rows that are taken back by removing them; 0 where llama.cpp cannot.
    state_bytes: size of a saved state, once `open_cache` has measured it.
    ahead: False for a verifier, which saves before each step with drafts. True for a drafter, whose
        rows come one by one: it saves every SAVE_EVERY tokens and keeps two states, so that the
        older reaches behind everything drafted.
    """

    trimming: Trimming = "restore"
    atomic = False

    def __init__(self, model: LlamaModel, sizes: CacheSizes, *, ahead: bool) -> None:
        super().__init__(model, sizes)
        # The part of attention layers stays in its cells: `remove` cuts it.
        self._state_flags = int(self.lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        self._ahead = ahead
        self._most_states = 2 if ahead else 1
        self._tracks = [_Track() for _ in range(sizes.sequences)]
        self.native = int(self.lib.llama_n_rs_seq(self._handle))
        self.state_bytes = 0
        # By sequence the first of the rows that can be taken back natively.
        self._newest: dict[int, int] = {}

    def run(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        prepared = self._prepared(spans)
        self._newest = {}
        logits = self._decoded(prepared, outputs)
        for span in spans:
            self._tracks[span.seq].ids += span.ids
        return logits

    def _decoded(self, spans: Sequence[Span], outputs: int) -> NDArray[np.float32]:
        """Run a step whose spans with drafts may be taken back natively.

        llama.cpp keeps the states of the last rows in places that a later batch of several
        sequences may give away, and splits a step of unequal spans into such batches. So the spans
        with drafts come last, in one decode if they are equally long, else in one each.
        """
        drafted = self._drafted(spans)
        lengths = {len(span.ids) for span in drafted}
        parts: list[list[Span]] = []
        others = [span for span in spans if span not in drafted]
        if others:
            parts.append(others)
        rows = sum(len(span.ids) for span in drafted)
        if len(lengths) > 1 or rows > self._ubatch:
            parts += [[span] for span in drafted]
        elif drafted:
            parts.append(drafted)
        for span in drafted:
            self._newest[span.seq] = span.position
        if len(parts) == 1:
            return super().run(spans, outputs)
        found: dict[int, NDArray[np.float32]] = {}
        for part in parts:
            logits = super().run(part, sum(len(span.ids) for span in part if span.logits))
            start = 0
            for span in part:
                if span.logits:
                    found[id(span)] = logits[start : start + len(span.ids)].copy()
                    start += len(span.ids)
        blocks = [found[id(span)] for span in spans if span.logits]
        return np.concatenate(blocks) if blocks else self.logits(0)

    def _drafted(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans whose rows but the first can be taken back natively."""
        counts = Counter(span.seq for span in spans)
        found: list[Span] = []
        for span in spans:
            is_short = 1 < len(span.ids) <= self.native + 1
            if span.logits and is_short and counts[span.seq] == 1:
                found.append(span)
        return found

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
        saved = track.saved[-1]
        self.load(seq, saved.length, saved.state)
        track.behind = False
        ids = tuple(track.ids[saved.length :])
        if not ids:
            return None
        return Span(seq, saved.length, ids, logits=False)

    def _due(self, seq: int, spans: Sequence[Span], *, settled: bool) -> bool:
        """Return True if a state is to be saved before these spans.

        settled: tokens were just decoded again on their own.
        """
        track = self._tracks[seq]
        since = len(track.ids) - track.saved[-1].length
        if since <= 0:
            return False
        if self._ahead:
            return settled or since >= SAVE_EVERY
        own = [span for span in spans if span.seq == seq]
        if self._drafted(own):
            return False
        return any(span.logits and len(span.ids) > 1 for span in own)

    def _save(self, seq: int) -> None:
        track = self._tracks[seq]
        reused = None
        own = [saved for saved in track.saved if not saved.checkpoint]
        if len(own) >= self._most_states:
            track.saved.remove(own[0])
            reused = own[0].state
        track.add(_Saved(len(track.ids), self.save(seq, reused)))

    def trim(self, seq: int, length: int) -> bool:
        track = self._tracks[seq]
        first = self._newest.get(seq)
        removed = len(track.ids) - length
        if first is not None and first < length and removed <= self.native and not track.behind:
            del self._newest[seq]  # llama.cpp takes rows back once
            if self.remove(seq, length):
                track.cut(length)
                return True
        if track.newest(length) is None:
            return False
        track.cut(length)
        track.behind = True
        return True

    def clear(self, seq: int) -> None:
        super().clear(seq)
        self._tracks[seq] = _Track()
        self._newest.pop(seq, None)

    # --- checkpoints

    def keep(self, seq: int) -> None:
        """Save a checkpoint of a sequence. Raises EngineError."""
        again = self._restored(seq)
        if again is not None:
            self._newest = {}
            self.read(again)
        track = self._tracks[seq]
        track.add(_Saved(len(track.ids), self.save(seq), checkpoint=True))

    def drop(self, seq: int, length: int) -> None:
        """Forget a checkpoint."""
        track = self._tracks[seq]
        track.saved = [saved for saved in track.saved if saved.length != length] or [_EMPTY]

    def share(self, seq: int, source: int, length: int) -> None:
        """Let the empty `seq` begin with a checkpoint of `source`.

        Raises LocalProtocolError if there is none of this length.
        """
        origin = self._tracks[source]
        saved = origin.newest(length)
        if saved is None or saved.length != length or not saved.checkpoint:
            reason = f"no state of {length} ids was saved"
            raise LocalProtocolError(f"sequence {source} cannot share ids: {reason}")
        super().share(seq, source, length)
        self.load(seq, length, saved.state)
        track = self._tracks[seq]
        track.ids = origin.ids[:length]
        track.saved = []
        for other in origin.saved:
            if other.checkpoint and other.length <= length:
                track.saved.append(other)

    @property
    def kept_bytes(self) -> int:
        """Return the size of all checkpoints."""
        states: dict[int, int] = {}
        for track in list(self._tracks):
            for saved in list(track.saved):
                if saved.checkpoint and saved.state is not None:
                    states[id(saved.state)] = len(saved.state)
        return sum(states.values())


def open_cache(model: LlamaModel, sizes: CacheSizes, *, drafter: bool) -> LlamaCache:
    """Reserve a model's memory. Raises ConfigError.

    A drafter's wrong state costs drafts only, but a verifier's would be in the text, so it is
    tested.
    """
    if sizes.width is not None or not model.has_states:
        cache = _attention(model, sizes)
        _warm_up(model, cache)
        if not model.on_gpu:
            cache.align_scratch()
        return cache
    sizes = replace(sizes, rows=sizes.rows + CARRY * sizes.sequences)
    if not drafter:
        sizes = replace(sizes, native=_native_rows(model, sizes))
    restore = _opened(model, sizes, drafter=drafter)
    if restore.native and not _takes_back(restore):
        restore.close()
        restore = _opened(model, replace(sizes, native=0), drafter=drafter)
    if drafter:
        return restore
    native = restore.native
    restore.native = 0
    takes_back = _takes_back(restore)
    restore.native = native
    if not takes_back:
        restore.close()
        reason = f"{model.name} does not return to a saved state, so it cannot verify"
        raise ConfigError(reason, "choose another model")
    return restore


def _attention(model: LlamaModel, sizes: CacheSizes) -> LlamaCache:
    if has_keeper(model, sizes):
        return WindowCache(model, sizes)
    if sizes.width is None:
        return LlamaCache(model, sizes)
    if model.has_states:
        reason = "keeps states that rows cannot be removed from"
        effect = "so its steps cannot be filled up to one width"
        raise ConfigError(f"{model.name} {reason}, {effect}", "leave --reproducible out")
    return FixedWidth(model, sizes)


def _opened(model: LlamaModel, sizes: CacheSizes, *, drafter: bool) -> Restore:
    cache = Restore(model, sizes, ahead=drafter)
    _warm_up(model, cache)
    return cache


def _warm_up(model: LlamaModel, cache: LlamaCache) -> None:
    """Run a first step, and measure a state; close the cache and raise ConfigError if it fails."""
    empty = cache.attention_bytes(0)
    try:
        cache.run([Span(0, 0, (0, 0), logits=False)], 0)
    except EngineError as error:
        cache.close()
        raise ConfigError(f"{model.name} does not run: {error}") from error
    if isinstance(cache, Restore):
        cache.state_bytes = cache.size_of(0)
    elif isinstance(cache, WindowCache):
        cache.measure(2)
    cache.cell_bytes = _cell_bytes(cache, empty)
    cache.clear(0)


def _cell_bytes(cache: LlamaCache, empty: int) -> int:
    """Return the bytes of a token, of which the first sequence has two.

    empty: bytes of a state without tokens. One with tokens has a header, too, so the second token
    is measured alone if the model lets go of it.
    """
    both = cache.attention_bytes(0)
    if cache.remove(0, 1):
        return both - cache.attention_bytes(0)
    return (both - empty) // 2


def _native_rows(model: LlamaModel, sizes: CacheSizes) -> int:
    """Return how many rows llama.cpp may take back: it keeps a state for each, of each sequence.

    They get up to half of the size of the weights. 0 if the model's kind has no native rollback.
    """
    small = replace(
        sizes, n_ctx=64, shared_cells=None, max_sessions=1, guests=0, rows=8, outputs=2, native=1
    )
    probe = _opened(model, small, drafter=False)
    size = probe.state_bytes * sizes.sequences
    has_native = probe.native > 0
    probe.close()
    if not has_native or not size:
        return 0
    weights: int = model.lib.llama_model_size(model.handle)
    room = max(weights // 2, LEAST_NATIVE_BYTES)
    return min(room // size, sizes.drafts, sizes.rows - 2)


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
