"""Whether drafting pays where sessions share steps, by the clock.

What it costs a machine to take in the drafts of many sessions shows in tokens per second only. So these are measured
with drafts and without, in turn, and what was faster goes on until the next comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
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


SETTLE = 4  # steps after a change that count for nothing: drafts are in hand still, or on their way
COLD = 32  # steps for which the first drafts are waited for: drafters may have prompts to read
LEFT_OUT = 8  # steps that left drafts out before any took some: no need to compare more
# rounds of each kind, one for each session of a step: how many drafts stand is luck, the rest is not
WITH, WITHOUT = 320, 96
SPAN, LONGEST = 256, 8192  # steps until the next comparison; doubled while it says the same, up to so many
# steps until a crowd lasts; each step of another size takes so many back: drafters have texts to read first
LASTING, FADING = 16, 2


@dataclass(frozen=True, slots=True)
class SharedStep:
    """A step that several `sessions` shared. It committed `tokens`, and ended `seconds` after the one before."""

    sessions: int
    tokens: int
    seconds: float
    drafting: bool  # any of them asked for drafts
    drafts: bool  # it had some
    left_out: bool  # some in hand did not come along


@dataclass(slots=True)
class _Rate:
    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, step: SharedStep) -> None:
        self.rounds += step.sessions
        self.tokens += step.tokens
        self.seconds += step.seconds

    def pays(self, other: "_Rate") -> bool:
        return self.tokens * other.seconds >= LEAST_GAIN * other.tokens * self.seconds


class SpeculationGate:
    """Drafting against the target alone, in steps that about as many sessions share: `drafts` is what to do; `verdict`
    whether drafting pays, None before that was measured."""

    def __init__(self) -> None:
        self.drafts = True
        self.verdict: bool | None = None
        self._rest = SETTLE  # steps that are not measured
        self._had = False  # steps that ask for drafts have had some
        self._cold, self._left_out = 0, 0  # before that: those without any, and those that had some in hand
        self._with, self._without = _Rate(), _Rate()
        self._span = SPAN

    def stepped(self, step: SharedStep) -> None:
        if self._rest:
            self._rest -= 1
            return
        if self.drafts and not step.drafting:
            return  # no session expects anything of its drafter
        if self.drafts and not self._had:
            self._had = step.drafts
            self._left_out += step.left_out
            if self._left_out >= LEFT_OUT:
                self._decide(pays=False)
                return
            if not self._had and self._cold < COLD:
                self._cold += 1
                return
        rate, other = (self._with, self._without) if self.drafts else (self._without, self._with)
        rate.add(step)
        if rate.rounds < (WITH if self.drafts else WITHOUT):
            return
        if other.rounds:
            self._decide(pays=self._with.pays(self._without))
        else:
            self.drafts, self._rest = not self.drafts, SETTLE

    def _decide(self, *, pays: bool) -> None:
        self._span = min(2 * self._span, LONGEST) if pays == self.verdict else SPAN
        self.drafts = self.verdict = pays
        self._rest = SETTLE + self._span
        self._with, self._without = _Rate(), _Rate()
        self._had, self._cold, self._left_out = False, 0, 0

    def gone(self) -> None:
        """Note that the crowd has gone: the next has texts to read first."""
        if self.drafts:
            self._rest = max(self._rest, SETTLE)
            self._had, self._cold, self._left_out = False, 0, 0


class SpeculationGates:
    """One for each size of crowd: 2 or 3 sessions, 4 to 7, and so on."""

    def __init__(self) -> None:
        self._of: dict[int, SpeculationGate] = {}
        self._seen: dict[int, int] = {}  # by size, steps of late
        self._lasting: set[int] = set()

    def shared(self, sessions: int) -> None:
        """Note that so many sessions shared a step, measured or not."""
        size = sessions.bit_length()
        self._seen[size] = min(self._seen.get(size, 0) + 1, LASTING)
        if self._seen[size] == LASTING:
            self._lasting.add(size)
        for other in [other for other in self._seen if other != size]:
            self._fade(other, FADING)

    def rest(self) -> None:
        for size in list(self._seen):
            self._fade(size, LASTING)

    def _fade(self, size: int, steps: int) -> None:
        self._seen[size] -= steps
        if self._seen[size] <= 0:
            del self._seen[size]
            self._lasting.discard(size)
            if size in self._of:
                self._of[size].gone()

    def stepped(self, step: SharedStep) -> None:
        gate = self._of.setdefault(step.sessions.bit_length(), SpeculationGate())
        if not (gate.drafts and self._passes(step.sessions)):
            gate.stepped(step)

    def drafts(self, sessions: int) -> bool:
        """Whether so many sessions may ask for drafts: it pays, as far as is known, or is being tried."""
        gate = self._of.get(sessions.bit_length())
        return (gate is None or gate.drafts) and not self._passes(sessions)

    def refuse(self, sessions: int) -> bool:
        gate = self._of.get(sessions.bit_length())
        return (gate is not None and gate.verdict is False and not gate.drafts) or self._passes(sessions)

    def _passes(self, sessions: int) -> bool:
        """Whether drafting, found not to pay at this size or the nearest larger one measured, is not tried again yet
        because the batch has not held this size for long."""
        size = sessions.bit_length()
        known = [other for other, gate in self._of.items() if other >= size and gate.verdict is not None]
        doubted = bool(known) and not self._of[min(known)].verdict
        return sessions > 1 and doubted and size not in self._lasting
