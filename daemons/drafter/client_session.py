"""A verifier's session as its drafter's loop knows it: the request of a client here, if any, and what that is sent."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from specmesh.api.requests import EventSink, Failed, Finished, Request, Started, Tokens
from specmesh.core.event_buffer import EventBuffer
from specmesh.core.events import Learned
from specmesh.core.report import with_drafting
from specmesh.core.session_params import SessionParams
from specmesh.daemons.link.frames import fields_of, grammar_of, logprobs_of, params_of
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
class ClientSession:
    """A session and, where a client here asked for it, its request.

    key: in the core. ref: of the OPEN that asked for it, or 0. draft_n: as last told. n_truth: ids learned, which are
    kept for a client. broken: the verifier's ERROR about it. verifier: that had it in the end.
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
            self._buffer.add_logprobs(message.base, logprobs_of(message))
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
        for one in self._buffer.ready():  # only the last can have an end id
            if self.pending is not None:
                shown = one.ids[:-1] if one.ids[-1] in self.end_ids else one.ids
                accepted = min(one.accepted, len(shown))
                self.pending.client.on_event(Tokens(shown, accepted, one.drafts, one.logprobs[: len(shown)]))


def same_model(before: Welcome, now: Welcome) -> bool:
    """Return True where nothing shows that the models differ: hashes come late."""
    same = (before.model, before.vocab_fingerprint, before.n_vocab) == (now.model, now.vocab_fingerprint, now.n_vocab)
    return same and (before.model_hash == now.model_hash or not (before.model_hash and now.model_hash))


def same_file(one: Welcome, other: Welcome) -> bool:
    """Return True where both verifiers surely run the same file; equal names prove nothing across machines."""
    known = one.model_hash != "" and one.model_hash == other.model_hash
    return known and (one.vocab_fingerprint, one.n_vocab) == (other.vocab_fingerprint, other.n_vocab)
