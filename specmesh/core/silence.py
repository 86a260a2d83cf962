"""Whether a drafter that is asked for drafts says nothing."""

ROUNDS = 3
"""Rounds in which it was asked, and nothing came."""

PATIENCE, FIRST_PATIENCE, RESTARTS = 0.25, 5.0, 8
"""Seconds, and so many restarts, of such rounds; seconds before its first drafts, when it has all the text to read."""


class Silence:
    """One drafter of one session, from when it came."""

    def __init__(self) -> None:
        self._drafted = False
        self._since: float | None = None  # the first round in which nothing came
        self._rounds = 0

    def broken(self) -> None:
        """Drafts have come."""
        self._drafted, self._since, self._rounds = True, None, 0

    def round(self, *, asked: bool, now: float) -> None:
        """A round has ended, in which or before which nothing came, and it is asked, or not, for the next."""
        if not asked:
            self._since, self._rounds = None, 0
        elif self._since is None:
            self._since = now
        else:
            self._rounds += 1

    def lasts(self, restart: float, now: float) -> bool:
        """Whether it has lasted for much longer than the drafter takes to begin anew, `restart` seconds."""
        patience = PATIENCE + RESTARTS * restart if self._drafted else FIRST_PATIENCE
        return self._since is not None and self._rounds >= ROUNDS and now - self._since > patience
