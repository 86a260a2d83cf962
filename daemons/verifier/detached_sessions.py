"""Sessions whose client went away, kept for a while for whoever resumes them by name."""

from dataclasses import dataclass

from specmesh.api.requests import ClientEvent, Failed, Finished
from specmesh.daemons.verifier.session_context import SessionContext

GRACE = 30.0
"""Default seconds for which a session is kept."""

MAX_DETACHED = 64
"""Most sessions kept, ended ones included: the oldest give way."""


class AbsentClient:
    """Stands in for a client that went away; keeps the end: the text itself is in the session."""

    def __init__(self, end: Finished | None = None) -> None:
        self.end: Finished | Failed | None = end

    def on_event(self, event: ClientEvent) -> None:
        if self.end is None and isinstance(event, Finished | Failed):
            self.end = event


@dataclass(frozen=True, slots=True)
class _Detached:
    live: SessionContext
    until: float
    absent: AbsentClient

    @property
    def running(self) -> bool:
        return self.absent.end is None


class DetachedSessions:
    """Detached sessions, the oldest first, each for `grace` seconds."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._detached: dict[int, _Detached] = {}

    def __len__(self) -> int:
        return len(self._detached)

    def add(self, live: SessionContext, now: float, end: Finished | None = None) -> AbsentClient:
        """Keep a session, perhaps ended, from now on; return its client meanwhile."""
        absent = AbsentClient(end)
        self._detached.pop(live.id, None)
        self._detached[live.id] = _Detached(live, now + self.grace, absent)
        return absent

    def ended(self, name: str) -> tuple[SessionContext, Finished] | None:
        """Return the session of this name and its end, where it has finished."""
        for left in self._detached.values():
            if left.live.name == name and isinstance(left.absent.end, Finished):
                return left.live, left.absent.end
        return None

    def forget(self, session: int) -> None:
        self._detached.pop(session, None)

    def closed(self, session: int, drafter: bytes) -> None:
        """Forget a finished session whose own drafter has received the end."""
        left = self._detached.get(session)
        if left is not None and left.live.owner == drafter and not left.running:
            self.forget(session)

    def running(self) -> SessionContext | None:
        """Return the oldest that still runs."""
        return next((left.live for left in self._detached.values() if left.running), None)

    def next_deadline(self) -> float | None:
        return min((left.until for left in self._detached.values()), default=None)

    def expire(self, now: float) -> list[SessionContext]:
        """Forget those whose time is over, or that are too many; return those that still run."""
        lefts = list(self._detached.values())
        excess = len(lefts) - MAX_DETACHED
        over = [left for number, left in enumerate(lefts) if now >= left.until or number < excess]
        for left in over:
            self.forget(left.live.id)
        return [left.live for left in over if left.running]
