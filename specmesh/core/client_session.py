"""A verifier's session that a client of this drafter asked for: its request, and what the client is sent of it.

Committed ids wait for their log-probabilities, which come later or never.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from specmesh.core.events import Learned
from specmesh.core.fields import Json
from specmesh.core.requests import DrafterRequest, Finished, RequestState, Scored, Started, Tokens
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
    drafted: int = 0
    draft_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    n_truth: int = 0
    broken: SpecmeshError | None = None
    _truth: list[int] = field(default_factory=list)
    _waiting: CommittedIds | None = None
    _scores: list[Logprob] = field(default_factory=list)  # of the prompt's ids but the first, where these are echoed

    @property
    def _prompt_ids(self) -> tuple[int, ...]:
        return tuple(self._truth[: self.n_prompt])

    def learned(self, news: Learned) -> None:
        """Take in committed ids, the prompt first. The client gets them at once or with their log-probabilities, which
        follow them, or never come."""
        begin, self.n_truth, pending = self.n_truth, self.n_truth + len(news.ids), self.pending
        if pending is None:
            return
        self._truth += news.ids
        if begin < self.n_prompt <= self.n_truth and not pending.started:
            pending.started = True
            pending.client.on_event(Started(self.id, self.n_prompt, self._prompt_ids, pending.request.params))
        base = max(begin, self.n_prompt + pending.request.known)
        ids = news.ids[base - begin :]
        if not ids:
            return
        if pending.request.params.logprobs is None:
            self._send(pending, ids, news.accepted)
        elif self._waiting is not None and news.sync:
            self._waiting.ids += ids  # log-probabilities come anew
        else:
            self._send_waiting()
            self._waiting = CommittedIds(base, ids, news.accepted)

    def add(self, logprobs: m.Logprobs) -> None:
        """Add log-probabilities of committed ids, and send these once all are here; so those of an echoed prompt."""
        waiting, found = self._waiting, unflattened((logprobs.chosen, logprobs.top_ids, logprobs.top))
        echoed = self.pending is not None and self.pending.request.params.scored
        if self.pending is not None and echoed and logprobs.base == len(self._scores) + 1 < self.n_prompt:
            self._scores += found[: self.n_prompt - logprobs.base]
            if len(self._scores) == self.n_prompt - 1:
                self.pending.client.on_event(Scored(tuple(self._scores)))
        if waiting is None:
            return
        positions = range(waiting.base, waiting.base + len(waiting.ids))
        waiting.logprobs |= {at: one for at, one in enumerate(found, logprobs.base) if at in positions}
        if len(waiting.logprobs) == len(waiting.ids):
            self._send_waiting()

    def done(self, reason: str, report: Json) -> None:
        """Send the end, with the verifier's report and this drafter's own time and bytes."""
        if self.pending is None:
            return
        self._send_waiting()
        own = {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        report = report | own | {"draft_ms": round(self.draft_seconds * 1e3, 3)}
        self._finish(self.pending, Finished(reason, self._prompt_ids, report))

    def cancelled(self) -> None:
        if self.pending is not None:
            self._finish(self.pending, Finished(m.FinishReason.CANCELLED, self._prompt_ids, {}))

    def failed(self, error: SpecmeshError) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.fail(error)

    def interrupted(self) -> DrafterRequest | None:
        """Return the request, changed to resume after what the client has been sent; nothing is sent here any more."""
        if self.pending is None:
            return None
        pending, self.pending = self.pending, None
        request = pending.request
        if self.n_truth >= self.n_prompt:
            # what lacks its log-probabilities comes again
            sent = tuple(self._truth[self.n_prompt : self._waiting.base if self._waiting is not None else None])
            generated, known = max(sent, request.generated, key=len), max(request.known, len(sent))
            pending.request = replace(
                request, prompt_ids=self._prompt_ids, messages=(), generated=generated, known=known
            )
        return pending

    def _finish(self, pending: DrafterRequest, end: Finished) -> None:
        self.pending = None
        pending.move(RequestState.OVER)
        pending.client.on_event(end)

    def _send_waiting(self) -> None:
        one, self._waiting = self._waiting, None
        if one is not None and self.pending is not None:
            logprobs = tuple(one.logprobs.get(at) for at in range(one.base, one.base + len(one.ids)))
            self._send(self.pending, one.ids, one.accepted, logprobs)

    def _send(
        self, pending: DrafterRequest, ids: tuple[int, ...], accepted: int, logprobs: tuple[Logprob | None, ...] = ()
    ) -> None:
        ended = ids[-1] in self.end_ids and not pending.request.params.scored  # only the last can be an end id
        shown = ids[:-1] if ended else ids
        pending.client.on_event(Tokens(shown, min(accepted, len(shown)), logprobs[: len(shown)]))
