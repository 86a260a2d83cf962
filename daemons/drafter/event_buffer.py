"""What a drafter has heard of a text and its client has not: ids wait for what belongs to them."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specmesh.api.requests import Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.wire.messages import Logprobs


@dataclass(slots=True)
class _Waiting:
    """Ids from `base` on. round: their ROUND is to come. found: their log-probabilities, as far as they are here."""

    base: int
    tokens: Tokens
    round: bool
    found: list[Logprob | None]

    @property
    def end(self) -> int:
        return self.base + len(self.tokens.ids)


EARLY = 4096
"""Most log-probabilities that are kept for ids which are not here yet: their TRUTH may have been lost."""


class EventBuffer:
    """Truth in the order in which it came. Each TRUTH waits for its ROUND where the client asked for `rounds`, and all
    ids for their LOGPROBS where it asked for `logprobs`."""

    def __init__(self, *, rounds: bool, logprobs: bool) -> None:
        self._rounds, self._logprobs = rounds, logprobs
        self._waiting: deque[_Waiting] = deque()
        self._end = 0  # of the newest truth
        self._reach = 0  # before this position no more log-probabilities come
        self._early: dict[int, Logprob] = {}  # by position, of ids that are not here yet

    @property
    def first(self) -> int | None:
        """The position of the first id that waits."""
        return self._waiting[0].base if self._waiting else None

    def add(self, base: int, ids: tuple[int, ...], accepted: int, *, sync: bool) -> None:
        """Take in truth. With `sync` it is of any rounds, of those before no ROUND comes any more, and LOGPROBS come
        anew."""
        if sync:
            self.give_up_rounds()
            self._reach = min(self._reach, base)
        found = [self._early.get(position) for position in range(base, base + len(ids))]
        self._end = base + len(ids)
        self._early = {position: one for position, one in self._early.items() if position >= self._end}
        self._waiting.append(_Waiting(base, Tokens(ids, accepted, None), self._rounds and not sync, found))

    def round(self, drafts: tuple[int, ...], accepted: int) -> None:
        for waiting in self._waiting:
            if waiting.round:
                waiting.round = False
                waiting.tokens = Tokens(waiting.tokens.ids, accepted, drafts)
                return

    def logprobs(self, message: Logprobs) -> None:
        """Log-probabilities, of ids that wait or are still to come. Ids before them have none."""
        found = _parsed(message)
        for waiting in self._waiting:
            begin, end = max(waiting.base, message.base), min(waiting.end, message.base + len(found))
            if begin < end:
                part = found[begin - message.base : end - message.base]
                waiting.found[begin - waiting.base : end - waiting.base] = part
        self._reach = max(self._reach, message.base + len(found))
        for position, one in enumerate(found, message.base):
            if position >= self._end and len(self._early) < EARLY:
                self._early[position] = one

    def give_up_rounds(self) -> None:
        """No ROUND comes of what is here."""
        for waiting in self._waiting:
            waiting.round = False

    def give_up(self) -> None:
        """Nothing more comes of what is here."""
        self.give_up_rounds()
        self._reach = max((waiting.end for waiting in self._waiting), default=self._reach)

    def ready(self) -> Iterator[Tokens]:
        """Take out what waits for nothing more, in order."""
        while self._waiting and not self._waiting[0].round:
            if self._logprobs and self._waiting[0].end > self._reach and None in self._waiting[0].found:
                return
            waiting = self._waiting.popleft()
            told = waiting.tokens
            yield Tokens(told.ids, told.accepted, told.drafts, tuple(waiting.found) if self._logprobs else ())


def _parsed(message: Logprobs) -> Sequence[Logprob]:
    """None where the peer's lists do not fit each other."""
    count = len(message.chosen)
    each, odd = divmod(len(message.top_ids), count) if count else (0, 0)
    if odd or len(message.top) != len(message.top_ids):
        return ()
    ids, top = tuple(message.top_ids), tuple(message.top)
    begins = [each * number for number in range(count)]
    return [
        Logprob(chosen, ids[at : at + each], top[at : at + each])
        for chosen, at in zip(message.chosen, begins, strict=True)
    ]
