"""A verifier's session that a client of this drafter asked for: its request, and what the client is sent of it.

Committed ids wait for what belongs to them, and comes later or never.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specmesh.core.events import Learned
from specmesh.core.report import Report, with_drafting
from specmesh.core.requests import DrafterRequest, Finished, RequestState, Started, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.verifier_events import LogprobsTold
from specmesh.errors import SpecmeshError


@dataclass(frozen=True, slots=True)
class RoundTold:
    """The drafts that led to committed ids, told before."""

    drafts: tuple[int, ...]
    accepted: int


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
        self._logprobs: dict[int, Logprob | None] = {}  # by position

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

    def add_logprobs(self, base: int, logprobs: Sequence[Logprob | None]) -> None:
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


@dataclass(slots=True)
class ClientSession:
    """A session and, where a client here asked for it, its request.

    key: in the core. ref: of the OPEN that asked for it, or 0. draft_n: as last told. n_truth: ids learned, which are
    kept for a client. broken: the verifier's ERROR about it.
    """

    id: int
    key: int
    n_prompt: int
    end_ids: Collection[int]
    pending: DrafterRequest | None
    ref: int = 0
    draft_n: int = 0
    drafted: int = 0
    draft_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    n_truth: int = 0
    broken: SpecmeshError | None = None
    _truth: list[int] = field(default_factory=list)
    _buffer: EventBuffer = field(init=False)

    def __post_init__(self) -> None:
        request = self.pending.request if self.pending is not None else None
        self._buffer = EventBuffer(
            rounds=request is not None and request.rounds,
            logprobs=request is not None and request.params.logprobs is not None,
        )

    @property
    def _prompt_ids(self) -> tuple[int, ...]:
        return tuple(self._truth[: self.n_prompt])

    def learned(self, news: Learned) -> int:
        """Take in committed ids, the prompt first; return how many generated ones are new to the client."""
        begin, self.n_truth = self.n_truth, self.n_truth + len(news.ids)
        if self.pending is None:
            return self.n_truth - max(begin, min(self.n_prompt, self.n_truth))
        self._truth += news.ids
        if begin < self.n_prompt <= self.n_truth:
            self._start(self.pending)
        base = max(begin, self.n_prompt + self.pending.request.known)
        ids = news.ids[base - begin :]
        if ids:
            self._buffer.add(base, ids, news.accepted, sync=news.sync)
            self._send_ready()
        return len(ids)

    def add(self, told: RoundTold | LogprobsTold) -> None:
        """Add what belongs to committed ids."""
        if isinstance(told, RoundTold):
            self._buffer.add_round(told.drafts, told.accepted)
        else:
            self._buffer.add_logprobs(told.base, told.logprobs)
        self._send_ready()

    def done(self, reason: str, report: Report) -> None:
        """Send the end, with the verifier's report and this drafter's own time and bytes."""
        if self.pending is None:
            return
        self._buffer.give_up()
        self._send_ready()
        report = with_drafting(report, self.drafted, self.draft_seconds)
        report |= {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        self._finish(self.pending, Finished(reason, self._prompt_ids, report))

    def cancelled(self) -> None:
        if self.pending is not None:
            self._finish(self.pending, Finished("cancelled", self._prompt_ids, {}))

    def failed(self, error: SpecmeshError) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.fail(error)

    def interrupted(self) -> DrafterRequest | None:
        """Return the request, changed to resume after what the client has been sent; nothing is sent here any more."""
        if self.pending is None:
            return None
        self._buffer.give_up_rounds()
        self._send_ready()
        pending, self.pending = self.pending, None
        request = pending.request
        if self.n_truth >= self.n_prompt:
            # what lacks its log-probabilities comes again
            sent = tuple(self._truth[self.n_prompt : self._buffer.first])
            generated, known = max(sent, request.generated, key=len), max(request.known, len(sent))
            pending.request = replace(request, prompt_ids=self._prompt_ids, generated=generated, known=known)
        return pending

    def _start(self, pending: DrafterRequest) -> None:
        if not pending.started:
            pending.started = True
            pending.client.on_event(Started(self.id, self.n_prompt, self._prompt_ids, pending.request.params))

    def _finish(self, pending: DrafterRequest, end: Finished) -> None:
        self.pending = None
        pending.enter(RequestState.OVER)
        pending.client.on_event(end)

    def _send_ready(self) -> None:
        for one in self._buffer.ready():  # only the last can have an end id
            if self.pending is not None:
                shown = one.ids[:-1] if one.ids[-1] in self.end_ids else one.ids
                accepted = min(one.accepted, len(shown))
                self.pending.client.on_event(Tokens(shown, accepted, one.drafts, one.logprobs[: len(shown)]))
