"""A verifier's session as its drafter's loop knows it: the request of a client here, if any, and what that is sent."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specmesh.api.requests import EventSink, Failed, Finished, Request, Started, Tokens
from specmesh.core.events import Learned
from specmesh.core.report import with_drafting
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import SessionParams
from specmesh.daemons.link.frames import fields_of, grammar_of, params_of
from specmesh.errors import SpecmeshError
from specmesh.wire.messages import DRAFT_N_AUTO, NO_LOGPROBS, Done, Logprobs, Open, Opened, Round, Welcome


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request of a local client.

    number: order of arrival. started: the client has been sent Started. until: when to give up without a verifier.
    home: address of the verifier that had the request, and began: its WELCOME, where the text has begun.
    tried: addresses that have refused the request since, with `error`.
    """

    request: Request
    client: EventSink
    number: int = 0
    started: bool = False
    until: float | None = None
    home: str = ""
    began: Welcome | None = None
    tried: tuple[str, ...] = ()
    error: SpecmeshError | None = None

    def open(self, ref: int) -> Open:
        request, params = self.request, self.request.params
        prompt = request.prompt_ids or ()
        return Open(
            ref,
            request.prompt or "",
            params.max_tokens,
            draft_n=DRAFT_N_AUTO if params.draft_n is None else params.draft_n,
            rounds=request.rounds,
            ids=[*prompt, *request.generated],
            messages=[message.fields() for message in request.messages],
            stop=list(params.stop),
            name=request.id,
            n_prompt=len(prompt),
            adopt=request.named_only,
            priority=request.priority,
            logprobs=NO_LOGPROBS if params.logprobs is None else params.logprobs,
            **fields_of(params.sampling, params.grammar),
            cache_prompt=params.cache_prompt,
            continued=request.continued,
        )

    @property
    def resumes(self) -> bool:
        return self.started or bool(self.request.generated) or self.request.named_only

    def opened(self, message: Opened) -> "PendingRequest":
        """Return the request as its verifier opened it; one that resumes by name learns its parameters here."""
        params = self.request.params
        if self.request.named_only:
            params = SessionParams(
                params_of(message),
                max(message.max_tokens, 1),
                stop=tuple(message.stop),
                logprobs=None if message.logprobs == NO_LOGPROBS else message.logprobs,
                grammar=grammar_of(message),
                cache_prompt=message.cache_prompt,
            )
        request = replace(self.request, params=params, named_only=False)
        return replace(self, request=request, until=None, tried=(), error=None)


@dataclass(frozen=True, slots=True)
class ReturnedRequest:
    """A request that a verifier has refused, or begun and lost. again: it may be asked at once for the rest."""

    pending: PendingRequest
    error: SpecmeshError
    refused: bool = False
    again: bool = False


@dataclass(slots=True)
class _Buffered:
    """Ids at `positions`. round: their ROUND is to come."""

    positions: range
    tokens: Tokens
    round: bool


class EventBuffer:
    """Committed ids in order, until the ROUND and the LOGPROBS that belong to them are here, where asked for."""

    def __init__(self, *, rounds: bool, logprobs: bool) -> None:
        self._rounds, self._asked = rounds, logprobs
        self._waiting: deque[_Buffered] = deque()
        self._begin = self._end = 0  # of the ids that wait, or are next
        self._complete = 0  # before this position no more log-probabilities come
        self._logprobs: dict[int, Logprob] = {}  # by position

    @property
    def first(self) -> int | None:
        return self._begin if self._waiting else None

    def add(self, base: int, ids: tuple[int, ...], accepted: int, *, sync: bool) -> None:
        """Add committed ids. After a SYNC no ROUND comes for earlier ids, and LOGPROBS come anew."""
        if sync:
            self.give_up_rounds()
            self._complete = min(self._complete, base)
        if not self._waiting:
            self._begin = base
            self._logprobs = {position: one for position, one in self._logprobs.items() if position >= base}
        self._end = base + len(ids)
        waiting = _Buffered(range(base, self._end), Tokens(ids, accepted, None), self._rounds and not sync)
        self._waiting.append(waiting)

    def add_round(self, drafts: tuple[int, ...], accepted: int) -> None:
        waiting = next((one for one in self._waiting if one.round), None)
        if waiting is not None:
            waiting.round = False
            waiting.tokens = replace(waiting.tokens, accepted=accepted, drafts=drafts)

    def add_logprobs(self, message: Logprobs) -> None:
        """Keep what is of ids that are here: what is not comes again after the SYNC that brings them."""
        found = _parsed(message)
        self._complete = max(self._complete, min(message.base + len(found), self._end))
        for position, one in enumerate(found, message.base):
            if self._begin <= position < self._end:
                self._logprobs[position] = one

    def give_up_rounds(self) -> None:
        for waiting in self._waiting:
            waiting.round = False

    def give_up(self) -> None:
        """Wait for nothing more."""
        self.give_up_rounds()
        self._complete = max(self._complete, self._end)

    def ready(self) -> Iterator[Tokens]:
        """Remove and yield what waits for nothing more, in order."""
        while self._waiting and not self._waiting[0].round:
            positions, tokens = self._waiting[0].positions, self._waiting[0].tokens
            if not self._asked:
                logprobs = tuple[Logprob | None, ...]()
            elif positions.stop > self._complete and not all(position in self._logprobs for position in positions):
                return
            else:
                logprobs = tuple(self._logprobs.pop(position, None) for position in positions)
            self._waiting.popleft()
            self._begin = positions.stop
            yield replace(tokens, logprobs=logprobs)


def _parsed(message: Logprobs) -> Sequence[Logprob]:
    count = len(message.chosen)
    each, odd = divmod(len(message.top_ids), count) if count else (0, 0)
    if odd or len(message.top) != len(message.top_ids):
        return ()
    ids, top = tuple(message.top_ids), tuple(message.top)
    return [
        Logprob(chosen, ids[at * each : (at + 1) * each], top[at * each : (at + 1) * each])
        for at, chosen in enumerate(message.chosen)
    ]


@dataclass(slots=True)
class ClientSession:
    """A session and, where a client here asked for it, its request.

    key: in the core. ref: of the OPEN that asked for it, or 0. draft_n: as last told. n_truth: ids learned, which are
    kept for a client. broken: the verifier's ERROR about it. ending: its DONE, or why it is interrupted, until all that
    came before is learned. verifier: that had it in the end.
    """

    id: int
    key: int
    n_prompt: int
    end_ids: Collection[int]
    pending: PendingRequest | None
    ref: int = 0
    draft_n: int = 0
    drafted: int = 0
    draft_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    n_truth: int = 0
    broken: SpecmeshError | None = None
    ending: Done | SpecmeshError | None = None
    verifier: Welcome | None = None
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

    def add(self, message: Round | Logprobs) -> None:
        """Add what belongs to committed ids."""
        if isinstance(message, Round):
            self._buffer.add_round(tuple(message.drafts), message.accepted)
        else:
            self._buffer.add_logprobs(message)
        self._send_ready()

    def done(self, message: Done) -> None:
        """Send the end, with the verifier's report and this drafter's own time and bytes."""
        if self.pending is None:
            return
        self._buffer.give_up()
        self._send_ready()
        report = with_drafting(message.report, self.drafted, self.draft_seconds)
        report |= {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        self.pending.client.on_event(Finished(message.finish_reason, self._prompt_ids, report))

    def cancelled(self) -> None:
        if self.pending is not None:
            self.pending.client.on_event(Finished("cancelled", self._prompt_ids, {}))

    def failed(self, error: SpecmeshError) -> None:
        if self.pending is not None:
            self.pending.client.on_event(Failed(error))
            self.pending = None

    def interrupted(self) -> PendingRequest | None:
        """Return the request, changed to resume after what the client has been sent; nothing is sent here any more."""
        if self.pending is None:
            return None
        self._buffer.give_up_rounds()
        self._send_ready()
        pending, self.pending = self.pending, None
        request = pending.request
        if self.n_truth < self.n_prompt:
            return pending
        sent = tuple(self._truth[self.n_prompt : self._buffer.first])  # what lacks its log-probabilities comes again
        generated = sent if len(sent) > len(request.generated) else request.generated
        known = max(request.known, len(sent))
        return replace(pending, request=replace(request, prompt_ids=self._prompt_ids, generated=generated, known=known))

    def _start(self, pending: PendingRequest) -> None:
        if not pending.started:
            self.pending = replace(pending, started=True)
            pending.client.on_event(Started(self.id, self.n_prompt, self._prompt_ids, pending.request.params))

    def _send_ready(self) -> None:
        for tokens in self._buffer.ready():
            if self.pending is not None:
                ids = tokens.ids  # only the last round can have an end id
                shown = ids[:-1] if ids[-1] in self.end_ids else ids
                accepted = min(tokens.accepted, len(shown))
                self.pending.client.on_event(Tokens(shown, accepted, tokens.drafts, tokens.logprobs[: len(shown)]))


def same_model(before: Welcome, now: Welcome) -> bool:
    """Return True where nothing shows that the models differ: hashes come late."""
    same = (before.model, before.vocab_fingerprint, before.n_vocab) == (now.model, now.vocab_fingerprint, now.n_vocab)
    return same and (before.model_hash == now.model_hash or not (before.model_hash and now.model_hash))


def same_file(one: Welcome, other: Welcome) -> bool:
    """Return True where both verifiers surely run the same file; equal names prove nothing across machines."""
    known = one.model_hash != "" and one.model_hash == other.model_hash
    return known and (one.vocab_fingerprint, one.n_vocab) == (other.vocab_fingerprint, other.n_vocab)
