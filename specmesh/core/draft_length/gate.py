"""Whether drafting pays, measured: tokens per second with drafts against tokens per second without, per batch size.

What drafting costs this host, such as frames to read or cores that a drafter shares, shows there only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

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
FIRST_BUDGET, MOST_BUDGET = 8.0, 64.0  # tokens that drafting may lose at first, and of what each session has gained
# tokens for each session that it may lose beyond its budget, and has to earn before it goes on; no step counts for
# more: a machine that stood still says nothing of drafts
DEBT = 8.0
EARNED, LEAST_EARNED = 1 / 100, 1 / 800  # tokens for each that comes without drafts; halved each time that it fails
STEPS_WITHOUT = 16  # that tell how fast it is without drafts
ROUNDS_WITH, MOST_ROUNDS_WITH = 512, 8192  # until that is measured anew; doubled each time that drafts pay
CLEAR_GAIN = 1.15  # times the rate without drafts, from which on there is no need to withhold them

SHORTEST = 1e-9  # seconds; a step too fast to measure took some all the same


@dataclass(slots=True)
class _Rate:
    steps: int = 0
    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, sessions: int, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.rounds += sessions
        self.tokens += tokens
        self.seconds += seconds

    @property
    def per_token(self) -> float:
        return max(self.seconds, SHORTEST) / max(self.tokens, 1)

    def gain(self, per_token: float) -> float:
        """Times as fast as with so many seconds a token."""
        return per_token / self.per_token


class SpeculationGate:
    """`drafts` is what to do with batches of one size; `verdict` whether drafting pays, None before it was measured.

    Its budget is what drafting may lose, in tokens that would have come without it in the same time: a few at first,
    then what it has gained, and a small share of what comes without it. While that is spent it is suspended: its cost
    is bounded, also where it pays for some texts only."""

    def __init__(self) -> None:
        self.drafts = True
        self.verdict: bool | None = None
        self._budget, self._earned = FIRST_BUDGET, EARNED
        self._rest = SETTLE_STEPS  # steps that are not measured
        self._alone = inf  # seconds a token without drafts: the least estimate, until it was measured
        self._without, self._interval = _Rate(), ROUNDS_WITH
        self._with = _Rate()  # since that was measured

    def stepped(self, sessions: int, tokens: int, seconds: float, *, asked: bool, had: bool, alone: float) -> None:
        """Learn from a step that committed so many tokens, and ended `seconds` after the one before.

        asked: drafts were asked for; had: it had some. alone: expected seconds a token without, infinite if unknown."""
        if self._rest:
            self._rest -= 1
        elif self.drafts and asked:
            if not self._without.steps and alone > 0:
                self._alone = min(self._alone, alone)
            seconds = min(seconds, DEBT * sessions * self._alone)
            self._with.add(sessions, tokens, seconds)
            self._budget = min(self._budget + tokens - seconds / self._alone, MOST_BUDGET * sessions)
            if self._with.rounds >= self._interval and self._with.gain(self._alone) >= CLEAR_GAIN:
                self._decide(pays=True)
            elif self._budget < -DEBT * sessions or self._with.rounds >= self._interval or self._alone == inf:
                self.drafts, self._rest, self._without = False, SETTLE_STEPS, _Rate()
        elif not self.drafts and not had:  # else some of before were in hand still
            self._without.add(sessions, tokens, seconds)
            self._budget += self._earned * tokens
            if self._without.steps == STEPS_WITHOUT:
                self._alone = self._without.per_token
                self._decide(pays=self._with.gain(self._alone) >= LEAST_GAIN)
            if self._without.steps >= STEPS_WITHOUT and self._budget >= 0:
                self.drafts, self._rest = True, SETTLE_STEPS

    def _decide(self, *, pays: bool) -> None:
        if pays:
            self.verdict, self._budget, self._earned = True, max(self._budget, 0.0), EARNED
            self._interval = min(2 * self._interval, MOST_ROUNDS_WITH)
        elif self._budget < 0:
            self._earned = max(self._earned / 2, LEAST_EARNED) if self.verdict is False else EARNED
            self.verdict, self._interval = False, ROUNDS_WITH
        self._with = _Rate()
