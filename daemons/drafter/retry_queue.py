"""Requests of a drafter's clients, and the queue of those whose verifier went away."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

from specmesh.api.requests import EventSink, Request
from specmesh.core.session_params import SessionParams
from specmesh.daemons.link.frames import fields_of, grammar_of, params_of
from specmesh.errors import Busy, EngineError, NoSuchText, PromptTooLong, RequestError, SpecmeshError
from specmesh.wire.messages import DRAFT_N_AUTO, NO_LOGPROBS, Error, Open, Opened, Welcome

RETRY_S = 0.5  # seconds until verifiers that are there, but refused a request, are asked again
MAX_GIVEN_UP = 64  # most requests that are remembered after they were given up


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


class RetryQueue:
    """Requests that wait for a verifier, and by id those given up, which a client may still resume."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, PendingRequest]] = []
        self._given_up: dict[str, tuple[PendingRequest, array[int], int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, pending: PendingRequest, now: float) -> None:
        """Wait for a verifier until the client's timeout; one that has waited before pauses first."""
        due = now if pending.until is None else now + RETRY_S
        until = now + pending.request.reconnect_timeout if pending.until is None else pending.until
        self._waiting.append((due, replace(pending, until=until)))

    def next_due(self, ready: Callable[[PendingRequest], object]) -> float | None:
        return min((due for due, pending in self._waiting if ready(pending)), default=None)

    def due(self, now: float, ready: Callable[[PendingRequest], object]) -> list[PendingRequest]:
        found = [(due, pending) for due, pending in self._waiting if now >= due and ready(pending)]
        self._waiting = [one for one in self._waiting if one not in found]
        return [pending for _, pending in found]

    def take(self, wanted: Callable[[PendingRequest], bool]) -> list[PendingRequest]:
        taken = [pending for _, pending in self._waiting if wanted(pending)]
        self._waiting = [(due, pending) for due, pending in self._waiting if pending not in taken]
        return taken

    def remember(self, pending: PendingRequest) -> None:
        """Keep a request that is given up, its ids in int32: it may be kept for long."""
        request = pending.request
        if request.id and request.prompt_ids:
            ids = array("i", (*request.prompt_ids, *request.generated))
            small = replace(pending, request=replace(request, prompt_ids=None, generated=()))
            self._given_up[request.id] = small, ids, len(request.prompt_ids)
            if len(self._given_up) > MAX_GIVEN_UP:
                self._given_up.pop(next(iter(self._given_up)))

    def recalled(self, pending: PendingRequest) -> PendingRequest:
        """Return a request that resumes by id with what is remembered of it, if anything."""
        new = pending.request
        found = self._given_up.pop(new.id, None) if new.named_only else None
        if found is None:
            return pending
        before, ids, n_prompt = found
        request = replace(
            before.request,
            prompt_ids=tuple(ids[:n_prompt]),
            generated=tuple(ids[n_prompt:]),
            known=new.known,
            rounds=new.rounds,
            reconnect_timeout=new.reconnect_timeout,
        )
        return replace(pending, home=before.home, began=before.began, request=request)


def error_of(message: Error) -> SpecmeshError:
    match message.code:
        case "engine":
            return EngineError(f"the verifier's engine failed: {message.message}")
        case "busy":
            return Busy(message.message)
        case "session":
            return NoSuchText(message.message)
        case "context":
            return PromptTooLong(message.message, message.param or None)
        case _:
            return RequestError(message.message, message.param or None)


def same_model(before: Welcome, now: Welcome) -> bool:
    """Return True where nothing shows that the models differ: hashes come late."""
    same = (before.model, before.vocab_fingerprint, before.n_vocab) == (now.model, now.vocab_fingerprint, now.n_vocab)
    return same and (before.model_hash == now.model_hash or not (before.model_hash and now.model_hash))


def same_file(one: Welcome, other: Welcome) -> bool:
    """Return True where both verifiers surely run the same file; equal names prove nothing across machines."""
    known = one.model_hash != "" and one.model_hash == other.model_hash
    return known and (one.vocab_fingerprint, one.n_vocab) == (other.vocab_fingerprint, other.n_vocab)
