"""Requests that wait for a sequence of the target: how many, and which is next; sessions kept for absent clients."""

from collections.abc import Callable, Iterable, Sequence

from specmesh.core import verifier_events as vev
from specmesh.core.session_context import ContextState, SessionContext
from specmesh.errors import Busy

MAX_QUEUE = 256  # requests that wait for a free session, unless set otherwise
MAX_BYTES = 64 * 2**20  # that they may take together; one alone always may
GRACE = 30.0  # seconds for which a session is kept, unless set otherwise
READER_PATIENCE = 60.0  # seconds for which a session waits for its reader, whose API ends it sooner
MAX_KEPT = 64  # most sessions kept, ended ones included: the oldest give way


def most_sessions(max_sessions: int) -> int:
    """How many of the sessions one drafter's own clients get: three quarters, of fewer than four all."""
    return max_sessions - max_sessions // 4


def check_queue(waiting: Sequence[int], new: int, most: int, full: str) -> None:
    """Raise Busy, which says `full`, where those `waiting`, all in bytes, leave no room for one more."""
    if waiting and sum(waiting) + new > MAX_BYTES:
        raise Busy(
            f"the {len(waiting)} requests that wait take {sum(waiting) >> 20} MB",
            "try again, or ask for less",
        )
    if len(waiting) >= most:
        raise Busy(full)


class WaitingRequests:
    """Requests for one of `max_sessions` sessions, in the order that they came in."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions, self._share = max_sessions, most_sessions(max_sessions)
        self.openings: list[vev.Opening] = []

    def withdraw(self, unwanted: Callable[[vev.Opening], bool]) -> None:
        self.openings = [opening for opening in self.openings if not unwanted(opening)]

    def sharing(self, sessions: int) -> int:
        """How many sessions there will be as soon as those that wait have joined these."""
        return min(sessions + len(self.openings), self._max_sessions)

    def next(self, sessions: Iterable[SessionContext]) -> vev.Opening | None:
        """Return who is next beside these sessions, and let it wait no longer."""
        owners = [live.owner for live in sessions if live.client is not None]
        if len(owners) < self._max_sessions:
            for opening in sorted(self.openings, key=lambda one: one.client):
                if opening.owner is None or owners.count(opening.owner) < self._share:
                    self.openings.remove(opening)
                    return opening
        return None


class KeptSessions(dict[int, SessionContext]):
    """Sessions whose client went away, by id, the oldest first, each for `grace` seconds for whoever resumes it by
    name; with their end those that have ended."""

    def __init__(self, grace: float) -> None:
        super().__init__()
        self.grace = grace

    @property
    def next_end(self) -> float:
        """When the first is to be forgotten."""
        return min((live.kept_until for live in self.values()), default=float("inf"))

    def add(self, live: SessionContext, now: float) -> None:
        self.pop(live.id, None)
        self[live.id] = live
        live.kept_until = now + self.grace

    def running(self) -> SessionContext | None:
        return next((live for live in self.values() if live.state is ContextState.KEPT), None)

    def expire(self, now: float) -> list[SessionContext]:
        """Forget, and return, those whose time is over, or that are too many."""
        if now < self.next_end and len(self) <= MAX_KEPT:
            return []
        excess = len(self) - MAX_KEPT
        over = [
            live
            for number, live in enumerate(self.values())
            if now >= live.kept_until or number < excess
        ]
        for live in over:
            del self[live.id]
        return over
