"""The events that an `Upstream` takes, and the effects that it returns.

Events are found by the link, ordered by the router of requests, or effects of the drafter's core.
Frames that need nothing more than their content are events themselves.
"""

from dataclasses import dataclass
from typing import NamedTuple

from specmesh.core import events as ev
from specmesh.core.drafter.placement import Placement, PlacementEffect
from specmesh.core.request_frames import OpenPart
from specmesh.core.requests import Reply
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

# --- the link finds


class SessionFrame(NamedTuple):
    """A frame of ids came, of `size` bytes; idle: the core has taken all those before it.

    It is a tuple because each round makes one.
    """

    frame: m.Truth | m.Sync | m.Nack
    size: int
    idle: bool


@dataclass(frozen=True, slots=True)
class LogprobsCame:
    """A LOGPROBS of `size` bytes came."""

    frame: m.Logprobs
    size: int


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """An OPENED came.

    session: the verifier's number of it. ref: of the request that it answers, or 0.
    """

    session: int
    ref: int
    n_prompt: int
    params: SessionParams


@dataclass(frozen=True, slots=True)
class ErrorCame:
    """An ERROR came, or an OPEN could not be sent; ref: of the request that it is about, or 0."""

    ref: int
    error: SpecmeshError
    code: str = ""


@dataclass(frozen=True, slots=True)
class VerifierLost:
    """The verifier went away."""

    reason: str


@dataclass(frozen=True, slots=True)
class UpstreamMeasured:
    """The median of the round trips to the verifier is so many seconds now."""

    round_trip: float


@dataclass(frozen=True, slots=True)
class UpstreamBarred:
    """No connection can be made, or again: see `UpstreamFacts`."""

    kept_out: str | None
    unknown: str


@dataclass(frozen=True, slots=True)
class VocabularyCompared:
    """How far the verifier's vocabulary is known, and suits: see `UpstreamFacts`.

    ready: the draft model can draft in it.
    """

    vocabulary: Vocabulary | None
    foreign: str
    unusable: str
    ready: bool


class FromDraftCore(NamedTuple):
    """An effect of the drafter's core for a session.

    bytes_sent: of all its frames, with DraftingEnded.
    """

    key: ev.SessionKey
    effect: ev.Learned | ev.DraftingEnded | ev.Noted
    bytes_sent: int = 0


# --- the router orders


@dataclass(frozen=True, slots=True)
class AskFor:
    """Ask the verifier, which is there, for a session."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Withdraw a request, or close its session."""

    number: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """End the session of a request, whose text another client resumes."""

    number: int


@dataclass(frozen=True, slots=True)
class PausePlacement:
    """Let the session of a request wait for its reader, or go on."""

    number: int
    paused: bool


FrameEvent = m.Welcome | m.Ping | m.Pong | m.Progress | m.Done
FoundEvent = (
    SessionFrame
    | LogprobsCame
    | SessionOpened
    | ErrorCame
    | VerifierLost
    | UpstreamMeasured
    | UpstreamBarred
    | VocabularyCompared
    | FromDraftCore
)
PlacementOrder = AskFor | Withdraw | TakeOver | PausePlacement
UpstreamEvent = FrameEvent | FoundEvent | PlacementOrder


# --- effects


@dataclass(frozen=True, slots=True)
class FrameRejected:
    """A frame is lost; reason: the counter that has it."""

    reason: str


@dataclass(frozen=True, slots=True)
class VerifierFound:
    """The verifier answers with a WELCOME that begins a connection."""

    welcome: m.Welcome


@dataclass(frozen=True, slots=True)
class ReasonChanged:
    """The verifier is to get the reason why nothing is drafted for it, with a PING now."""


LinkEffect = (
    OpenPart
    | m.Open
    | m.Close
    | m.Pause
    | ev.FrameReceived
    | ev.OpenSession
    | ev.CloseSession
    | ev.UpstreamChanged
    | Reply
    | ev.Noted
    | FrameRejected
    | VerifierFound
    | ReasonChanged
    | ErrorCame
)
"""Frames to send, events for the core, events for clients, lines for the log, and work of the link.

- If an OPEN cannot be sent, ErrorCame is an event, and its request is placed anew.
- An ErrorCame that is an effect is about no request: it is about the connection.
"""

UpstreamEffect = LinkEffect | PlacementEffect
