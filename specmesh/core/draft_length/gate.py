"""Whether drafting pays, measured: tokens per second with drafts against tokens per second without, per batch size.

What drafting costs this host, such as frames to read or cores that a drafter shares, shows there only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

LEAST_GAIN = 1.01  # times the rate without drafts that drafts must promise


@dataclass(frozen=True, slots=True)
class DraftBid:
    """What a session could bring to a step, besides its own row."""

    acceptance: tuple[
        float, ...
    ]  # probabilities that its first 1, 2, ... drafts are all accepted, falling
    chosen: bool = False  # how many is decided, so they all come if there is room


def allocate_drafts(
    bids: Sequence[DraftBid], room: int, seconds: Callable[[int], float]
) -> list[int]:
    """Return how many of its drafts each bidder brings, at most `room` together. seconds: of a step of so many rows,
    the pause included."""
    counts = [0] * len(bids)
    for bidder, bid in enumerate(bids):
        if bid.chosen:
            counts[bidder] = min(len(bid.acceptance), room)
            room -= counts[bidder]
    tokens = len(bids) + sum(
        sum(bid.acceptance[:count]) for bid, count in zip(bids, counts, strict=True)
    )
    offered = sorted(
        (-p, bidder) for bidder, bid in enumerate(bids) if not bid.chosen for p in bid.acceptance
    )
    del offered[room:]
    rows = len(bids) + sum(counts)
    best, taken = LEAST_GAIN * tokens / max(seconds(rows), 1e-9), 0
    for number, (minus, _) in enumerate(offered, 1):
        tokens -= minus
        rate = tokens / max(seconds(rows + number), 1e-9)
        if rate > best:
            best, taken = rate, number
    for _, bidder in offered[:taken]:
        counts[bidder] += 1
    return counts


# In brackets: what other values change in the mean of bench/gate.py, where fewer steps stand still than on a real host,
# and no drafts are in hand.
# after a change, that count for no rate: drafts are in hand still, or on their way (2: 0.1 %).
# A drafter that was stopped may go on for so many seconds, on the cores of the verifier's steps
SETTLE_STEPS, SETTLE_SECONDS = 4, 0.05
# steps without drafts, in whose time drafting may lose as much before it is suspended, and has to earn before it goes
# on; with n sessions the square root of n less, since what they bring varies less. Not less: 16 sessions at once have
# 0.92 instead of 0.79 of the speed without drafts in their first 64 steps (16: -3 %, 4: 1.4 %)
DEBT = 8.0
# of the steps that it has gained, that it may lose besides (32: -0.6 %, 1000: 0.6 %, and no bound). As much counts of
# one step: a drafter of the same host stops it for as long as it reads the text
MOST_GAINED = 64.0
EARNED = 1 / 200  # of each step without drafts, to be lost (1/400: -3 %)
# steps, and seconds, that tell how fast it is without drafts (8: 0.6 %). Without the seconds a target of 0.6 ms a step
# takes every hiccup of its host for the truth
STEPS_WITHOUT, SECONDS_WITHOUT = 16, 0.05
STEPS_WITH = 512  # until that is measured anew (128: -1.7 %, but 0.96 instead of 0.93 at worst)
# times the rate without drafts, once that was measured, from which on nothing is withheld (never: -0.3 %). By an
# estimate alone two of five starts beside a drafter of the same host had 0.74 and 0.84 of the speed without drafts
CLEAR_GAIN = 1.15

SHORTEST = 1e-9  # seconds; a step too fast to measure took some all the same


@dataclass(slots=True)
class _Rate:
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    enough: bool = False

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.enough = self.steps >= STEPS_WITHOUT and self.seconds >= SECONDS_WITHOUT

    @property
    def per_second(self) -> float:
        return self.tokens / max(self.seconds, SHORTEST)


class SpeculationGate:
    """`open`: batches of one size draft; `verdict`: whether drafting pays, None before it was measured.
    Its budget is what drafting may lose, in steps that could have run without it in the same time: what it has gained,
    and a small share of those that run without it. While that is spent it is suspended: its cost is bounded, also where
    it pays for some texts only."""

    def __init__(self) -> None:
        self.open = True
        self.verdict: bool | None = None
        self._budget = 0.0
        self._rest, self._rest_seconds = SETTLE_STEPS, 0.0  # that count for no rate
        self._stalled = (
            False  # the newest step took so long that it counts for none either, the next one will
        )
        self._alone = (
            0.0  # tokens per second without drafts: the highest estimate, until it was measured
        )
        self._without, self._with = (
            _Rate(),
            _Rate(),
        )  # newest steps without drafts, and those with drafts since

    @property
    def refuses(self) -> bool:
        """Whether drafting was found not to pay, and may not be tried again yet."""
        return self.verdict is False and not self.open

    def stepped(
        self,
        sessions: int,
        tokens: int,
        seconds: float,
        *,
        asked: bool,
        had: bool,
        alone: float,
        shared: bool = False,
    ) -> None:
        """Learn from a step that committed so many tokens, and ended `seconds` after the one before. asked: drafts were
        asked for; had: it had some. alone: expected tokens per second without, 0 if unknown. shared: with a drafter
        on this host, which slows steps down: the rate without drafts is then measured before anything is drafted."""
        settled = self._rest <= 0 and self._rest_seconds <= 0.0
        self._rest, self._rest_seconds = self._rest - 1, self._rest_seconds - seconds
        if not self._without.steps:
            self._alone = max(self._alone, alone)
        gained = (tokens - seconds * self._alone) / sessions
        stalled = self._stalled = gained <= -DEBT and not self._stalled  # that says nothing
        if not self.open:
            if settled and not (had or stalled):  # had: some of before were in hand still
                self._withheld(sessions, tokens, seconds)
        elif asked and (not self._alone or (shared and not self._without.enough)):
            self._withhold()
        elif asked:
            self._budget = min(self._budget + max(gained, -MOST_GAINED), MOST_GAINED)
            if settled and not stalled:
                self._with.add(tokens, seconds)
            if settled:
                self._review(sessions, max(self._alone, alone))

    def _review(self, sessions: int, alone: float) -> None:
        """After a step with drafts, see whether to go on."""
        due = self._with.steps >= STEPS_WITH
        if due and self.verdict is not None and self._with.per_second >= CLEAR_GAIN * alone:
            self._decide(sessions, pays=True)
        elif due or self._budget <= -DEBT / sqrt(sessions):
            self._withhold()

    def _withhold(self) -> None:
        self.open, self._rest, self._rest_seconds = False, SETTLE_STEPS, SETTLE_SECONDS
        self._without = _Rate()

    def _withheld(self, sessions: int, tokens: int, seconds: float) -> None:
        """After a step without, see what drafting has brought, and whether it may go on."""
        without, known = self._without, self._without.enough
        without.add(tokens, seconds)
        self._budget += EARNED
        if not without.enough:
            return
        self._alone = without.per_second
        measured = self._with.steps >= STEPS_WITHOUT
        if not known and (measured or self._budget < 0):
            self._decide(
                sessions, pays=measured and self._with.per_second >= LEAST_GAIN * self._alone
            )
        if self._budget >= 0:
            self.open, self._rest, self._rest_seconds = True, SETTLE_STEPS, 0.0

    def _decide(self, sessions: int, *, pays: bool) -> None:
        """Reckon anew what drafting has gained: the rate without it may have been another."""
        gained = (self._with.tokens - self._with.seconds * self._alone) / sessions
        if pays:
            self._budget = min(max(self._budget, gained), MOST_GAINED)
        else:
            self._budget = min(self._budget, -DEBT / sqrt(sessions))
        self.verdict, self._with = pays, _Rate()
