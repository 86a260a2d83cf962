"""When a missing thing is looked for again, and when that is worth another line of the log."""

SOONEST, LATEST = 0.25, 4.0  # seconds between two looks, at first and at last
NOTICE_INTERVAL = 60.0  # seconds until the same thing has another line


class Retries:
    """The looks for one thing that something depends on. pause: seconds until the next look."""

    def __init__(self) -> None:
        self.pause = SOONEST
        self._noticed = ""
        self._next_notice = float("-inf")

    def missed(self, what: str, now: float) -> bool:
        """Note that it was not there, for this reason; return True if that is worth a line."""
        self.pause = min(2 * self.pause, LATEST)
        if what == self._noticed and now < self._next_notice:
            return False
        self._noticed = what
        self._next_notice = now + NOTICE_INTERVAL
        return True
