"""Requests of clients, and the events that answer them."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol

from specmesh.core.fair_queue import Tenant
from specmesh.core.prefix import crc_of
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import ChatMessage, SessionParams, message_of, wire_params
from specmesh.errors import (
    Busy,
    EngineError,
    InvalidTransition,
    NoSuchText,
    NotPassedOn,
    PromptTooLong,
    RequestError,
    SpecmeshError,
    UnfitMessage,
)
from specmesh.wire import messages as m

ID_BYTES = 36  # memory of an id in a tuple
CHOICE_BYTES = 2048  # and of a request without its prompt
TEXT_IDS_PER_S = 2**18
"""Ids of requests, in IDS frames, that a drafter sends a verifier in a second."""
BODY_BYTES_PER_S = 2**19
"""Bytes of requests, in BODY frames, that a drafter sends a verifier in a second.

A verifier takes twice as many: JSON in JSON is at most twice as long.
"""
CHAT = "chatcmpl-"  # what names of chats begin with, as at OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation.

    It starts from the first that is given of `prompt_ids`, `messages` (by the target's chat
    template) and `prompt`.
    """

    prompt: str | None = field(kw_only=False)
    prompt_ids: tuple[int, ...] | None = field(kw_only=False)
    params: SessionParams = field(kw_only=False)
    rounds: bool = False  # each round is an event of its own
    messages: tuple[ChatMessage, ...] = ()
    continued: bool = False  # continue the last message instead of starting a new one
    # Variables of the chat template's own.
    template: Mapping[str, object] = field(default_factory=dict[str, object])
    id: str = ""  # unguessable name; whoever knows it may resume the text
    generated: tuple[int, ...] = ()  # tokens to resume after
    known: int = 0  # generated tokens that the client already has
    reconnect_timeout: float = 0.0  # seconds that a drafter waits for a lost verifier
    named_only: bool = False  # resume that text, never start one
    target: str = ""  # `ModelInfo.target` of the model wanted, empty for any
    choice: int = 0  # index among the completions of one prompt
    known_size: int = 0  # `size`, if it was computed before, which takes time for many messages

    @property
    def chat(self) -> bool:
        """Return True if the answer has a chat's form; if it is resumed, its name shows that."""
        return bool(self.messages) or self.id.startswith(CHAT)

    @property
    def size(self) -> int:
        """Return the approximate bytes of memory that it takes."""
        if self.known_size:
            return self.known_size
        ids = len(self.prompt_ids or ()) + len(self.generated)
        size = ID_BYTES * ids + sys.getsizeof(self.prompt or "")
        size += sys.getsizeof(str(self.template))
        grammar = self.params.grammar
        size += sys.getsizeof(grammar.text if grammar else "")
        for message in self.messages:
            size += message.size
        return size

    @property
    def own_size(self) -> int:
        """Return the bytes that it adds to those of the first answer to its prompt."""
        return CHOICE_BYTES if self.choice else self.size

    @property
    def label(self) -> str:
        """Return the beginning of the id, for logs: too short to resume the text with."""
        return self.id[:-20]


@dataclass(frozen=True, slots=True)
class Started:
    """A session has begun."""

    session: int
    prompt_tokens: int
    prompt_ids: tuple[int, ...] = ()
    params: SessionParams | None = None


class Scored(NamedTuple):
    """Log-probabilities of an echoed prompt's ids but for the first one, before any Tokens."""

    logprobs: tuple[Logprob | None, ...]


class PromptRead(NamedTuple):
    """How far a prompt is read, before any Tokens.

    total: ids to be read. cached: of these, those that were in memory before.
    processed: ids read so far, cached ones included.
    seconds: since the session began.
    """

    total: int
    cached: int
    processed: int
    seconds: float


SourceRun = tuple[str, int]
"""A source of drafts, or `target`, and how many ids in a row it proposed."""


class Tokens(NamedTuple):
    """New ids, of which the first `accepted` were drafts.

    logprobs: of each id, if they are wanted; None for an id from before the text was resumed.
    sources: of all ids, if they are wanted.
    """

    ids: tuple[int, ...]
    accepted: int
    logprobs: tuple[Logprob | None, ...] = ()
    sources: tuple[SourceRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The text has ended.

    reason: a FinishReason, or another word of the verifier.
    stop: the stop string that ended it, or ""; known to the API only.
    """

    reason: str
    prompt_ids: tuple[int, ...]
    report: dict[str, object]
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request has failed."""

    error: SpecmeshError


ClientEvent = Started | PromptRead | Scored | Tokens | Finished | Failed


class EventSink(Protocol):
    """Receives the events of a request."""

    def on_event(self, event: ClientEvent) -> None:
        """Take an event. The daemon's loop calls this, never the core; it must not block."""


class Nobody:
    """The client of a request that was answered.

    It takes the place of the real one, whose connection would be kept in memory by the request.
    """

    def on_event(self, event: ClientEvent) -> None:
        pass


NOBODY = Nobody()


class Reply(NamedTuple):
    """Give a client an event of its request."""

    client: EventSink
    event: ClientEvent


def target_of(verifier: m.Welcome) -> str:
    """Return the name of a verifier's target in `Request.target`."""
    return f"{verifier.vocab_fingerprint} {verifier.model}"


class RequestState(Enum):
    """The state of a request of a drafter's client.

    - UNPLACED: it needs a verifier: it is new, or its verifier has refused or lost it.
    - OPENING: a verifier was sent an OPEN for it.
    - OPEN: it has a session of that verifier.
    - WAITING: no verifier is there, or takes it now.
    - GIVEN_UP: it has failed for want of a verifier. Its client may resume it by its id.
    - OVER: it has ended.
    """

    UNPLACED = "unplaced"
    OPENING = "opening"
    OPEN = "open"
    WAITING = "waiting"
    GIVEN_UP = "given up"
    OVER = "over"


REQUEST_STATES: Mapping[RequestState, set[RequestState]] = {
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
"""The states that may follow each."""


@dataclass(slots=True, eq=False, kw_only=True)
class DrafterRequest:
    """A request of a drafter's client, from its arrival to its end.

    tenant: the one that it counts for. size: bytes that it took when it came.
    state: changed by `move` only.
    home: address of the verifier that had it last. verifier: the WELCOME of that one.
    started: the client has been sent Started. paused: the client reads nothing now.
    until: when to give up without a verifier. due: when it is placed again at the earliest.
    tried: addresses that have refused it since it had a verifier. error: of their refusals.
    """

    request: Request
    client: EventSink
    tenant: Tenant = ()
    size: int = 0
    state: RequestState = field(default=RequestState.UNPLACED, init=False)
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
        """Return the verifier that the text began at; None if it has not begun."""
        if self.started or self.request.generated:
            return self.verifier
        return None

    @property
    def is_long(self) -> bool:
        """Return True if it may need frames before its OPEN."""
        count = len(self.request.prompt_ids or ()) + len(self.request.generated)
        size = self.request.size - ID_BYTES * count
        return count > m.MAX_TOKENS or size > m.MAX_PIECE

    def move(self, to: RequestState) -> None:
        """Change its state.

        Raise InvalidTransition, and change nothing, if REQUEST_STATES lacks the change.
        """
        if to not in REQUEST_STATES[self.state]:
            raise InvalidTransition("request", self.state, to)
        self.state = to

    def opened(self, params: SessionParams, by: m.Welcome | None, address: str) -> None:
        """Note that a verifier has a session for it, with these parameters.

        A request that names a text has no others. Any other takes only those from the verifier that
        follow from its template: its thoughts and its calls of tools. One that knows no sources
        of tokens has none in them.
        """
        self.move(RequestState.OPEN)
        if not self.request.named_only:
            own = self.request.params
            grammar = own.grammar
            if grammar is not None and grammar.kind is GrammarKind.TOOLS:
                grammar = params.grammar
            params = replace(
                own,
                thinking=params.thinking,
                merged=params.merged,
                grammar=grammar,
                sources=own.sources and params.sources,
            )
        self.request = replace(self.request, params=params, named_only=False)
        self.home = address
        self.verifier = by
        self.until = None
        self.tried = ()
        self.error = None

    def refused(self, by: str, error: SpecmeshError) -> None:
        """Note a refusal; that one verifier is busy outweighs why another cannot have it."""
        self.tried += (by,)
        if is_wrong(error) or not isinstance(self.error, Busy):
            self.error = error

    def lost(self, error: SpecmeshError, now: float) -> None:
        """Note that its verifier is gone, from which on the client's timeout counts."""
        if self.until is None and self.request.id and self.request.reconnect_timeout > 0:
            self.until = now + self.request.reconnect_timeout
        self.tried = ()
        self.error = error

    def fail(self, error: SpecmeshError, state: RequestState = RequestState.OVER) -> Reply:
        """End it; return the failure that its client gets."""
        self.move(state)
        reply = Reply(self.client, Failed(error))
        self.client = NOBODY
        self.error = None
        return reply


_REFUSALS: dict[str, type[SpecmeshError]] = {
    "busy": Busy,
    "context": PromptTooLong,
    "session": NoSuchText,
    "engine": EngineError,
}
"""The codes of a request's errors on the wire; any other error is "request"."""


def is_wrong(error: SpecmeshError | None) -> bool:
    """Return True for a refusal that no other verifier can change."""
    by_verifier = NoSuchText | PromptTooLong | NotPassedOn
    return isinstance(error, RequestError) and not isinstance(error, by_verifier)


def refusal_of(error: SpecmeshError) -> tuple[str, str, str]:
    """Return an error's code, its message and the request's field that it is about, or ""."""
    param = getattr(error, "param", None) or ""
    for code, kind in _REFUSALS.items():
        if isinstance(error, kind):
            return code, str(error), param
    return "request", str(error), param


def error_of(code: str, message: str, param: str) -> SpecmeshError:
    """Return the error that a verifier has sent."""
    if code == "engine":
        message = f"the verifier's engine failed: {message}"
    error = _REFUSALS.get(code, RequestError)(message)
    if isinstance(error, RequestError) and param:
        error.param = param
    return error


def open_of(pending: DrafterRequest, ref: int) -> m.Open:
    """Return the OPEN that asks a verifier for a session."""
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


Before = m.Ids | m.Body
"""A frame that has a part of the OPEN behind it."""


WriteOpen = Callable[[m.Open], bytes]
"""Returns the JSON body of an OPEN, of any length."""


def frames_of(
    order: m.Open, write: WriteOpen, *, takes_ids: bool = True, takes_body: bool = True
) -> list[Before | m.Open]:
    """Return an OPEN behind the frames of its parts that are too long for it.

    Raise UnfitMessage if its body is too long for a verifier that takes such frames, or does not.
    """
    frames: list[Before | m.Open] = []
    if takes_ids and len(order.ids) > m.MAX_TOKENS:
        frames += _frames_of_ids(order)
        order = replace(order, ids=[], n_ids=len(order.ids))
    body = write(order)
    most = m.MAX_OPEN_BODY if takes_body else m.MAX_BODY
    if len(body) > most:
        raise UnfitMessage(f"{len(body)} bytes exceed {most}")
    if takes_body and len(body) > m.MAX_PIECE:
        frames += _frames_of_body(order.ref, body.decode())
        order = m.Open(ref=order.ref, prompt="", options={}, n_body=len(body))
    frames.append(order)
    return frames


def _frames_of_ids(order: m.Open) -> Iterator[m.Ids]:
    crc = 0
    for base in range(0, len(order.ids), m.MAX_TOKENS):
        ids = tuple(order.ids[base : base + m.MAX_TOKENS])
        yield m.Ids(order.ref, base, crc, ids)
        crc = crc_of(ids, crc)


def _frames_of_body(ref: int, body: str) -> Iterator[m.Body]:
    base = 0
    for begin in range(0, len(body), m.MAX_PIECE):
        piece = body[begin : begin + m.MAX_PIECE]
        yield m.Body(ref, base, piece)
        base += len(piece.encode())


def requested(order: m.Open) -> Request:
    """Return the request of an OPEN; raise RequestError if it contradicts itself."""
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
