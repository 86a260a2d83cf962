"""A session of the verifier with its client and its drafters; and those that are kept while their client is away."""

from dataclasses import dataclass, field

from specmesh.core import verifier_events as vev
from specmesh.core.drafting.drafter_pool import SessionDrafters, Standby
from specmesh.core.session import VerifierSession
from specmesh.errors import SpecmeshError

GRACE = 30.0  # seconds for which a session is kept, unless told otherwise
MAX_DETACHED = 64  # most sessions kept, ended ones included: the oldest give way


@dataclass(slots=True, eq=False)
class SessionContext:
    """client: who hears of it, None while it is kept. owner: the drafter whose client asked for it, None for one of
    the verifier's own. name: to resume it by; key: it was opened with; either may be empty. asked: drafts were asked
    for when drafters' loads were last counted. unguided: the log has that its grammar can check no more drafts."""

    id: int
    machine: VerifierSession
    client: int | None
    owner: vev.DrafterId | None
    drafter: vev.DrafterId | None = None
    name: str = ""
    key: str = ""
    casting: SessionDrafters[vev.DrafterId] = field(default_factory=SessionDrafters)
    standby: Standby | None = None
    asked: bool = False
    unguided: bool = False

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.machine.prefix[: self.machine.n_prompt])

    def began(self, known: int, *, adopted: bool) -> vev.Began:
        """What its client, new to it, hears; of a client of the verifier's own that has `known` ids, the others too."""
        machine, begin = self.machine, self.machine.n_prompt + known
        said = machine.said(known) if self.owner is None else ()
        assert self.client is not None, "it was just given to one"
        return vev.Began(
            self.client, self.id, self.owner, self.prompt_ids, machine.params, self.name, machine.times.opened,
            machine.cached, machine.resumed, adopted, said,
            machine.logprobs.between(begin, begin + len(said)) if said and machine.logprobs is not None else (),
        )  # fmt: skip

    def ended(
        self, reason: str, error: SpecmeshError | None, report: dict[str, object], now: float
    ) -> vev.SessionEnded:
        machine = self.machine
        return vev.SessionEnded(
            self.id, self.client, self.owner, self.drafter, reason, error, self.prompt_ids, report,
            now - machine.times.opened,
        )  # fmt: skip


@dataclass(slots=True)
class _Detached:
    live: SessionContext
    until: float
    end: vev.SessionEnded | None = None


class DetachedSessions:
    """Sessions whose client went away, the oldest first, each for `grace` seconds for whoever resumes it by name; with
    the end of those that have ended."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.sessions: dict[int, _Detached] = {}  # to be read only

    def __len__(self) -> int:
        return len(self.sessions)

    @property
    def next_end(self) -> float:
        """When the first is to be forgotten."""
        return min((one.until for one in self.sessions.values()), default=float("inf"))

    def add(self, live: SessionContext, now: float, end: vev.SessionEnded | None = None) -> None:
        self.sessions.pop(live.id, None)
        self.sessions[live.id] = _Detached(live, now + self.grace, end)

    def ended(self, name: str) -> tuple[SessionContext, vev.SessionEnded] | None:
        for one in self.sessions.values():
            if one.live.name == name and one.end is not None:
                return one.live, one.end
        return None

    def keep_end(self, end: vev.SessionEnded) -> bool:
        """Keep the end of a detached session; False where it is none."""
        if end.session not in self.sessions:
            return False
        self.sessions[end.session].end = end
        return True

    def forget(self, session: int) -> None:
        self.sessions.pop(session, None)

    def closed(self, session: int, drafter: vev.DrafterId) -> bool:
        """Forget a finished session whose own drafter has received the end."""
        one = self.sessions.get(session)
        if one is None or one.live.owner != drafter or one.end is None:
            return False
        self.forget(session)
        return True

    def running(self) -> SessionContext | None:
        return next((one.live for one in self.sessions.values() if one.end is None), None)

    def expire(self, now: float) -> list[SessionContext]:
        """Forget, and return, those whose time is over, or that are too many."""
        if now < self.next_end and len(self) <= MAX_DETACHED:
            return []
        excess = len(self) - MAX_DETACHED
        over = [one.live for number, one in enumerate(self.sessions.values()) if now >= one.until or number < excess]
        for live in over:
            self.forget(live.id)
        return over
