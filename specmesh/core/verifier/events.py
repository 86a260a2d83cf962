"""Events into the verifier's core, and effects out of it. Clients are numbers to it, drafters identities."""

from dataclasses import dataclass, field
from enum import Enum

from specmesh.core import events as ev
from specmesh.core.draft_length.policy import Policy, PolicyInputs
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import Request, Scored
from specmesh.core.rounds import Round
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.counters import RoundCounts
from specmesh.core.statistics.snapshot import PrefixCacheSection
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

# --- what happened

DrafterId = bytes  # the identity of a drafter's connection


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A request for a session, by `client`, a number that its effects name. `ids` are the prompt's
    and then those of a resumed text; without a prompt the session that the request names is to be
    resumed, or nothing. owner: the drafter whose client asks, None for a client of the verifier's
    own. key: it was asked with; may be empty. tenant: whom it counts for where clients share
    something."""

    client: int
    request: Request
    ids: tuple[int, ...]
    n_prompt: int
    constraint: Constraint | None = None
    owner: DrafterId | None = None
    key: str = ""
    tenant: Tenant = ()


@dataclass(frozen=True, slots=True)
class FromDrafter:
    drafter: DrafterId
    said: m.Draft | m.DraftProbs | m.Nack


@dataclass(frozen=True, slots=True)
class ClientLeft:
    client: int


@dataclass(frozen=True, slots=True)
class ClientPaused:
    """A client reads nothing: its session is to wait. Or it reads again."""

    client: int
    paused: bool


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """A drafter says so of a session that its client asked for."""

    drafter: DrafterId
    session: int
    paused: bool


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A drafter has heard the end of a session, or wants no more of it."""

    drafter: DrafterId
    session: int


@dataclass(frozen=True, slots=True)
class DrafterJoined:
    drafter: DrafterId
    n_ctx: int
    name: str = ""  # for people


@dataclass(frozen=True, slots=True)
class DrafterLeft:
    drafter: DrafterId
    may_return: bool


@dataclass(frozen=True, slots=True)
class DrafterMuted:
    """A drafter drafts nothing here by its own account, or does again."""

    drafter: DrafterId
    muted: bool


@dataclass(frozen=True, slots=True)
class RoundTrip:
    drafter: DrafterId
    seconds: float


@dataclass(frozen=True, slots=True)
class Solved:
    session: int
    policy: Policy


@dataclass(frozen=True, slots=True)
class ThreadsShared:
    """The target computes with `alone` CPU threads, with `beside` while one of these drafters of its host drafts."""

    alone: int
    beside: int
    drafters: frozenset[DrafterId] = frozenset()


class Signal(Enum):
    STOPPING = "stopping"  # whoever waits has been refused, nobody new comes, and nothing is kept
    REPORT_WANTED = "report wanted"
    TIME_UP = "time up"  # the core wanted to be woken now


# --- what is to be done


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """This client gets no session, or no more of it."""

    client: int
    error: SpecmeshError


@dataclass(frozen=True, slots=True)
class Began:
    """A client has a session; a resumed one has said ids that the client lacks."""

    client: int
    session: int
    prompt_ids: tuple[int, ...]
    params: SessionParams
    name: str
    opened: float  # when
    resumed: int  # ids that the client brought
    adopted: bool  # it was here already
    said: tuple[int, ...] = ()
    logprobs: tuple[Logprob | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """A session's round. client: None while it is kept for whoever resumes it. first: its first, which somebody waits
    for."""

    session: int
    client: int | None
    round: Round
    at: float
    draft_n: int
    first: bool = False


@dataclass(frozen=True, slots=True)
class ToClient:
    client: int | None
    what: Scored


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session is over; its drafter knows, and may tell its own part of the report."""

    session: int
    client: int | None
    reason: m.FinishReason
    error: SpecmeshError | None
    prompt_ids: tuple[int, ...]
    report: dict[str, object]
    seconds: float  # since it was opened
    again: bool = False  # it had ended before: the client asked for its end once more


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A session that was kept cannot be resumed any more."""

    session: int


Said = m.Truth | m.Sync | m.Nack | m.Opened | m.Done | m.Logprobs


@dataclass(frozen=True, slots=True)
class ToDrafter:
    drafter: DrafterId
    what: Said


@dataclass(frozen=True, slots=True)
class Solve:
    """A policy is to be solved, which takes milliseconds."""

    session: int
    inputs: PolicyInputs
    old: Policy | None


@dataclass(frozen=True, slots=True)
class Ran:
    """A step of the target is over."""

    started: float
    ended: float
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CoreReport:
    """How it stands, for `stats`. sessions: a row for each; drafters: by identity, what was measured of each."""

    sessions: list[dict[str, object]] = field(default_factory=list)
    drafters: dict[DrafterId, dict[str, object]] = field(default_factory=dict)
    kept: int = 0
    stray_frames: int = 0
    draft_n: int | None = None  # of the newest session
    prefix_cache: PrefixCacheSection = field(default_factory=PrefixCacheSection)
    totals: RoundCounts = field(default_factory=RoundCounts)  # of all sessions ever
    step_s: float = 0.0
    steps: dict[int, dict[int, float]] = field(
        default_factory=dict
    )  # seconds by rows, by each table's least context


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
)  # of who is there, and of what they ask for
Happened = FromDrafter | Change
Effect = (
    RequestRefused | Began | Committed | ToClient | SessionEnded | Forgotten | ToDrafter | Solve | Ran | Noted
    | CoreReport
)  # fmt: skip
