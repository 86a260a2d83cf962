"""Whether drafting has paid, by the clock."""

from dataclasses import dataclass
from math import sqrt

ROUNDS = 3  # rounds in which it was asked, and nothing came
PATIENCE, FIRST_PATIENCE, RESTARTS = 0.25, 5.0, 8
"""Seconds, and so many restarts, of such rounds; seconds before its first drafts, when it has all the text to read."""


class SilenceTimer:
    """One drafter of one session, from when it came."""

    def __init__(self) -> None:
        self._drafted = False
        self._since: float | None = None  # the first round in which nothing came
        self._rounds = 0

    def broken(self) -> None:
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


TRIAL = 32  # rounds with drafts after which their measured rate is held against the target's alone
BENCHED, LONGEST_BENCHED = 32, 4096
"""Rounds that a drafter which has failed a trial is not asked for anything; twice as many each time, up to so many."""

COMPARISON = 8  # rounds without drafts that show what lies between steps then, where no others have shown it


@dataclass(slots=True)
class _Trial:
    """Rounds with drafts: how many, their seconds, their tokens, and the sum of the squares of these.

    `since` is when the newest of them ended; None where the rounds after it had no drafts, or do not count.
    """

    since: float | None = None
    seconds: float = 0.0
    rounds: int = 0
    tokens: int = 0
    squares: int = 0

    def add(self, tokens: int, now: float) -> None:
        """A round that began when the last ended, if that one counts."""
        if self.since is not None:
            self.seconds += now - self.since
            self.rounds += 1
            self.tokens += tokens
            self.squares += tokens * tokens
        self.since = now

    def slower(self, alone: float) -> bool:
        """Whether the target alone, at `alone` seconds a token, would have been faster by more than luck explains: one
        standard deviation of the tokens of so many rounds."""
        spread = sqrt(max(self.squares - self.tokens * self.tokens / self.rounds, 0.0))
        return (self.tokens + spread) * alone < self.seconds


class DrafterBackoff:
    """Where a drafter sits that has failed a trial: not asked for anything for so many more `rounds`."""

    def __init__(self) -> None:
        self.rounds = 0
        self._next = BENCHED  # how many after the next trial that it fails
        self._trial = _Trial()

    @property
    def believed(self) -> bool:
        """Whether what it says without being verified counts: it has failed no trial since it last passed one."""
        return self._next == BENCHED

    def another(self, *, proven: bool) -> None:
        """Another drafter takes the place. proven: it has shown that it is better, so that trials which others failed
        do not count for it."""
        self._trial, self.rounds = _Trial(), 0 if proven else min(self.rounds, BENCHED)
        if proven:
            self._next = 2 * BENCHED  # what it showed may have been copied: it is not believed before it has passed one

    def sits_out(self) -> bool:
        """Let a round pass; whether it was one without it."""
        sat_out = self.rounds > 0
        self.rounds -= sat_out
        return sat_out

    def interrupted(self) -> None:
        """A round that does not count: its trial goes on with the next that do, drafting may come in short spells."""
        self._trial.since = None

    def tried(self, tokens: int, now: float, alone: float | None) -> None:
        """A round with drafts; after enough of them the trial ends.

        alone: seconds a token of the target alone; None where it is not known what lies between two of its steps, so
        that some are to show it.
        """
        trial = self._trial
        trial.add(tokens, now)
        if trial.rounds < TRIAL:
            return
        self._trial = _Trial()
        if alone is None:
            self.rounds = COMPARISON
        elif trial.slower(alone):
            self.rounds, self._next = self._next, min(2 * self._next, LONGEST_BENCHED)
        else:
            self._next = BENCHED
