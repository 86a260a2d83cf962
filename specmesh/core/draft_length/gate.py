"""Whether drafting pays where sessions share steps, by the clock.

The cost table knows what rows cost. What it costs a machine to take in the drafts of many sessions, and how much that
takes from a step which runs meanwhile, shows in tokens per second only. So these are measured with drafts and without,
in turn, and what was faster goes on until the next comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from operator import mul

LEAST_GAIN = 1.01  # times the rate without drafts that drafts must promise


@dataclass(frozen=True, slots=True)
class DraftBid:
    """What a session could bring to a step, besides its own row.

    stands: the probability that its first 1, 2, ... drafts are all committed, one for each draft in hand, falling.
    chosen: how many is decided already, so they all come if there is room.
    """

    stands: tuple[float, ...]
    chosen: bool = False


def allocate_drafts(bids: Sequence[DraftBid], room: int, seconds: Callable[[int], float], first: int = 0) -> list[int]:
    """How many of its drafts each bidder brings, at most `room` together. Of drafts that are as likely to stand, those
    of bidder number `first` and of the ones after it come before others'.

    seconds: what a step of so many rows is expected to take, everything between two steps included.
    """
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
    """How many drafts each of so many sessions should bring if all did as this one, whose drafts stand at `rates` given
    that those before them did: what its drafter is worth asking for."""
    stands = tuple(accumulate(rates[:most], mul))
    tokens, best, drafts = 1.0, LEAST_GAIN / max(seconds(sessions), 1e-9), 0
    for count, stand in enumerate(stands, 1):
        tokens += stand
        rate = tokens / max(seconds(sessions * (count + 1)), 1e-9)
        if rate > best:
            best, drafts = rate, count
    return drafts


SETTLE = 4  # steps after a change that count for nothing: drafts are in hand still, or on their way
COLD = 32  # steps for which drafts are waited for where drafting begins: drafters may have prompts to read first
LEFT_OUT = 8  # steps that had drafts in hand and took none, before any took some: more need not be compared
WITH, WITHOUT = 320, 96
"""Rounds of each kind that are compared, one for each session of a step: how many drafts stand is luck, and what a step
without them takes is not."""

SPAN, LONGEST = 256, 8192
"""Steps until the next comparison; twice as many each time that it says the same again, up to so many."""

LASTING, FADING = 16, 2
"""Steps after which a crowd lasts, of which each step of another size takes so many back; it does until all are gone.
Drafters have texts to read before they draft, so that what has been found not to pay is not tried in a crowd that comes
or goes; and now and then one of a crowd ends, and another begins, that lasts."""


@dataclass(frozen=True, slots=True)
class SharedStep:
    """A step that `sessions`, more than one, shared. It committed `tokens`, and ended `seconds` after the one before.

    drafting: any of them was asking for drafts; drafts: it had some, None as far as is known; left_out: some were in
    hand, and none came along.
    """

    sessions: int
    tokens: int
    seconds: float
    _: KW_ONLY
    drafting: bool
    drafts: bool | None = None
    left_out: bool = False


@dataclass(slots=True)
class _Rate:
    """Tokens and seconds of so many rounds."""

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
    """Drafting against the target alone, in steps that about as many sessions share.

    `drafts` is what is to be done; `verdict` whether it was found to pay, None before that was found.
    """

    def __init__(self) -> None:
        self.drafts = True
        self.verdict: bool | None = None
        self._rest = SETTLE  # steps that are not measured
        self._had = False  # steps that ask for drafts have had some
        self._cold, self._left_out = 0, 0  # before that: those without any, and those that had some in hand
        self._with, self._without = _Rate(), _Rate()
        self._span = SPAN

    @property
    def refuses(self) -> bool:
        """Whether drafting was found not to pay, and is not being tried again."""
        return self.verdict is False and not self.drafts

    def stepped(self, step: SharedStep) -> None:
        """A shared step has ended, of as many sessions as this is about."""
        if self._rest:
            self._rest -= 1
            return
        if self.drafts and not step.drafting:
            return  # no session expects anything of its drafter
        if self.drafts and not self._had:
            self._had = step.drafts is not False
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
        self._begin()

    def _begin(self) -> None:
        self._had, self._cold, self._left_out = False, 0, 0

    def gone(self) -> None:
        """The crowd has gone: the next has texts to be read first, again."""
        if self.drafts:
            self._rest = max(self._rest, SETTLE)
            self._begin()


class SpeculationGates:
    """One for each size of crowd: 2 or 3 sessions, 4 to 7, and so on."""

    def __init__(self) -> None:
        self._of: dict[int, SpeculationGate] = {}
        self._seen: dict[int, int] = {}  # by size, steps of late
        self._lasting: set[int] = set()

    def shared(self, sessions: int) -> None:
        """So many sessions have shared a step, measured or not; or one had it alone."""
        size = sessions.bit_length()
        self._seen[size] = min(self._seen.get(size, 0) + 1, LASTING)
        if self._seen[size] == LASTING:
            self._lasting.add(size)
        for other in [other for other in self._seen if other != size]:
            self._fade(other, FADING)

    def rest(self) -> None:
        """No session is left: the next crowd is another."""
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
        contest = self._of.setdefault(step.sessions.bit_length(), SpeculationGate())
        if not (contest.drafts and self._passes(step.sessions)):
            contest.stepped(step)

    def drafts(self, sessions: int) -> bool:
        """Whether so many sessions are to ask for drafts, if they expect something of them: where that pays, as far as
        is known, or is being tried."""
        contest = self._of.get(sessions.bit_length())
        return (contest is None or contest.drafts) and not self._passes(sessions)

    def refuse(self, sessions: int) -> bool:
        contest = self._of.get(sessions.bit_length())
        return (contest is not None and contest.refuses) or self._passes(sessions)

    def _passes(self, sessions: int) -> bool:
        """Whether drafting, which was found not to pay for so many, or for more where nothing is known of so many, is
        not to be tried, because they have not been so many for long."""
        size = sessions.bit_length()
        known = [other for other, contest in self._of.items() if other >= size and contest.verdict is not None]
        doubted = bool(known) and not self._of[min(known)].verdict
        return sessions > 1 and doubted and size not in self._lasting
