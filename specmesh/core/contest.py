"""Whether drafting pays where sessions share steps, by the clock.

The cost table knows what rows cost. What it costs a machine to take in the drafts of many sessions, and how much that
takes from a step which runs meanwhile, shows in tokens per second only. So these are measured with drafts and without,
in turn, and what was faster goes on until the next comparison.
"""

from dataclasses import dataclass

SETTLE = 4
"""Steps after a change that count for nothing: drafts are in hand still, or on their way."""

WITH, WITHOUT = 320, 96
"""Rounds of each kind that are compared, one for each session of a step: how many drafts stand is luck, and what a step
without them takes is not."""

SPAN, LONGEST = 256, 8192
"""Steps until the next comparison; twice as many each time that it says the same again, up to so many."""


@dataclass(slots=True)
class _Rate:
    """Tokens and seconds of so many rounds."""

    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, sessions: int, tokens: int, seconds: float) -> None:
        self.rounds += sessions
        self.tokens += tokens
        self.seconds += seconds

    def below(self, other: "_Rate") -> bool:
        return self.tokens * other.seconds < other.tokens * self.seconds


class Contest:
    """Drafting against the target alone, in steps that about as many sessions share; `drafts` is what is to be done."""

    def __init__(self) -> None:
        self.drafts = True
        self._rest = SETTLE  # steps that are not measured
        self._with, self._without = _Rate(), _Rate()
        self._verdict: bool | None = None
        self._span = SPAN

    @property
    def decided(self) -> bool:
        """Whether both were measured."""
        return self._verdict is not None

    def stepped(self, sessions: int, tokens: int, seconds: float, *, drafting: bool) -> None:
        """A step of so many sessions has ended and has committed so many tokens, so long after the one before it.
        drafting: any of them was asking for drafts."""
        if self._rest:
            self._rest -= 1
            return
        if self.drafts and not drafting:
            return  # no session expects anything of its drafter
        rate, other = (self._with, self._without) if self.drafts else (self._without, self._with)
        rate.add(sessions, tokens, seconds)
        if rate.rounds < (WITH if self.drafts else WITHOUT):
            return
        if other.rounds:
            self._decide(not self._with.below(self._without))
        else:
            self.drafts, self._rest = not self.drafts, SETTLE

    def _decide(self, pays: bool) -> None:
        self._span = min(2 * self._span, LONGEST) if pays == self._verdict else SPAN
        self.drafts = self._verdict = pays
        self._rest = SETTLE + self._span
        self._with, self._without = _Rate(), _Rate()


class Contests:
    """One for each size of crowd: 2 or 3 sessions, 4 to 7, and so on."""

    def __init__(self) -> None:
        self._of: dict[int, Contest] = {}

    def stepped(self, sessions: int, tokens: int, seconds: float, *, drafting: bool) -> None:
        """A step that so many sessions shared; see `Contest.stepped`."""
        self._of.setdefault(sessions.bit_length(), Contest()).stepped(sessions, tokens, seconds, drafting=drafting)

    def drafts(self, sessions: int) -> bool:
        """Whether so many sessions are to ask for drafts, if they expect something of them."""
        contest = self._of.get(sessions.bit_length())
        return contest is None or contest.drafts

    def grow_to_draft(self, sessions: int) -> bool:
        """The same of so many that may become more: where nothing is known of them, by the next larger crowd."""
        known = [size for size, contest in self._of.items() if size >= sessions.bit_length() and contest.decided]
        return self.drafts(sessions) and (not known or self._of[min(known)].drafts)
