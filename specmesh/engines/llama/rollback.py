"""Taking back the last rows of a sequence, one class per way that a model's memory allows.

Attention forgets rows one by one (`Removal`). A recurrent layer keeps one state, so that of an earlier position must
have been kept: by llama.cpp itself (`Rollback`), or by us (`Restore`). `open_cache` tries which way works.

`trim` may only note the new length; `prepare` brings the memory up to date, within the next step's time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import structlog

from specmesh.core.events import Span
from specmesh.engines.base import Trimming
from specmesh.engines.llama.cache import CacheSizes, LlamaCache, SavedState
from specmesh.engines.llama.model import LlamaModel
from specmesh.errors import ConfigError, EngineError

_log = structlog.get_logger("specmesh.engines.llama")

CARRY = 8
"""Most tokens that are decoded again within the next step. More are decoded on their own, and saved after."""

RENEW = 32
"""Tokens after which a drafter saves again: as far as it drafts ahead, so the save before reaches behind the chain."""

LEAST_BUDGET = 64 * 2**20
"""Bytes that llama.cpp's own states may take, or a quarter of the weights if that is more."""

NOISE = 0.05
"""Share of the logits' spread by which kernels of different width may differ; a wrong state differs by all of it."""


class Removal:
    """Rows are removed from the memory itself; or, with `works` off, cannot be. The base of the other ways."""

    trimming: Trimming = "removal"

    def __init__(self, cache: LlamaCache, *, works: bool = True) -> None:
        self._cache = cache
        if not works:
            self.trimming = "none"

    def prepare(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Bring the memory up to date and return what to run for `spans`. Raises EngineError."""
        return spans

    def done(self, spans: Sequence[Span]) -> None:
        """Note that `spans` were run."""

    def trim(self, seq: int, length: int) -> bool:
        """Keep `length` tokens, 0 < length < held; False, with nothing changed, where that is out of reach."""
        return self.trimming == "removal" and self._cache.remove(seq, length)

    def clear(self, seq: int) -> None:
        """Empty a sequence and free what was kept for it."""
        self._cache.forget(seq)

    def recover(self, seq: int, held: int) -> int:
        """After a failed step return to `held` tokens, or to none; return how many are held."""
        # Which states a failed step wrote is not known.
        if self.trimming in ("removal", "none") and self._cache.remove(seq, held):
            return held
        self.clear(seq)
        return 0


class Rollback(Removal):
    """llama.cpp keeps the state after each of the last rows (`n_rs_seq`) and goes back to one of them.

    It keeps them for the last part of a batch that a sequence was in; `remove` also returns True for positions whose
    state was never written. So only rows of the last step may be taken back, and sequences that may take rows back run
    last and in one part: llama.cpp makes one of equally many rows each, so the shorter are filled up.
    """

    trimming: Trimming = "rollback"

    def __init__(self, cache: LlamaCache, n_seq: int) -> None:
        super().__init__(cache)
        self._length = [0] * n_seq  # tokens that count
        self._held = [0] * n_seq  # tokens in llama.cpp's memory
        self._floor = [0] * n_seq  # the shortest length within reach

    def prepare(self, spans: Sequence[Span]) -> list[Span]:
        for seq, length in enumerate(self._length):
            if self._held[seq] > length and not self._cache.remove(seq, length):
                raise EngineError(f"llama.cpp did not roll sequence {seq} back to {length}")
            self._held[seq] = self._floor[seq] = length
        if len({span.seq for span in spans}) < 2:
            return list(spans)
        quiet = [span for span in spans if not span.logits]
        shown = [span for span in spans if span.logits]
        if quiet and shown:
            self._cache.run(quiet)
        return list(self._filled(shown)) if shown else quiet

    def _filled(self, spans: Sequence[Span]) -> Iterator[Span]:
        width = max(len(span.ids) for span in spans)
        for span in spans:
            yield span
            missing = width - len(span.ids)
            if missing and self._reachable(spans):
                self._held[span.seq] = span.end + missing
                yield Span(span.seq, span.end, (0,) * missing, logits=False)

    def _reachable(self, spans: Sequence[Span]) -> bool:
        """Return whether rows of these spans, run as one part, can be taken back."""
        once = len({span.seq for span in spans}) == len(spans)
        return once and max((len(span.ids) for span in spans), default=0) <= self._cache.snapshots + 1

    def done(self, spans: Sequence[Span]) -> None:
        reachable = self._reachable([span for span in spans if span.logits])
        for span in spans:
            self._length[span.seq] = span.end
            self._held[span.seq] = max(self._held[span.seq], span.end)
            self._floor[span.seq] = span.position + 1 if span.logits and reachable else span.end

    def trim(self, seq: int, length: int) -> bool:
        if length < self._floor[seq]:
            return False
        self._length[seq] = length
        return True

    def clear(self, seq: int) -> None:
        super().clear(seq)
        self._length[seq] = self._held[seq] = self._floor[seq] = 0


class _Mark(NamedTuple):
    length: int
    state: SavedState | None  # None: of no tokens


@dataclass(slots=True)
class _Track:
    """One sequence: its saved states, oldest first, the tokens since the oldest; `behind`: some were taken back."""

    marks: list[_Mark] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    length: int = 0
    behind: bool = False
    spare: SavedState | None = None

    def drop_oldest(self) -> None:
        gone = self.drop(0)
        self.ids = self.ids[self.marks[0].length - gone.length :] if self.marks else []

    def drop(self, index: int) -> _Mark:
        gone = self.marks.pop(index)
        if gone.state is not None:
            self.spare = gone.state
        return gone


class Restore(Removal):
    """The state is saved before rows that may be taken back; then it is restored, and what stays is decoded again.

    Up to CARRY tokens to decode again go at the head of the next step, which reads the weights only once; more are
    decoded on their own, and the state is saved after them.

    ahead: False for a verifier, which saves before each step with drafts. True for a drafter, whose rows come one by
           one: it saves every RENEW tokens and keeps two, so that the older reaches behind everything drafted.
    """

    trimming: Trimming = "restore"

    def __init__(self, cache: LlamaCache, n_seq: int, *, ahead: bool) -> None:
        super().__init__(cache)
        self._ahead = ahead
        self._tracks = [_Track() for _ in range(n_seq)]

    def prepare(self, spans: Sequence[Span]) -> list[Span]:
        prepared: list[Span] = []
        seen: set[int] = set()
        for span in spans:
            if span.seq not in seen:
                seen.add(span.seq)
                again = self._restored(span.seq)
                if again is not None and len(again.ids) <= CARRY:
                    prepared.append(again)
                else:
                    if again is not None:
                        self._cache.read(again)
                    if self._due(span.seq, spans, settled=again is not None):
                        self._save(span.seq)
            prepared.append(span)
        return prepared

    def _restored(self, seq: int) -> Span | None:
        """Restore the newest save that is not too new; return what must be decoded again."""
        track = self._tracks[seq]
        if not track.behind:
            return None
        while track.marks[-1].length > track.length:
            track.drop(-1)
        mark = track.marks[-1]
        self._cache.load(seq, mark.length, mark.state)
        track.behind = False
        ids = tuple(track.ids[mark.length - track.marks[0].length :])
        return Span(seq, mark.length, ids, logits=False) if ids else None

    def _due(self, seq: int, spans: Sequence[Span], *, settled: bool) -> bool:
        """Return whether to save before these spans. settled: tokens were just decoded again on their own."""
        track = self._tracks[seq]
        if track.marks and track.marks[-1].length == track.length:
            return False
        if self._ahead:
            return settled or not track.marks or track.length - track.marks[-1].length >= RENEW
        return _drafts(seq, spans)

    def _save(self, seq: int) -> None:
        track = self._tracks[seq]
        if len(track.marks) > self._ahead:
            track.drop_oldest()
        spare, track.spare = track.spare, None
        state = self._cache.save(seq, spare) if track.length else None
        track.marks.append(_Mark(track.length, state))

    def done(self, spans: Sequence[Span]) -> None:
        # A save that nothing will go back to is dropped, its memory kept for the next.
        for seq in {span.seq for span in spans}:
            if not self._ahead and not _drafts(seq, spans) and self._tracks[seq].marks:
                self._tracks[seq].drop_oldest()
        for span in spans:
            track = self._tracks[span.seq]
            track.length += len(span.ids)
            if track.marks:
                track.ids += span.ids

    def trim(self, seq: int, length: int) -> bool:
        track = self._tracks[seq]
        if not track.marks or length < track.marks[0].length:
            return False
        del track.ids[length - track.marks[0].length :]
        track.length, track.behind = length, True
        return True

    def clear(self, seq: int) -> None:
        super().clear(seq)
        self._tracks[seq] = _Track()


def _drafts(seq: int, spans: Sequence[Span]) -> bool:
    return any(span.seq == seq and span.logits and len(span.ids) > 1 for span in spans)


def open_cache(model: LlamaModel, sizes: CacheSizes, rollback: int) -> tuple[LlamaCache, Removal]:
    """Reserve a model's memory and choose the cheapest way of taking rows back that works. Raises ConfigError.

    rollback: most rows of one step that a verifier takes back; 0 for a drafter, which decodes row by row, while
    llama.cpp's own states are those of one step.
    """
    cache = LlamaCache(model, sizes)
    try:
        if _removes(cache, model):
            return cache, Removal(cache)
        needed = len(cache.save(0)) * (rollback + 1) * sizes.n_seq
    except EngineError:
        return cache, Removal(cache, works=False)
    except BaseException:
        cache.close()
        raise
    cache.close()
    if rollback and needed <= max(model.size // 4, LEAST_BUDGET):
        found = _with_rollback(model, sizes, rollback)
        if found is not None:
            return found
    cache = LlamaCache(model, replace(sizes, rows=sizes.rows + CARRY * sizes.n_seq))
    if _works(cache, rolls_back=False):
        return cache, Restore(cache, sizes.n_seq, ahead=not rollback)
    return cache, Removal(cache, works=False)


def _removes(cache: LlamaCache, model: LlamaModel) -> bool:
    """Return whether plain removal works; also warms up."""
    try:
        cache.run([Span(0, 0, (0, 0), logits=False)])
    except EngineError as error:
        raise ConfigError(f"{model.name} does not run: {error}") from error
    if not cache.remove(0, 1):
        return False
    cache.forget(0)
    return True


def _with_rollback(model: LlamaModel, sizes: CacheSizes, rows: int) -> tuple[LlamaCache, Removal] | None:
    # A part of a batch must hold more rows than are kept, or llama.cpp ends the process; and all sequences at once.
    most = max(sizes.rows, (rows + 1) * sizes.n_seq, rows + 2)
    try:
        cache = LlamaCache(model, replace(sizes, rows=most, snapshots=rows))
    except ConfigError as error:
        _log.warning("rollback_not_possible", model=model.name, reason=str(error))
        return None
    if cache.snapshots == rows and _works(cache, rolls_back=True):
        return cache, Rollback(cache, sizes.n_seq)
    cache.close()
    return None


def _works(cache: LlamaCache, *, rolls_back: bool) -> bool:
    """Return whether a third token's logits stay the same after two others were taken back before it."""

    def run(position: int, *ids: int) -> None:
        cache.run([Span(0, position, ids, logits=len(ids) == 1)])

    try:
        cache.forget(0)
        run(0, 1, 2)
        run(2, 3)
        expected = cache.logits(1)[0].copy()
        cache.forget(0)
        if rolls_back:
            run(0, 1, 2, 4, 5)
            if not cache.remove(0, 2):
                return False
        else:
            run(0, 1, 2)
            state = cache.save(0)
            run(2, 4, 5)
            cache.load(0, 2, state)
        run(2, 3)
        spread = float(expected.max() - expected.mean())
        return float(np.abs(cache.logits(1)[0] - expected).max()) <= NOISE * spread
    except EngineError:
        return False
    finally:
        cache.forget(0)
