"""Requests of clients, and the events that answer them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from specmesh.core.fair_queue import Tenant
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import ChatMessage, SessionParams, message_of, wire_params
from specmesh.errors import (
    Busy,
    EngineError,
    InvalidTransition,
    NoSuchText,
    PromptTooLong,
    RequestError,
    SpecmeshError,
)
from specmesh.wire import messages as m

ID_BYTES = 36  # memory of an id in a tuple
CHOICE_BYTES = 2048  # and of a request without its prompt
CHAT = "chatcmpl-"  # what names of chats begin with, as at OpenAI's


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, from `prompt_ids`, `messages` (by the target's chat template) or `prompt`: the first given."""

    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    params: SessionParams
    rounds: bool = False  # each round is an event of its own
    messages: tuple[ChatMessage, ...] = ()
    continued: bool = False  # continue the last message instead of starting a new one
    template: Mapping[str, object] = field(
        default_factory=dict[str, object]
    )  # variables of the chat template's own
    id: str = ""  # unguessable name; whoever knows it may resume the text
    generated: tuple[int, ...] = ()  # tokens to resume after
    known: int = 0  # generated tokens that the client already has
    reconnect_timeout: float = 0.0  # seconds that a drafter waits for a lost verifier
    named_only: bool = False  # resume that text, never start one
    target: str = ""  # `ModelInfo.target` of the model wanted, empty for any
    choice: int = 0  # index among the completions of one prompt
    known_size: int = 0  # `size`, where it was computed before: that takes time with many messages

    @property
    def chat(self) -> bool:
        """Whether the answer has a chat's form. Of a text that is resumed by its ids the name alone says so."""
        return bool(self.messages) or self.id.startswith(CHAT)

    @property
    def size(self) -> int:
        """Return the approximate bytes of memory that it takes."""
        if self.known_size:
            return self.known_size
        grammar = self.params.grammar
        texts = (self.prompt or "", str(self.template), grammar.text if grammar else "")
        ids = len(self.prompt_ids or ()) + len(self.generated)
        messages = sum(message.size for message in self.messages)
        return ID_BYTES * ids + sum(map(sys.getsizeof, texts)) + messages

    @property
    def own_size(self) -> int:
        """Return the bytes that it takes besides other answers to its prompt, which they share."""
        return CHOICE_BYTES if self.choice else self.size

    @property
    def label(self) -> str:
        """Beginning of the id for logs; too short to resume the text with."""
        return self.id[:-20]


@dataclass(frozen=True, slots=True)
class Started:
    """The session exists."""

    session: int
    prompt_tokens: int
    prompt_ids: tuple[int, ...] = ()
    params: SessionParams | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of the prompt's ids but for the first one, where they are echoed; before any Tokens."""

    logprobs: tuple[Logprob | None, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """New ids, of which the first `accepted` were drafts. logprobs: of each id, where asked for; None for an id
    generated before the text was resumed."""

    ids: tuple[int, ...]
    accepted: int
    logprobs: tuple[Logprob | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    reason: str  # a FinishReason's, or what a verifier calls it
    prompt_ids: tuple[int, ...]
    report: dict[str, object]


@dataclass(frozen=True, slots=True)
class Failed:
    error: SpecmeshError


ClientEvent = Started | Scored | Tokens | Finished | Failed


class EventSink(Protocol):
    """Receives the events of a request. Called from the daemon's loop, never by the core; must not block."""

    def on_event(self, event: ClientEvent) -> None: ...


class Nobody:
    """Whose request was answered: what a client knows of its connection is much, and would be kept with the request."""

    def on_event(self, event: ClientEvent) -> None:
        pass


NOBODY = Nobody()


@dataclass(frozen=True, slots=True)
class Reply:
    """Give a client an event of its request."""

    client: EventSink
    event: ClientEvent


def target_of(verifier: m.Welcome) -> str:
    """Return its target's name in `Request.target`."""
    return f"{verifier.vocab_fingerprint} {verifier.model}"


class RequestState(Enum):
    """Of a request of a drafter's client."""

    UNPLACED = "unplaced"  # is new, or its verifier has refused or lost it: one is to be found
    OPENING = "opening"  # a verifier was sent an OPEN for it
    OPEN = "open"  # has a session of that verifier
    WAITING = "waiting"  # no verifier is there, or takes it now
    GIVEN_UP = "given up"  # its client was answered so, and may resume it by its id
    OVER = "over"


TRANSITIONS: Mapping[RequestState, set[RequestState]] = {
    RequestState.UNPLACED: {
        RequestState.OPENING,
        RequestState.WAITING,
        RequestState.GIVEN_UP,
        RequestState.OVER,
    },
    RequestState.OPENING: {RequestState.UNPLACED, RequestState.OPEN, RequestState.OVER},
    RequestState.OPEN: {RequestState.UNPLACED, RequestState.OVER},
    RequestState.WAITING: {RequestState.OPENING, RequestState.GIVEN_UP, RequestState.OVER},
    RequestState.GIVEN_UP: {RequestState.OVER},
    RequestState.OVER: set(),
}
"""What each state may become."""


@dataclass(slots=True, eq=False)
class DrafterRequest:
    """A request of a drafter's client, from its arrival to its end. home: address of the verifier
    that had it last; verifier: what that was, where the text has begun. started: the client has
    been sent Started. until: when to give up without a verifier. due: not asked for before. tried:
    addresses that have refused it since it had a verifier, with `error`. tenant: whom it counts
    for. size: bytes that it took when it came. paused: its client reads nothing at the moment."""

    request: Request
    client: EventSink
    tenant: Tenant = ()
    size: int = 0
    state: RequestState = field(default=RequestState.UNPLACED, init=False)  # changed by `move` only
    home: str = ""
    verifier: m.Welcome | None = None
    started: bool = False
    until: float | None = None
    due: float = 0.0
    paused: bool = False
    tried: tuple[str, ...] = ()
    error: SpecmeshError | None = None

    @property
    def began(self) -> m.Welcome | None:
        """What verifier the text began at."""
        return self.verifier if self.started or self.request.generated else None

    def move(self, to: RequestState) -> None:
        """Change its state; raise InvalidTransition, and change nothing, where `TRANSITIONS` does not have it."""
        if to not in TRANSITIONS[self.state]:
            raise InvalidTransition("request", self.state, to)
        self.state = to

    def opened(self, params: SessionParams, by: m.Welcome | None, address: str) -> None:
        """Note that a verifier has a session for it; one that resumes by name learns its parameters here."""
        self.move(RequestState.OPEN)
        mine = self.request.params
        if (
            not self.request.named_only
        ):  # the verifier alone knows how its template thinks and calls tools
            tools = mine.grammar is not None and mine.grammar.kind is GrammarKind.TOOLS
            params = replace(
                mine,
                thinking=params.thinking,
                merged=params.merged,
                grammar=params.grammar if tools else mine.grammar,
            )
        self.request = replace(self.request, params=params, named_only=False)
        self.home, self.verifier, self.until, self.tried, self.error = address, by, None, (), None

    def refused(self, by: str, error: SpecmeshError) -> None:
        """Note a refusal. Where one verifier is busy, this says more than why another cannot have the request."""
        self.tried += (by,)
        if is_wrong(error) or not isinstance(self.error, Busy):
            self.error = error

    def lost(self, error: SpecmeshError, now: float) -> None:
        """Note that its verifier is gone: from now on the client's timeout counts."""
        if self.until is None and self.request.id and self.request.reconnect_timeout > 0:
            self.until = now + self.request.reconnect_timeout
        self.tried, self.error = (), error

    def fail(self, error: SpecmeshError, state: RequestState = RequestState.OVER) -> Reply:
        self.move(state)
        client, self.client, self.error = self.client, NOBODY, None
        return Reply(client, Failed(error))


_REFUSALS: dict[str, type[SpecmeshError]] = {
    "busy": Busy,
    "context": PromptTooLong,
    "session": NoSuchText,
    "engine": EngineError,
}
"""What verifiers and drafters call errors of a request; any other is "request"."""


def is_wrong(error: SpecmeshError | None) -> bool:
    """Return True where a request is refused for what no other verifier can change."""
    return isinstance(error, RequestError) and not isinstance(error, NoSuchText | PromptTooLong)


def refusal_of(error: SpecmeshError) -> tuple[str, str, str]:
    """Return an error's code, its message and the request's field that it is about, or ""."""
    code = next((code for code, kind in _REFUSALS.items() if isinstance(error, kind)), "request")
    return code, str(error), getattr(error, "param", None) or ""


def error_of(code: str, message: str, param: str) -> SpecmeshError:
    """Return the error that a verifier has sent."""
    said = f"the verifier's engine failed: {message}" if code == "engine" else message
    error = _REFUSALS.get(code, RequestError)(said)
    if isinstance(error, RequestError) and param:
        error.param = param
    return error


def open_of(pending: DrafterRequest, ref: int) -> m.Open:
    """Return what asks a verifier for it."""
    request = pending.request
    prompt = request.prompt_ids or ()
    return m.Open(
        ref=ref,
        prompt=request.prompt or "",
        options=request.params.named(),
        ids=[*prompt, *request.generated],
        messages=[message.fields() for message in request.messages],
        name=request.id,
        n_prompt=len(prompt),
        adopt=request.named_only,
        continued=request.continued,
        template=dict(request.template),
    )


def requested(order: m.Open) -> Request:
    """Return what a drafter's client asks for; raises RequestError where that contradicts itself."""
    if order.n_prompt > len(order.ids):
        raise RequestError(f"{len(order.ids)} ids cannot begin with a prompt of {order.n_prompt}")
    params = wire_params(order.options)
    if params.grammar is None and order.options.get("grammar_kind"):
        raise RequestError("this verifier knows no grammars of that kind: update it", "grammar")
    n_prompt = order.n_prompt or len(order.ids)
    return Request(
        order.prompt,
        tuple(order.ids[:n_prompt]) or None,
        params,
        messages=tuple(map(message_of, order.messages)),
        continued=order.continued,
        template=order.template,
        id=order.name,
        generated=tuple(order.ids[n_prompt:]),
        named_only=order.adopt,
    )
