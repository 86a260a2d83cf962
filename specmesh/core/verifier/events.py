"""Events into the verifier's core, and effects out of it.

The core knows a client by a number and a drafter by its identity. An effect for one of them names
it once, in `ToClient` or `ToDrafter`.

| event | usual effects |
|---|---|
| Opening | ToClient(Began), ToDrafter(OPENED, SYNC), Noted |
| FromDrafter | none; NACK or SYNC if a frame follows nothing |
| a step's result | for each session ToDrafter(TRUTH), ToClient(Round); then Ran, perhaps Solve |
| Solved | none: the next plan follows the policy |
| ClientLeft, SessionClosed | ToClient(SessionEnded), ToDrafter(DONE), Forgotten, Noted |
| DrafterJoined, DrafterLeft | ToDrafter(OPENED, SYNC) for sessions that get another drafter |
| Signal.REPORT_WANTED | CoreReport |

The shell carries effects out in their order. It answers none of them to the core, but for `Solve`.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from specmesh.core import events as ev
from specmesh.core.draft_length.policy import Policy, PolicyInputs
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import Account, PromptRead, Request, Scored, SourceRun
from specmesh.core.rounds import Round
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.counters import RoundCounts
from specmesh.core.statistics.snapshot import (
    KVCacheSection,
    PrefixCacheSection,
    SuffixCacheSection,
)
from specmesh.core.verifier.predicted_text import PredictedText
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

# --- events

DrafterId = bytes
"""The identity of a drafter's connection."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Opening:
    """A client's request for a session.

    ids: of the prompt, and then of a resumed text. n_prompt: how many are the prompt's; 0 to resume
        the session that the request names, or none.
    constraint: the grammar's at the beginning of the text.
    predicted: the request's prediction.
    owner: the drafter whose client asks; None for a client of the verifier's own.
    key: proved by that drafter; may be empty.
    tenant: for whom the session counts.
    account: that asks, if it is known here: an API key, or a user of this machine.
    sharing: texts that will share its steps, if more are known than run and wait here.
    """

    client: int
    request: Request
    ids: tuple[int, ...]
    n_prompt: int
    constraint: Constraint | None = None
    predicted: PredictedText | None = None
    owner: DrafterId | None = None
    key: str = ""
    tenant: Tenant = ()
    account: Account | None = None
    sharing: int = 0


class FromDrafter(NamedTuple):
    """A frame of a drafter's session."""

    drafter: DrafterId
    frame: m.Draft | m.DraftProbs | m.Nack


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client has gone: its session is to end.

    reason: of the end. A client that watches another server knows more than that it left.
    """

    client: int
    reason: m.FinishReason = m.FinishReason.CANCELLED


@dataclass(frozen=True, slots=True)
class ClientPaused:
    """A client reads nothing, so its session is to wait. Or it reads again."""

    client: int
    paused: bool


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """The client of a drafter reads nothing, or reads again."""

    drafter: DrafterId
    session: int
    paused: bool


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A drafter knows the end of a session, or wants no more of it."""

    drafter: DrafterId
    session: int


@dataclass(frozen=True, slots=True)
class DrafterJoined:
    """A drafter is attached. n_ctx: ids that its model holds. name: for people."""

    drafter: DrafterId
    n_ctx: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class DrafterLeft:
    """A drafter has gone."""

    drafter: DrafterId
    may_return: bool


@dataclass(frozen=True, slots=True)
class DrafterMuted:
    """A drafter reports that it drafts nothing here, or that it does again."""

    drafter: DrafterId
    muted: bool


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The seconds from a PING to its PONG."""

    drafter: DrafterId
    seconds: float


@dataclass(frozen=True, slots=True)
class Solved:
    """The policy of a session with its drafter was solved. It is of no use with another one."""

    session: int
    drafter: DrafterId | None
    policy: Policy


@dataclass(frozen=True, slots=True)
class ThreadsShared:
    """CPU threads of the target: `undivided`, and `beside` a drafter of its host that drafts.

    drafters: those of its host.
    """

    undivided: int
    beside: int
    drafters: frozenset[DrafterId] = frozenset()


class Signal(Enum):
    """An event without data.

    STOPPING: no request waits or will come, and no session is to be kept.
    TIME_UP: it is as late as the core wanted to be called.
    """

    STOPPING = "stopping"
    REPORT_WANTED = "report wanted"
    TIME_UP = "time up"


# --- effects for clients and drafters


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The client has a session.

    opened: when the session was. adopted: it was there already.
    resumed: ids of the text that the first client brought.
    ids, logprobs, sources: of the text, as far as the client lacks them.
    reading: the first report about the prompt, for a client that wants reports.
    """

    session: int
    prompt_ids: tuple[int, ...]
    params: SessionParams
    name: str
    opened: float
    resumed: int
    adopted: bool
    ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob | None, ...] = ()
    sources: tuple[SourceRun, ...] = ()
    reading: PromptRead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session is over. Its drafter has DONE, and may add its own part of the report.

    error: that ended it. seconds: since it was opened.
    again: it had ended before; a client asked for it once more.
    """

    session: int
    reason: m.FinishReason
    error: SpecmeshError | None
    prompt_ids: tuple[int, ...]
    report: dict[str, object]
    seconds: float
    again: bool = False


ClientNews = Began | PromptRead | Round | Scored | SessionEnded
DrafterFrame = m.Truth | m.Sync | m.Nack | m.Opened | m.Done | m.Logprobs


class ToClient(NamedTuple):
    """Something for a client; `client` is None while its session is kept for one."""

    client: int | None
    what: ClientNews


class ToDrafter(NamedTuple):
    """A frame for a drafter."""

    drafter: DrafterId
    what: DrafterFrame


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A client gets no session, or no more of its session."""

    client: int
    error: SpecmeshError


# --- other effects


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A session cannot be resumed any more."""

    session: int


@dataclass(frozen=True, slots=True)
class Solve:
    """A policy is to be solved, which takes milliseconds. old: the policy until then."""

    session: int
    drafter: DrafterId | None
    inputs: PolicyInputs
    old: Policy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A step of the target is over.

    tokens: that clients are shown. rounds: of its sessions.
    draft_n: drafts that the drafter of each of these is asked for next.
    """

    started: float
    ended: float
    rows: int
    tokens: int
    rounds: tuple[Round, ...]
    draft_n: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReport:
    """The core's part of `stats`.

    sessions: a row for each. drafters: measurements by identity.
    kept: sessions that wait for a client. draft_n: of the newest session.
    totals: of all sessions since the start.
    step_s: seconds of a step of one row.
    steps: seconds by rows, for each measured context.
    kv_cache: the cells that sessions share, if they do.
    suffix_cache: earlier outputs, if they are kept.
    """

    sessions: list[dict[str, object]] = field(default_factory=list)
    drafters: dict[DrafterId, dict[str, object]] = field(default_factory=dict)
    kept: int = 0
    stray_frames: int = 0
    draft_n: int | None = None
    prefix_cache: PrefixCacheSection = field(default_factory=PrefixCacheSection)
    totals: RoundCounts = field(default_factory=RoundCounts)
    step_s: float = 0.0
    steps: dict[int, dict[int, float]] = field(default_factory=dict)
    kv_cache: KVCacheSection | None = None
    suffix_cache: SuffixCacheSection | None = None


Noted = ev.Noted

Change = (
    Opening
    | ClientLeft
    | ClientPaused
    | SessionPaused
    | SessionClosed
    | DrafterJoined
    | DrafterLeft
    | DrafterMuted
    | RoundTrip
    | Solved
    | ThreadsShared
    | Signal
)
"""Events that wait until no step runs."""
Happened = FromDrafter | Change
Effect = ToClient | ToDrafter | RequestRefused | Forgotten | Solve | Ran | Noted | CoreReport
