"""Sessions at the verifier whose client went away: kept for a while, by name, for those who come back."""

from dataclasses import dataclass

from specmesh.api.requests import ClientEvent, Failed, Finished
from specmesh.daemons.verifier.session_context import SessionContext

GRACE = 30.0
"""Seconds for which a session is kept, where the settings say nothing."""

MOST = 64
"""Most sessions kept at once, those that have ended counted: the oldest give way."""


class AbsentClient:
    """Stands in for a client that went away; `end` is how its text ended, once it has."""

    def __init__(self, end: Finished | None = None) -> None:
        self.end: Finished | Failed | None = end

    def on_event(self, event: ClientEvent) -> None:
        """Only the end is of use to whoever comes back: the text itself is in the session."""
        if self.end is None and isinstance(event, Finished | Failed):
            self.end = event


@dataclass(frozen=True, slots=True)
class _Left:
    """A session that was left: until when it is kept, and who hears its end meanwhile."""

    live: SessionContext
    until: float
    absent: AbsentClient

    @property
    def running(self) -> bool:
        """Whether it has a place in the engine."""
        return self.absent.end is None


class DetachedSessions:
    """Those sessions, the longest kept first, each for `grace` seconds."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._left: dict[int, _Left] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, live: SessionContext, now: float, end: Finished | None = None) -> AbsentClient:
        """Keep a session, or renew how long; with its `end` where it has ended. Who is to hear of it meanwhile."""
        absent = AbsentClient(end)
        self._left.pop(live.id, None)
        self._left[live.id] = _Left(live, now + self.grace, absent)
        return absent

    def ended(self, name: str) -> tuple[SessionContext, Finished] | None:
        """The session of that name and its end, where it has ended with a text."""
        for left in self._left.values():
            if left.live.name == name and isinstance(left.absent.end, Finished):
                return left.live, left.absent.end
        return None

    def forget(self, session: int) -> None:
        self._left.pop(session, None)

    def closed(self, session: int, drafter: bytes) -> None:
        """This drafter says that it has heard how the session ended; believed where it is its own."""
        left = self._left.get(session)
        if left is not None and left.live.owner == drafter and not left.running:
            self.forget(session)

    def running(self) -> SessionContext | None:
        """The session kept longest of those that still have a place in the engine."""
        return next((left.live for left in self._left.values() if left.running), None)

    def next_deadline(self) -> float | None:
        return min((left.until for left in self._left.values()), default=None)

    def expire(self, now: float) -> list[SessionContext]:
        """Let those go whose time is over, or that are too many; returned are those that still run."""
        lefts = list(self._left.values())
        excess = len(lefts) - MOST
        over = [left for number, left in enumerate(lefts) if now >= left.until or number < excess]
        for left in over:
            self.forget(left.live.id)
        return [left.live for left in over if left.running]
