"""Sessions whose client went away, kept for a while for whoever resumes them by name."""

from dataclasses import dataclass

from specmesh.api.requests import ClientEvent, Failed, Finished
from specmesh.daemons.verifier.session_context import SessionContext

GRACE = 30.0  # seconds for which a session is kept, unless told otherwise
MAX_DETACHED = 64  # most sessions kept, ended ones included: the oldest give way


@dataclass(slots=True, eq=False)
class DetachedSession:
    """A session, until when it is kept, and in place of its client: keeps the end, the text is in the session."""

    live: SessionContext
    until: float
    end: Finished | Failed | None = None

    def on_event(self, event: ClientEvent) -> None:
        if self.end is None and isinstance(event, Finished | Failed):
            self.end = event


class DetachedSessions:
    """Detached sessions, the oldest first, each for `grace` seconds."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._detached: dict[int, DetachedSession] = {}

    def __len__(self) -> int:
        return len(self._detached)

    def add(self, live: SessionContext, now: float, end: Finished | None = None) -> DetachedSession:
        self._detached.pop(live.id, None)
        self._detached[live.id] = detached = DetachedSession(live, now + self.grace, end)
        return detached

    def ended(self, name: str) -> tuple[SessionContext, Finished] | None:
        for left in self._detached.values():
            if left.live.name == name and isinstance(left.end, Finished):
                return left.live, left.end
        return None

    def forget(self, session: int) -> None:
        self._detached.pop(session, None)

    def closed(self, session: int, drafter: bytes) -> None:
        """Forget a finished session whose own drafter has received the end."""
        left = self._detached.get(session)
        if left is not None and left.live.owner == drafter and left.end is not None:
            self.forget(session)

    def running(self) -> SessionContext | None:
        return next((left.live for left in self._detached.values() if left.end is None), None)

    def expire(self, now: float) -> list[SessionContext]:
        """Forget those whose time is over, or that are too many; return those that still run."""
        lefts = list(self._detached.values())
        excess = len(lefts) - MAX_DETACHED
        over = [left for number, left in enumerate(lefts) if now >= left.until or number < excess]
        for left in over:
            self.forget(left.live.id)
        return [left.live for left in over if left.end is None]
