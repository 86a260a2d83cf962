"""Whether drafting pays, measured: tokens per second with drafts against tokens per second without, per batch size.

What drafting costs this host, such as frames to read or cores that a drafter shares, shows there only. What was faster
goes on until the next comparison, for longer each time that the verdict stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, sqrt
from operator import mul

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


def drafts_per_session(rates: Sequence[float], sessions: int, most: int, seconds: Callable[[int], float]) -> int:
    """Return how many drafts each session should bring if all had these conditional acceptance `rates`."""
    tokens: list[float] = [1.0, *accumulate(rates[:most], mul)]

    def rate(drafts: int) -> float:
        return sum(tokens[: drafts + 1]) / max(seconds(sessions * (drafts + 1)), 1e-9)

    best = max(range(len(tokens)), key=rate)
    return best if rate(best) > LEAST_GAIN * rate(0) else 0


SETTLE_STEPS = 4  # after a change, that count for nothing: drafts are in hand still, or on their way
COLD_STEPS = 32  # for which the first drafts are waited for: drafters may have prompts to read
LEFT_OUT = 8  # steps that left drafts out before any took some: no need to compare more
# rounds of each kind, one for each session of a step: how many drafts stand is luck, the rest is not
ROUNDS_WITH, ROUNDS_WITHOUT, STEPS_WITHOUT = 320, 96, 16
GLANCE = 8  # steps with drafts between two looks whether they are slower for certain
CERTAIN = 2.0  # standard errors by which they are; a few more rounds of luck are assumed than were seen
CLEAR_GAIN = 1.15  # times the rate to expect without drafts, from which on there is no need to withhold them
PAUSE_STEPS, LONGEST_PAUSE = 256, 8192  # until the next comparison; doubled while it says the same, up to so many


@dataclass(frozen=True, slots=True)
class SharedStep:
    """A step of so many `sessions`. It committed `tokens`, and ended `seconds` after the one before."""

    sessions: int
    tokens: int
    seconds: float
    drafting: bool  # any of them asked for drafts
    drafts: bool  # it had some
    left_out: bool  # some in hand did not come along


@dataclass(slots=True)
class _Rate:
    steps: int = 0
    rounds: int = 0
    tokens: int = 0
    squares: int = 0
    seconds: float = 0.0

    def add(self, step: SharedStep) -> None:
        self.steps += 1
        self.rounds += step.sessions
        self.tokens += step.tokens
        self.squares += step.tokens**2
        self.seconds += step.seconds

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens if self.tokens else inf

    def slower(self, per_token: float) -> bool:
        """Whether steps of so many seconds a token would certainly have been faster, whatever luck these had."""
        spread = sqrt(max(self.squares - self.tokens**2 / self.steps, 0.0) + GLANCE)
        return (self.tokens + CERTAIN * spread) * per_token < self.seconds


class SpeculationGate:
    """`drafts` is what to do with batches of one size; `verdict` whether drafting pays, None before it was measured."""

    def __init__(self) -> None:
        self.drafts = True
        self.verdict: bool | None = None
        self._expected = inf  # seconds a token without drafts: the least estimate since they were withheld last
        self._rest = SETTLE_STEPS  # steps that are not measured
        self._had = False  # steps that ask for drafts have had some
        self._cold, self._left_out = 0, 0  # before that: those without any, and those that had some in hand
        self._with, self._without = _Rate(), _Rate()
        self._pause = PAUSE_STEPS

    def stepped(self, step: SharedStep, alone: float = inf) -> None:
        """Learn from a step. alone: expected seconds a token without drafts, where that is known."""
        if self._rest:
            self._rest -= 1
        elif self.drafts:
            if step.drafting and self._has_begun(step):  # else no session expects anything of its drafter
                self._with.add(step)
                if not self._without.steps:
                    self._expected = min(self._expected, alone)
                self._look()
        elif not step.drafts:  # else some of before were in hand still
            self._without.add(step)
            if self._without.steps >= STEPS_WITHOUT or self._without.rounds >= ROUNDS_WITHOUT:
                self._expected = self._without.per_token
                if self._with.rounds >= ROUNDS_WITH or (self._with.steps and self._with.slower(self._expected)):
                    self._decide(pays=self._with.per_token * LEAST_GAIN <= self._expected)
                else:
                    self.drafts, self._rest = True, SETTLE_STEPS

    def _has_begun(self, step: SharedStep) -> bool:
        if self._had:
            return True
        self._had = step.drafts
        self._left_out += step.left_out
        if self._left_out >= LEFT_OUT:
            self._decide(pays=False)
            return False
        self._cold += 1
        return self._had or self._cold > COLD_STEPS

    def _look(self) -> None:
        """Decide if that is possible already; withhold drafts where it takes a measurement of steps without."""
        measured, enough = self._without.steps > 0, self._with.rounds >= ROUNDS_WITH
        slower = self._with.steps % GLANCE == 0 and self._with.slower(self._expected)
        if measured and (enough or slower):
            self._decide(pays=self._with.per_token * LEAST_GAIN <= self._expected)
        elif enough and self._with.per_token * CLEAR_GAIN <= self._expected < inf:
            self._decide(pays=True)
        elif enough or slower:
            self.drafts, self._rest = False, SETTLE_STEPS

    def _decide(self, *, pays: bool) -> None:
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if pays == self.verdict else PAUSE_STEPS
        self.drafts = self.verdict = pays
        self._rest = SETTLE_STEPS + self._pause
        self._with, self._without = _Rate(), _Rate()
        self._had, self._cold, self._left_out = False, 0, 0
