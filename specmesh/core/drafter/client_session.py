"""A verifier's session that a client of this drafter asked for: its request, and what the client is sent of it.

Committed ids wait for their log-probabilities, which come later or never.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from specmesh.core.events import Learned
from specmesh.core.fields import Json
from specmesh.core.requests import (
    DrafterRequest,
    Finished,
    Reply,
    RequestState,
    Scored,
    Started,
    Tokens,
)
from specmesh.core.sampling.logprobs import Logprob, unflattened
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m


@dataclass(slots=True)
class CommittedIds:
    """Ids from position `base`, `accepted` of them drafted, that wait for their log-probabilities, by position."""

    base: int
    ids: tuple[int, ...]
    accepted: int
    logprobs: dict[int, Logprob | None] = field(default_factory=dict)


@dataclass(slots=True)
class ClientSession:
    """A session and, where a client here asked for it, its request. key: in the core. ref: of the OPEN that asked for
    it, or 0. draft_n: as last sent. n_truth: ids learned, which are kept for a client. broken: the verifier's ERROR
    about it."""

    id: int
    key: int
    n_prompt: int
    end_ids: Collection[int]
    pending: DrafterRequest | None
    ref: int = 0
    draft_n: int = 0
    draft_tokens: int = 0
    draft_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    n_truth: int = 0
    broken: SpecmeshError | None = None
    _truth: list[int] = field(default_factory=list)
    _waiting: CommittedIds | None = None
    _scores: list[Logprob] = field(
        default_factory=list
    )  # of the prompt's ids but the first, where these are echoed

    @property
    def _prompt_ids(self) -> tuple[int, ...]:
        return tuple(self._truth[: self.n_prompt])

    def learned(self, news: Learned) -> list[Reply]:
        """Take in committed ids, the prompt first. The client gets them at once or with their log-probabilities, which
        follow them, or never come."""
        begin, self.n_truth, pending = self.n_truth, self.n_truth + len(news.ids), self.pending
        replies = list[Reply]()
        if pending is None:
            return replies
        self._truth += news.ids
        if begin < self.n_prompt <= self.n_truth and not pending.started:
            pending.started = True
            started = Started(self.id, self.n_prompt, self._prompt_ids, pending.request.params)
            replies.append(Reply(pending.client, started))
        base = max(begin, self.n_prompt + pending.request.known)
        ids = news.ids[base - begin :]
        if not ids:
            return replies
        if pending.request.params.logprobs is None:
            replies.append(self._tokens(pending, ids, news.accepted))
        elif self._waiting is not None and news.sync:
            self._waiting.ids += ids  # log-probabilities come anew
        else:
            replies += self._take_waiting()
            self._waiting = CommittedIds(base, ids, news.accepted)
        return replies

    def add(self, logprobs: m.Logprobs) -> list[Reply]:
        """Add log-probabilities of committed ids, and send these once all are here; so those of an echoed prompt."""
        waiting, found = (
            self._waiting,
            unflattened((logprobs.chosen, logprobs.top_ids, logprobs.top)),
        )
        echoed, replies = (
            self.pending is not None and self.pending.request.params.scored,
            list[Reply](),
        )
        if (
            self.pending is not None
            and echoed
            and logprobs.base == len(self._scores) + 1 < self.n_prompt
        ):
            self._scores += found[: self.n_prompt - logprobs.base]
            if len(self._scores) == self.n_prompt - 1:
                replies.append(Reply(self.pending.client, Scored(tuple(self._scores))))
        if waiting is None:
            return replies
        positions = range(waiting.base, waiting.base + len(waiting.ids))
        waiting.logprobs |= {
            at: one for at, one in enumerate(found, logprobs.base) if at in positions
        }
        return replies + (self._take_waiting() if len(waiting.logprobs) == len(waiting.ids) else [])

    def done(self, reason: str, report: Json) -> list[Reply]:
        """Send the end, with the verifier's report and this drafter's own time and bytes."""
        if self.pending is None:
            return []
        own = {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        report = report | own | {"draft_ms": round(self.draft_seconds * 1e3, 3)}
        return [*self._take_waiting(), *self._finished(Finished(reason, self._prompt_ids, report))]

    def cancelled(self) -> list[Reply]:
        return self._finished(Finished(m.FinishReason.CANCELLED, self._prompt_ids, {}))

    def failed(self, error: SpecmeshError) -> list[Reply]:
        pending, self.pending = self.pending, None
        return [pending.fail(error)] if pending is not None else []

    def interrupted(self) -> DrafterRequest | None:
        """Return the request, changed to resume after what the client has been sent; nothing is sent here any more."""
        if self.pending is None:
            return None
        pending, self.pending = self.pending, None
        request = pending.request
        if self.n_truth >= self.n_prompt:
            # what lacks its log-probabilities comes again
            sent = tuple(
                self._truth[
                    self.n_prompt : self._waiting.base if self._waiting is not None else None
                ]
            )
            generated, known = max(sent, request.generated, key=len), max(request.known, len(sent))
            pending.request = replace(
                request, prompt_ids=self._prompt_ids, messages=(), generated=generated, known=known
            )
        return pending

    def _finished(self, end: Finished) -> list[Reply]:
        pending, self.pending = self.pending, None
        if pending is None:
            return []
        pending.move(RequestState.OVER)
        return [Reply(pending.client, end)]

    def _take_waiting(self) -> list[Reply]:
        one, self._waiting = self._waiting, None
        if one is None or self.pending is None:
            return []
        logprobs = tuple(one.logprobs.get(at) for at in range(one.base, one.base + len(one.ids)))
        return [self._tokens(self.pending, one.ids, one.accepted, logprobs)]

    def _tokens(
        self,
        pending: DrafterRequest,
        ids: tuple[int, ...],
        accepted: int,
        logprobs: tuple[Logprob | None, ...] = (),
    ) -> Reply:
        ended = (
            ids[-1] in self.end_ids and not pending.request.params.scored
        )  # only the last can be an end id
        shown = ids[:-1] if ended else ids
        return Reply(
            pending.client, Tokens(shown, min(accepted, len(shown)), logprobs[: len(shown)])
        )
