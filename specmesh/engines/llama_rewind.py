"""How the last rows of a sequence are taken back, one class per way that a model's memory allows.

Attention forgets rows one by one (`Removal`). A recurrent layer keeps one state for all it has read, so the state of an
earlier place must have been kept: by llama.cpp itself (`Rollback`), or by us (`Restore`).

In all of them `trim` only notes the new length where that saves work; `prepare` brings the memory up to date, so that
the time of a step holds what the step before it left to mend.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specmesh.engines.base import Span, Trimming
from specmesh.engines.llama_cache import LlamaCache, SavedState
from specmesh.errors import EngineError

CARRY = 8
"""Most ids that are decoded again as part of the next step. More are decoded on their own, and saved after."""

RENEW = 32
"""Ids after which a drafter saves anew: as far as it drafts ahead, so the save before reaches behind the chain."""


class Rewind(Protocol):
    """What `LlamaContext` does around each step."""

    @property
    def trimming(self) -> Trimming:
        """The name of this way."""
        ...

    def prepare(self, spans: Sequence[Span]) -> list[Span]:
        """Make the memory hold what was left of each sequence, and say what to run for `spans`; raises EngineError."""
        ...

    def done(self, spans: Sequence[Span]) -> None:
        """Note that `spans` were run."""
        ...

    def trim(self, seq: int, length: int) -> bool:
        """Keep `length` ids, 0 < length < held; False, with nothing changed, where that is out of reach."""
        ...

    def clear(self, seq: int) -> None:
        """Empty a sequence and free what was kept for it."""
        ...

    def recover(self, seq: int, held: int) -> int:
        """After a failed step: bring a sequence back to `held` ids or to nothing; returns how many it holds."""
        ...


class Removal:
    """Rows are removed from the memory itself; or, with `works` off, cannot be."""

    def __init__(self, cache: LlamaCache, *, works: bool = True) -> None:
        self._cache = cache
        self._works = works

    @property
    def trimming(self) -> Trimming:
        """The name of this way."""
        return "removal" if self._works else "none"

    def prepare(self, spans: Sequence[Span]) -> list[Span]:
        """The spans as they are."""
        return list(spans)

    def done(self, spans: Sequence[Span]) -> None:
        """Nothing to note."""

    def trim(self, seq: int, length: int) -> bool:
        """Any length is within reach."""
        return self._works and self._cache.remove(seq, length)

    def clear(self, seq: int) -> None:
        """Empty a sequence."""
        self._cache.forget(seq)

    def recover(self, seq: int, held: int) -> int:
        """Cut what a failed step left."""
        if self._cache.remove(seq, held):
            return held
        self._cache.forget(seq)
        return 0


class Rollback:
    """llama.cpp keeps the state after each of the last rows (`n_rs_seq`) and goes back to one of them.

    It keeps them for the last part of a batch that a sequence was in, wherever that ran: `remove` says yes for places
    whose state was never written. And while a part of a batch holds several sequences it moves states about and takes
    only the newest of each along. So what may be taken back is bounded here, by the rows of the last step. And where
    several sequences may take rows back they are run last and in one part: llama.cpp makes one where all have the same
    number of rows, so the shorter get rows that are taken back at once.
    """

    trimming: Trimming = "rollback"

    def __init__(self, cache: LlamaCache, n_seq: int) -> None:
        self._cache = cache
        self._length = [0] * n_seq  # ids that count
        self._held = [0] * n_seq  # ids in llama.cpp's memory
        self._floor = [0] * n_seq  # the shortest length within reach

    def prepare(self, spans: Sequence[Span]) -> list[Span]:
        """Roll back what was trimmed; run what cannot be taken back first; fill short spans up."""
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
                end = span.end
                self._held[span.seq] = end + missing
                yield Span(span.seq, end, (0,) * missing, logits=False)

    def _reachable(self, spans: Sequence[Span]) -> bool:
        """Whether rows of these spans, run as one part, can be taken back."""
        once = len({span.seq for span in spans}) == len(spans)
        return once and max((len(span.ids) for span in spans), default=0) <= self._cache.snapshots + 1

    def done(self, spans: Sequence[Span]) -> None:
        """Note the lengths, and that all but the first row of a span with logits can be taken back."""
        reachable = self._reachable([span for span in spans if span.logits])
        for span in spans:
            end = span.end
            self._length[span.seq] = end
            self._held[span.seq] = max(self._held[span.seq], end)
            self._floor[span.seq] = span.position + 1 if span.logits and reachable else end

    def trim(self, seq: int, length: int) -> bool:
        """Lengths inside the sequence's last step are within reach, until the next step of any."""
        if length < self._floor[seq]:
            return False
        self._length[seq] = length
        return True

    def clear(self, seq: int) -> None:
        """Empty a sequence."""
        self._cache.forget(seq)
        self._length[seq] = self._held[seq] = self._floor[seq] = 0

    def recover(self, seq: int, held: int) -> int:  # noqa: ARG002 - which states a failed step wrote is not known
        """Empty the sequence."""
        self.clear(seq)
        return 0


@dataclass(slots=True)
class _Mark:
    """A saved state and how many ids it stands for; None for no ids."""

    length: int
    state: SavedState | None


@dataclass(slots=True)
class _Track:
    """One sequence: its saved states, oldest first, the ids since the oldest, and whether some were taken back."""

    marks: list[_Mark] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    length: int = 0
    behind: bool = False
    spare: SavedState | None = None

    def since(self, mark: _Mark) -> tuple[int, ...]:
        """The ids that `mark` does not hold."""
        return tuple(self.ids[mark.length - self.marks[0].length :])

    def drop_oldest(self) -> None:
        gone = self.marks.pop(0)
        self.spare = gone.state or self.spare
        self.ids = self.ids[self.marks[0].length - gone.length :] if self.marks else []

    def drop_newest(self) -> None:
        self.spare = self.marks.pop().state or self.spare


class Restore:
    """The state is saved before rows that may be taken back. After that it is restored and what stays decoded again.

    The ids to decode again ride at the head of the next step, which reads the weights only once; the save then stays
    where it is, and reaches back over both steps. Beyond CARRY ids they are decoded on their own instead, and the
    state is saved after them, so that the next time there are fewer.

    ahead: False for a verifier: each step with drafts is saved before, and reaches back to its own start. True for a
           drafter, whose rows come one by one: saved every RENEW ids, two at a time, so that the older reaches
           behind everything drafted.
    """

    trimming: Trimming = "restore"

    def __init__(self, cache: LlamaCache, n_seq: int, rows: int, *, ahead: bool) -> None:
        self._cache = cache
        self._rows = rows
        self._ahead = ahead
        self._tracks = [_Track() for _ in range(n_seq)]

    def prepare(self, spans: Sequence[Span]) -> list[Span]:
        """Restore what was trimmed, save what may be, and put the ids to decode again before the spans."""
        seqs = list(dict.fromkeys(span.seq for span in spans))
        again = {seq: self._restored(seq) for seq in seqs}
        alone = [span for span in again.values() if span is not None and len(span.ids) > CARRY]
        for part in _parts(alone, self._rows):
            self._cache.run(part)
        carried = {seq: span for seq, span in again.items() if span is not None and span not in alone}
        settled = {span.seq for span in alone}
        for seq in seqs:
            if seq not in carried and self._due(seq, spans, settled=seq in settled):
                self._save(seq)
        first = {seq: next(index for index, span in enumerate(spans) if span.seq == seq) for seq in carried}
        return [
            part
            for index, span in enumerate(spans)
            for part in ([carried[span.seq], span] if first.get(span.seq) == index else [span])
        ]

    def _restored(self, seq: int) -> Span | None:
        """Bring the memory back to the newest save that is not too new; what must be decoded again."""
        track = self._tracks[seq]
        if not track.behind:
            return None
        while track.marks[-1].length > track.length:
            track.drop_newest()
        mark = track.marks[-1]
        self._cache.load(seq, mark.length, mark.state)
        track.behind = False
        ids = track.since(mark)
        return Span(seq, mark.length, ids, logits=False) if ids else None

    def _due(self, seq: int, spans: Sequence[Span], *, settled: bool) -> bool:
        """Whether the state must be saved before these spans. settled: ids were decoded again to get here."""
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
        """Note the ids; a save that nothing will go back to is dropped, its memory kept for the next."""
        for seq in {span.seq for span in spans}:
            if not self._ahead and not _drafts(seq, spans) and self._tracks[seq].marks:
                self._tracks[seq].drop_oldest()
        for span in spans:
            track = self._tracks[span.seq]
            track.length += len(span.ids)
            if track.marks:
                track.ids += span.ids

    def trim(self, seq: int, length: int) -> bool:
        """Lengths from the oldest save on are within reach."""
        track = self._tracks[seq]
        if not track.marks or length < track.marks[0].length:
            return False
        del track.ids[length - track.marks[0].length :]
        track.length, track.behind = length, True
        return True

    def clear(self, seq: int) -> None:
        """Empty a sequence and free its saved states."""
        self._cache.forget(seq)
        self._tracks[seq] = _Track()

    def recover(self, seq: int, held: int) -> int:  # noqa: ARG002 - what a failed step left is not known
        """Empty the sequence."""
        self.clear(seq)
        return 0


def _drafts(seq: int, spans: Sequence[Span]) -> bool:
    return any(span.seq == seq and span.logits and len(span.ids) > 1 for span in spans)


def _parts(spans: Sequence[Span], rows: int) -> Iterator[list[Span]]:
    """Spans as decodes of at most `rows` rows."""
    part: list[Span] = []
    room = rows
    for span in spans:
        start = 0
        while start < len(span.ids):
            ids = span.ids[start : start + room]
            part.append(Span(span.seq, span.position + start, ids, logits=False))
            start, room = start + len(ids), room - len(ids)
            if room == 0:
                yield part
                part, room = [], rows
    if part:
        yield part
