"""Whether drafting has paid, by the clock."""

from dataclasses import dataclass
from math import sqrt

ROUNDS = 3  # without drafts although they were asked for
# seconds of silence, and restarts; seconds before the first drafts, when it reads the text
PATIENCE, FIRST_PATIENCE, RESTARTS = 0.25, 5.0, 8


class SilenceTimer:
    def __init__(self) -> None:
        self._drafted = False
        self._since: float | None = None  # the first round in which nothing came
        self._rounds = 0

    def broken(self) -> None:
        self._drafted, self._since, self._rounds = True, None, 0

    def round(self, *, asked: bool, now: float) -> None:
        """Note that a round ended without drafts, and whether any are asked for the next."""
        if not asked:
            self._since, self._rounds = None, 0
        elif self._since is None:
            self._since = now
        else:
            self._rounds += 1

    def lasts(self, restart: float, now: float) -> bool:
        """Whether it is silent for much longer than the `restart` seconds that it takes to begin anew."""
        patience = PATIENCE + RESTARTS * restart if self._drafted else FIRST_PATIENCE
        return self._since is not None and self._rounds >= ROUNDS and now - self._since > patience


TRIAL = 32  # rounds with drafts whose rate is held against the target's alone
BENCHED, LONGEST_BENCHED = 32, 4096  # rounds without a drafter that failed a trial; doubled each time, up to so many
COMPARISON = 8  # rounds without drafts that show the pause between steps


@dataclass(slots=True)
class _Trial:
    """Rounds with drafts: their seconds, number, tokens and the sum of the squares of these; `since` is when the newest
    counted one ended, None after one that does not count."""

    since: float | None = None
    seconds: float = 0.0
    rounds: int = 0
    tokens: int = 0
    squares: int = 0

    def add(self, tokens: int, now: float) -> None:
        if self.since is not None:
            self.seconds += now - self.since
            self.rounds += 1
            self.tokens += tokens
            self.squares += tokens * tokens
        self.since = now

    def slower(self, alone: float) -> bool:
        """Whether the target alone, at `alone` seconds a token, would have been faster by more than one standard
        deviation."""
        spread = sqrt(max(self.squares - self.tokens * self.tokens / self.rounds, 0.0))
        return (self.tokens + spread) * alone < self.seconds


class DrafterBackoff:
    """Keeps a drafter that failed a trial from being asked for so many more `rounds`."""

    def __init__(self) -> None:
        self.rounds = 0
        self._next = BENCHED  # how many after the next trial that it fails
        self._trial = _Trial()

    @property
    def believed(self) -> bool:
        """Whether its unverified guesses count: it has failed no trial since it last passed one."""
        return self._next == BENCHED

    def another(self, *, proven: bool) -> None:
        self._trial, self.rounds = _Trial(), 0 if proven else min(self.rounds, BENCHED)
        if proven:
            self._next = 2 * BENCHED  # what it showed may have been copied: it is not believed before it has passed one

    def sits_out(self) -> bool:
        """Let a round pass; whether it was one without it."""
        sat_out = self.rounds > 0
        self.rounds -= sat_out
        return sat_out

    def interrupted(self) -> None:
        """Note a round that does not count: the trial goes on with the next that do."""
        self._trial.since = None

    def tried(self, tokens: int, now: float, alone: float | None) -> None:
        """Count a round with drafts; enough of them end the trial. alone: seconds a token of the target alone, None
        while unknown: some steps must show first what lies between two of them."""
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
