"""What the time of a session went to."""

from dataclasses import dataclass


@dataclass(slots=True)
class SessionTimes:
    """When things happened to a session, and seconds spent: in verification steps it took part in, waiting for drafts,
    and between a correction and the first draft on it (`restart`, over `restarts` corrections)."""

    opened: float
    decoding: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    verify: float = 0.0
    wait: float = 0.0
    restart: float = 0.0
    restarts: int = 0

    def generating(self, now: float) -> float:
        """Seconds from the first verification step to the newest token, to `now` before that; 0 before the first."""
        end = now if self.last_token is None else self.last_token
        return 0.0 if self.decoding is None else end - self.decoding
