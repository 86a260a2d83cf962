"""A request of a drafter's client, from its arrival to its end: its state, and its verifier.

It outlives verifiers. What it needs to go on elsewhere is all here: the prompt's ids once they are
known, the ids that its client has, its parameters with the seed, and the verifier that had it.

A text that has begun is bound to its model: another one would go on in other words. So `verifier`
is the WELCOME of the one where it began, and only the same model may have it from then on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from specmesh.core.drafter.placement import Placement
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import ID_BYTES, NOBODY, EventSink, Failed, Reply, Request
from specmesh.core.states import state_after
from specmesh.errors import (
    Busy,
    NoSuchText,
    NotPassedOn,
    PromptTooLong,
    RequestError,
    SpecmeshError,
)
from specmesh.wire import messages as m


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


class RequestEvent(Enum):
    """An event that changes the state.

    - ASKED: a verifier is sent an OPEN.
    - OPENED: the verifier has opened a session.
    - REFUSED: the verifier does not take it.
    - VERIFIER_LOST: the verifier went away, or stops, or the end of its text was lost.
    - NONE_TAKES_IT: none that is there may have it, or all are busy. One may come back.
    - TIME_UP: nobody came back in time. The text may be asked for again.
    - CLOSED: its client gets the end or an error, or needs nothing more.
    """

    ASKED = "asked"
    OPENED = "opened"
    REFUSED = "refused"
    VERIFIER_LOST = "verifier lost"
    NONE_TAKES_IT = "none takes it"
    TIME_UP = "time up"
    CLOSED = "closed"


REQUEST_STATES: Mapping[RequestState, Mapping[RequestEvent, RequestState]] = {
    RequestState.UNPLACED: {
        RequestEvent.ASKED: RequestState.OPENING,
        RequestEvent.NONE_TAKES_IT: RequestState.WAITING,
        RequestEvent.TIME_UP: RequestState.GIVEN_UP,
        RequestEvent.CLOSED: RequestState.OVER,
    },
    RequestState.OPENING: {
        RequestEvent.OPENED: RequestState.OPEN,
        RequestEvent.REFUSED: RequestState.UNPLACED,
        RequestEvent.VERIFIER_LOST: RequestState.UNPLACED,
        RequestEvent.CLOSED: RequestState.OVER,
    },
    RequestState.OPEN: {
        RequestEvent.VERIFIER_LOST: RequestState.UNPLACED,
        RequestEvent.CLOSED: RequestState.OVER,
    },
    RequestState.WAITING: {
        RequestEvent.ASKED: RequestState.OPENING,
        RequestEvent.TIME_UP: RequestState.GIVEN_UP,
        RequestEvent.CLOSED: RequestState.OVER,
    },
    RequestState.GIVEN_UP: {RequestEvent.CLOSED: RequestState.OVER},
    RequestState.OVER: {},
}
"""The state that follows each event, in each state."""


@dataclass(slots=True, eq=False, kw_only=True)
class DrafterRequest:
    """A request of a drafter's client, from its arrival to its end.

    All fields are changed by methods only.

    number: the router's, which names it. tenant: the one that it counts for. size: bytes that
        it took when it came.
    state: changed by `advance` only.
    home: address of the verifier that had it last. verifier: the WELCOME of that one.
    started: the client has been sent Started. paused: the client reads nothing now.
    until: when to give up without a verifier. due: when it is placed again at the earliest.
    tried: addresses that have refused it since it had a verifier. error: of their refusals.
    """

    number: int
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

    def advance(self, event: RequestEvent) -> None:
        """Change the state. Raise InvalidTransition if it has no such event."""
        self.state = state_after(REQUEST_STATES, "request", self.state, event)

    # --- its verifier

    def placement(self, address: str) -> Placement:
        """Return the copy of it for the verifier at this address, which is asked next."""
        return Placement(
            number=self.number,
            request=self.request,
            client=self.client,
            tenant=self.tenant,
            started=self.started,
            returns=self.began is not None and self.home != address,
        )

    def prefer(self, home: str) -> None:
        """Have the verifier at this address asked first."""
        self.home = home

    def opened(self, request: Request, by: m.Welcome | None, address: str) -> None:
        """Note that a verifier has a session for it; request: with the session's parameters."""
        self.advance(RequestEvent.OPENED)
        self.request = request
        self.home = address
        self.verifier = by
        self.until = None
        self.tried = ()
        self.error = None

    def refused(self, by: str, error: SpecmeshError) -> None:
        """Note a refusal. That one verifier is busy outweighs why another cannot have it."""
        self.advance(RequestEvent.REFUSED)
        self.tried += (by,)
        # A busy verifier may take it later, so "busy" is the answer that helps the client, unless
        # the request itself is at fault.
        if is_wrong(error) or not isinstance(self.error, Busy):
            self.error = error

    def lost(self, now: float, left: Placement, by: str, error: SpecmeshError) -> None:
        """Note that its verifier is gone. The client's timeout counts from the first loss on.

        left: as the verifier has left it. by: the verifier's address.
        """
        self.advance(RequestEvent.VERIFIER_LOST)
        self.request = left.request
        self.started = left.started
        if self.began is None:
            # Nothing of a text is lost yet, and the verifier may be back soon.
            self.home = by
        # A text without a name cannot be resumed by its client either.
        if self.until is None and self.request.id and self.request.reconnect_timeout > 0:
            self.until = now + self.request.reconnect_timeout
        self.tried = ()
        self.error = error

    def avoid(self, address: str) -> None:
        """Have another verifier asked next."""
        self.tried = (address,)

    def wait(self, now: float, retry: float) -> None:
        """Let it wait for a verifier, as none takes it now.

        retry: seconds until it is placed again, if a verifier has refused it.
        """
        self.advance(RequestEvent.NONE_TAKES_IT)
        # One that was refused would be refused again at once. One that no verifier has seen is
        # placed as soon as one comes.
        self.due = now + retry if self.tried else now
        self.tried = ()
        self.error = None

    # --- its text

    def take_text_of(self, before: "DrafterRequest") -> None:
        """Go on with the text of a request that is over, as far as it was named only."""
        request = self.request
        if request.named_only:
            self.request = replace(
                before.request,
                known=request.known,
                rounds=request.rounds,
                reconnect_timeout=request.reconnect_timeout,
            )
            self.verifier = before.verifier

    # --- its client

    def pause(self, *, paused: bool) -> None:
        """Note whether the client reads nothing now."""
        self.paused = paused

    def fail(self, error: SpecmeshError, event: RequestEvent = RequestEvent.CLOSED) -> Reply:
        """End it, or give it up; return the failure that its client gets."""
        self.advance(event)
        reply = Reply(self.client, Failed(error))
        # What still comes for it goes nowhere.
        self.client = NOBODY
        self.error = None
        return reply


def is_wrong(error: SpecmeshError | None) -> bool:
    """Return True for a refusal that no other verifier can change."""
    by_verifier = NoSuchText | PromptTooLong | NotPassedOn
    return isinstance(error, RequestError) and not isinstance(error, by_verifier)
