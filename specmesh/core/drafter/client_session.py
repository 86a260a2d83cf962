"""A session at a verifier, and the request of this drafter's client that it answers, if any.

The client gets committed ids with their log-probabilities and sources, if it wants them. These come
later than the ids, or never:

- TRUTH goes through the core, which learns it in order; LOGPROBS comes straight here, and may
  overtake it. So LOGPROBS are held until the core has learned their ids.
- The ids of one frame wait until the log-probabilities of each have come. The next frame's ids
  send them off as they are: a LOGPROBS was lost, and a client must not wait for it.
- SYNC brings what was lost. Its ids join those that wait, and the log-probabilities of all come
  anew.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from specmesh.core.drafter.placement import Placement, PlacementEnded
from specmesh.core.events import DraftingEnded, Learned, SessionKey
from specmesh.core.fields import Json
from specmesh.core.requests import (
    Failed,
    Finished,
    PromptRead,
    Reply,
    Scored,
    SourceRun,
    Started,
    Tokens,
)
from specmesh.core.sampling.logprobs import Logprob, unflattened
from specmesh.core.token_sources import TARGET, runs_of
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

ClientEffect = Reply | PlacementEnded

MAX_HELD = 8 * 2**20  # most bytes of LOGPROBS that wait for their ids; the others are lost


@dataclass(slots=True)
class CommittedIds:
    """Ids that wait for their log-probabilities and sources.

    base: position of the first. accepted: how many of them were drafts.
    notes: log-probabilities and sources that have come, by position.
    """

    base: int
    ids: tuple[int, ...]
    accepted: int
    notes: dict[int, tuple[Logprob | None, str]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Return the position after the last id."""
        return self.base + len(self.ids)


@dataclass(slots=True, kw_only=True)
class ClientSession:
    """A session at a verifier.

    id: the verifier's number of it. key: its address in the drafter's core.
    placement: the request that it answers; None if no client here asked for it, or waits for it.
    ref: of the OPEN that asked for it, or 0.
    draft_n: drafts wanted, by the last frame. The upstream writes this, and counts the bytes.
    n_truth: committed ids that the core has learned. They are kept only for a client.
    failure: the verifier's ERROR about it.
    end: the reason of its end, from DONE or the loss of the verifier until the core has closed it.
    """

    id: int
    key: SessionKey
    n_prompt: int
    end_ids: Collection[int]
    placement: Placement | None
    ref: int = 0
    draft_n: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    n_truth: int = 0
    failure: SpecmeshError | None = None
    end: m.Done | SpecmeshError | None = None
    _truth: list[int] = field(default_factory=list)
    _waiting: CommittedIds | None = None
    # Log-probabilities of the prompt, for a client that wants it echoed.
    _scores: list[Logprob] = field(default_factory=list)
    # LOGPROBS whose ids the core has not learned.
    _held: deque[m.Logprobs] = field(default_factory=deque)
    _held_bytes: int = 0

    @property
    def _prompt_ids(self) -> tuple[int, ...]:
        """Return the ids of the prompt that have come."""
        return tuple(self._truth[: self.n_prompt])

    # --- its end

    def note_failure(self, error: SpecmeshError) -> None:
        """Note the error of the verifier that its client gets at the end."""
        self.failure = error

    def end_with(self, end: m.Done | SpecmeshError) -> None:
        """Note the reason of the end, which is due once the core has closed the session."""
        self.end = end

    # --- what its client gets

    def learned(self, learned: Learned) -> list[Reply]:
        """Take committed ids, the prompt first.

        The client gets them at once, or with their log-probabilities.
        """
        begin = self.n_truth
        self.n_truth += len(learned.ids)
        placement = self.placement
        if placement is None:
            return []
        self._truth += learned.ids
        replies = list[Reply]()
        request = placement.request
        # The prompt may come in several frames. The client gets nothing before the last of them.
        if begin < self.n_prompt <= self.n_truth and not placement.started:
            # No other model may go on with the text from now on.
            self.placement = replace(placement, started=True)
            started = Started(self.id, self.n_prompt, self._prompt_ids, request.params)
            replies.append(Reply(placement.client, started))
        base = max(begin, self.n_prompt + request.known)
        ids = learned.ids[base - begin :]
        if not ids:
            pass
        elif not request.params.annotated:
            replies.append(self._tokens(placement, ids, learned.accepted))
        # A SYNC repeats nothing here, but LOGPROBS of all its ids follow it.
        elif self._waiting is not None and learned.sync:
            self._waiting.ids += ids  # those of all come anew
        else:
            replies += self._take_waiting()
            self._waiting = CommittedIds(base, ids, learned.accepted)
        # Frames and the core's effects take two ways, so either may be first.
        while self._held and self._has_learned(self._held[0]):
            replies += self._score(self._held.popleft())
        return replies

    def logprobs(self, logprobs: m.Logprobs, size: int) -> list[Reply] | None:
        """Take a LOGPROBS of so many bytes; hold it until the core has learned its ids.

        Return None if there is no room for it.
        """
        if self.placement is None:
            return []
        if not self._held:
            if self._has_learned(logprobs):
                return self._score(logprobs)
            self._held_bytes = 0
        self._held_bytes += size
        # A hostile verifier could send log-probabilities of ids that never come.
        if self._held_bytes > MAX_HELD:
            return None
        self._held.append(logprobs)
        return []

    def _has_learned(self, logprobs: m.Logprobs) -> bool:
        """Return True if all ids of a LOGPROBS are here."""
        return logprobs.base + logprobs.count <= self.n_truth

    def _score(self, logprobs: m.Logprobs) -> list[Reply]:
        """Add those of a LOGPROBS; return the ids, or the echoed prompt, whose last ones came."""
        found = unflattened((logprobs.chosen, logprobs.top_ids, logprobs.top))
        if logprobs.chosen and not found:
            return []  # its lists do not fit each other
        replies = list[Reply]()
        placement = self.placement
        if placement is not None and placement.request.params.scored:
            replies += self._score_prompt(placement, logprobs.base, found)
        waiting = self._waiting
        if waiting is None:
            return replies
        notes = zip_longest(found, logprobs.sources)
        for position, (logprob, source) in enumerate(notes, logprobs.base):
            if waiting.base <= position < waiting.end:
                waiting.notes[position] = (logprob, source or TARGET)
        if len(waiting.notes) == len(waiting.ids):
            replies += self._take_waiting()
        return replies

    def _score_prompt(self, placement: Placement, base: int, found: list[Logprob]) -> list[Reply]:
        """Add log-probabilities of the prompt, whose first id has none."""
        # The parts come in order. Any other is a repetition.
        if base != len(self._scores) + 1 or base >= self.n_prompt:
            return []
        self._scores += found[: self.n_prompt - base]
        if len(self._scores) < self.n_prompt - 1:
            return []
        return [Reply(placement.client, Scored(tuple(self._scores)))]

    def progress(self, progress: m.Progress) -> list[Reply]:
        """Return how far the prompt is read, for the client, if it wants to know."""
        placement = self.placement
        if placement is None or not placement.request.params.progress:
            return []
        event = PromptRead(
            total=progress.total,
            cached=progress.cached,
            processed=progress.processed,
            seconds=progress.time_ms / 1e3,
        )
        return [Reply(placement.client, event)]

    def done(self, reason: str, report: Json, closed: DraftingEnded) -> list[ClientEffect]:
        """Return the end, with the verifier's report and this drafter's own time and bytes."""
        if self.placement is None:
            return []
        own: Json = {
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "draft_ms": round(closed.draft_seconds * 1e3, 3),
        }
        waiting = self._take_waiting()
        return [*waiting, *self._finished(Finished(reason, self._prompt_ids, report | own))]

    def cancelled(self) -> list[ClientEffect]:
        """Return the end that a client gets that cancels."""
        return self._finished(Finished(m.FinishReason.CANCELLED, self._prompt_ids, {}))

    def failed(self, error: SpecmeshError) -> list[ClientEffect]:
        """Return the failure that its client gets, if it has one."""
        placement = self.placement
        self.placement = None
        if placement is None:
            return []
        return [Reply(placement.client, Failed(error)), PlacementEnded(placement.number)]

    def interrupted(self) -> Placement | None:
        """Return the request, changed to resume after the ids that its client has.

        The client gets nothing from this session any more.
        """
        placement = self.placement
        self.placement = None
        # Not even the prompt is complete: the next verifier gets the request as it was.
        if placement is None or self.n_truth < self.n_prompt:
            return placement
        # Ids without their log-probabilities come again.
        end = self.n_truth if self._waiting is None else self._waiting.base
        sent = tuple(self._truth[self.n_prompt : end])
        return placement.resumed_after(self._prompt_ids, sent)

    def _finished(self, finished: Finished) -> list[ClientEffect]:
        """Give the client its end, if it has not had one. It gets nothing after that."""
        placement = self.placement
        self.placement = None
        if placement is None:
            return []
        return [Reply(placement.client, finished), PlacementEnded(placement.number)]

    def _take_waiting(self) -> list[Reply]:
        """Return the ids that wait, with the log-probabilities and sources that have come."""
        waiting = self._waiting
        self._waiting = None
        if waiting is None or self.placement is None:
            return []
        unknown = (None, TARGET)
        positions = range(waiting.base, waiting.end)
        notes = [waiting.notes.get(position, unknown) for position in positions]
        return [self._tokens(self.placement, waiting.ids, waiting.accepted, notes)]

    def _tokens(
        self,
        placement: Placement,
        ids: tuple[int, ...],
        accepted: int,
        notes: Sequence[tuple[Logprob | None, str]] = (),
    ) -> Reply:
        """Return the ids for the client: without an end id, unless the prompt is echoed.

        notes: the log-probability and the source of each, of which it gets those that it wants.
        """
        count = len(ids)
        params = placement.request.params
        if ids[-1] in self.end_ids and not params.scored:
            count -= 1
        logprobs: tuple[Logprob | None, ...] = ()
        if params.logprobs is not None:
            logprobs = tuple([logprob for logprob, _ in notes[:count]])
        sources: tuple[SourceRun, ...] = ()
        if params.sources:
            sources = runs_of([source for _, source in notes[:count]])
        tokens = Tokens(ids[:count], min(accepted, count), logprobs, sources)
        return Reply(placement.client, tokens)
