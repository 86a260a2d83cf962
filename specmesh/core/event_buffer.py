"""What a drafter's client is to be sent next: committed ids wait for what belongs to them, and comes later or never."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specmesh.core.sampling.logprobs import Logprob


@dataclass(slots=True)
class BufferedIds:
    """Committed ids at `positions`, `accepted` of them drafted. awaited: their round, with its `drafts`, is to come."""

    positions: range
    ids: tuple[int, ...]
    accepted: int
    awaited: bool
    drafts: tuple[int, ...] | None = None
    logprobs: tuple[Logprob | None, ...] = ()


class EventBuffer:
    """Committed ids in order, until their rounds and log-probabilities are here, where asked for."""

    def __init__(self, *, rounds: bool, logprobs: bool) -> None:
        self._rounds, self._asked = rounds, logprobs
        self._waiting: deque[BufferedIds] = deque()
        self._begin = self._end = 0  # of the ids that wait, or are next
        self._complete = 0  # before this position no more log-probabilities come
        self._logprobs: dict[int, Logprob] = {}  # by position

    @property
    def first(self) -> int | None:
        return self._begin if self._waiting else None

    def add(self, base: int, ids: tuple[int, ...], accepted: int, *, sync: bool) -> None:
        """Add committed ids. After a SYNC no round comes for earlier ids, and log-probabilities come anew."""
        if sync:
            self.give_up_rounds()
            self._complete = min(self._complete, base)
        if not self._waiting:
            self._begin = base
            self._logprobs = {position: one for position, one in self._logprobs.items() if position >= base}
        self._end = base + len(ids)
        self._waiting.append(BufferedIds(range(base, self._end), ids, accepted, self._rounds and not sync))

    def add_round(self, drafts: tuple[int, ...], accepted: int) -> None:
        waiting = next((one for one in self._waiting if one.awaited), None)
        if waiting is not None:
            waiting.awaited, waiting.drafts, waiting.accepted = False, drafts, accepted

    def add_logprobs(self, base: int, logprobs: Sequence[Logprob]) -> None:
        """Keep those of ids that are here: others come again after the SYNC that brings their ids."""
        self._complete = max(self._complete, min(base + len(logprobs), self._end))
        for position, one in enumerate(logprobs, base):
            if self._begin <= position < self._end:
                self._logprobs[position] = one

    def give_up_rounds(self) -> None:
        for waiting in self._waiting:
            waiting.awaited = False

    def give_up(self) -> None:
        """Wait for nothing more."""
        self.give_up_rounds()
        self._complete = max(self._complete, self._end)

    def ready(self) -> Iterator[BufferedIds]:
        """Remove and yield what waits for nothing more, in order."""
        while self._waiting and not self._waiting[0].awaited:
            first, positions = self._waiting[0], self._waiting[0].positions
            if self._asked:
                if positions.stop > self._complete and not all(position in self._logprobs for position in positions):
                    return
                first.logprobs = tuple(self._logprobs.pop(position, None) for position in positions)
            self._waiting.popleft()
            self._begin = positions.stop
            yield first
