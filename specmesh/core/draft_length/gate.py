"""Whether drafting pays, measured: tokens per second with drafts against tokens per second without, per batch size.

What drafting costs this host, such as frames to read or cores that a drafter shares, shows there only. What was faster
goes on until the next comparison, for longer each time that the verdict stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

LEAST_GAIN = 1.01  # times the rate without drafts that drafts must promise


@dataclass(frozen=True, slots=True)
class DraftBid:
    """What a session could bring to a step, besides its own row."""

    stands: tuple[float, ...]  # probabilities that its first 1, 2, ... drafts all stand, falling
    chosen: bool = False  # how many is decided, so they all come if there is room


def allocate_drafts(bids: Sequence[DraftBid], room: int, seconds: Callable[[int], float], first: int = 0) -> list[int]:
    """Return how many of its drafts each bidder brings, at most `room` together. Of equally likely drafts those of
    bidder `first` and the ones after it come first. seconds: of a step of so many rows, the pause included."""
    counts = [0] * len(bids)
    for bidder, bid in enumerate(bids):
        if bid.chosen:
            counts[bidder] = min(len(bid.stands), room)
            room -= counts[bidder]
    tokens = len(bids) + sum(sum(bid.stands[:count]) for bid, count in zip(bids, counts, strict=True))
    size = max(len(bids), 1)
    offered = sorted(
        (-p, (bidder - first) % size, bidder) for bidder, bid in enumerate(bids) if not bid.chosen for p in bid.stands
    )
    del offered[room:]
    rows = len(bids) + sum(counts)
    best, taken = LEAST_GAIN * tokens / max(seconds(rows), 1e-9), 0
    for number, (minus, *_) in enumerate(offered, 1):
        tokens -= minus
        rate = tokens / max(seconds(rows + number), 1e-9)
        if rate > best:
            best, taken = rate, number
    for *_, bidder in offered[:taken]:
        counts[bidder] += 1
    return counts


SETTLE_STEPS = 4  # after a change, that count for nothing: drafts are in hand still, or on their way
COLD_STEPS = 32  # for which the first drafts are waited for: drafters may have prompts to read
# rounds of each kind, one for each session of a step: how many drafts stand is luck, the rest is not
ROUNDS_WITH, ROUNDS_WITHOUT, STEPS_WITHOUT = 320, 96, 16
GLANCE = 8  # steps with drafts between two looks whether they are slower for certain
CERTAIN = 2.0  # standard errors by which they are; a few more rounds of luck are assumed than were seen
CLEAR_GAIN = 1.15  # times the rate to expect without drafts, from which on there is no need to withhold them
PAUSE_STEPS, LONGEST_PAUSE = 256, 8192  # until the next comparison; doubled while it says the same, up to so many


@dataclass(slots=True)
class _Rate:
    steps: int = 0
    rounds: int = 0
    tokens: int = 0
    squares: int = 0
    seconds: float = 0.0

    def add(self, rounds: int, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.rounds += rounds
        self.tokens += tokens
        self.squares += tokens**2
        self.seconds += seconds

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens if self.tokens else inf

    def slower(self, per_token: float) -> bool:
        """Whether steps of so many seconds a token would certainly have been faster, whatever luck these had."""
        spread = sqrt(max(self.squares - self.tokens**2 / max(self.steps, 1), 0.0) + GLANCE)
        return self.steps > 0 and (self.tokens + CERTAIN * spread) * per_token < self.seconds


class SpeculationGate:
    """`drafts` is what to do with batches of one size; `verdict` whether drafting pays, None before it was measured."""

    def __init__(self) -> None:
        self.drafts = True
        self.verdict: bool | None = None
        self._expected = inf  # seconds a token without drafts: the least estimate since they were withheld last
        self._rest = SETTLE_STEPS  # steps that are not measured
        self._cold = 0  # that asked for drafts, before any had some
        self._with, self._without = _Rate(), _Rate()
        self._pause = PAUSE_STEPS

    def stepped(self, sessions: int, tokens: int, seconds: float, *, asked: bool, had: bool, alone: float) -> None:
        """Learn from a step that committed so many tokens, and ended `seconds` after the one before.

        asked: drafts were asked for; had: it had some. alone: expected seconds a token without, infinite if unknown."""
        if self._rest:
            self._rest -= 1
        elif self.drafts and asked:
            self._cold = COLD_STEPS if had else self._cold + 1
            if self._cold >= COLD_STEPS:
                self._with.add(sessions, tokens, seconds)
                if not self._without.steps:
                    self._expected = min(self._expected, alone)
                if self._with.steps % GLANCE == 0:
                    self._compare()
        elif not self.drafts and not had:  # else some of before were in hand still
            self._without.add(sessions, tokens, seconds)
            if self._without.steps >= STEPS_WITHOUT or self._without.rounds >= ROUNDS_WITHOUT:
                self._expected = self._without.per_token
                self._compare()

    def _compare(self) -> None:
        """Decide where enough was measured, else measure the other kind of steps if it is time for that."""
        enough = self._with.rounds >= ROUNDS_WITH
        if enough or self._with.slower(self._expected):
            if self._without.steps:
                self._decide(pays=self._with.per_token * LEAST_GAIN <= self._expected)
            elif enough and self._with.per_token * CLEAR_GAIN <= self._expected < inf:
                self._decide(pays=True)
            else:
                self.drafts, self._rest = False, SETTLE_STEPS
        elif not self.drafts:
            self.drafts, self._rest = True, SETTLE_STEPS

    def _decide(self, *, pays: bool) -> None:
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if pays == self.verdict else PAUSE_STEPS
        self.drafts = self.verdict = pays
        self._rest, self._cold = SETTLE_STEPS + self._pause, 0
        self._with, self._without = _Rate(), _Rate()
