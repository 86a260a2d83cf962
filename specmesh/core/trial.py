"""Whether drafting has paid, by the clock."""

from dataclasses import dataclass
from math import sqrt


@dataclass(slots=True)
class Trial:
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
