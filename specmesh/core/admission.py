"""Requests that wait for a sequence of the target: how many, and which is next; sessions kept for absent clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specmesh.core import verifier_events as vev
from specmesh.core.session import SessionContext
from specmesh.errors import Busy

MAX_QUEUE = 256  # requests that wait for a free session, unless told otherwise
MAX_BYTES = 64 * 2**20  # that they may take together; one alone always may
GRACE = 30.0  # seconds for which a session is kept, unless told otherwise
MAX_DETACHED = 64  # most sessions kept, ended ones included: the oldest give way


def most_sessions(n_seq: int) -> int:
    """How many of the sessions one drafter's own clients get: three quarters, of fewer than four all."""
    return n_seq - n_seq // 4


def check_queue(waiting: Sequence[int], new: int, most: int, full: str) -> None:
    """Raise Busy, which says `full`, where those `waiting`, all in bytes, leave no room for one more."""
    if waiting and sum(waiting) + new > MAX_BYTES:
        raise Busy(f"the {len(waiting)} requests that wait take {sum(waiting) >> 20} MB: try again, or ask for less")
    if len(waiting) >= most:
        raise Busy(full)


class WaitingRequests:
    """Requests for one of `n_seq` sessions: a lower priority first, then in the order that they came in."""

    def __init__(self, n_seq: int) -> None:
        self._n_seq, self._share = n_seq, most_sessions(n_seq)
        self.openings: list[vev.Opening] = []  # to be read only

    def add(self, opening: vev.Opening) -> None:
        self.openings.append(opening)

    def withdraw(self, unwanted: Callable[[vev.Opening], bool]) -> None:
        self.openings = [opening for opening in self.openings if not unwanted(opening)]

    def next(self, owners: Sequence[vev.DrafterId | None]) -> vev.Opening | None:
        """Return who is next beside live sessions of these owners, and let it wait no longer."""
        if len(owners) < self._n_seq:
            for opening in sorted(self.openings, key=lambda one: (one.priority, one.client)):
                if opening.owner is None or owners.count(opening.owner) < self._share:
                    self.openings.remove(opening)
                    return opening
        return None


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
