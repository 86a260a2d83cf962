"""Whether drafting pays where sessions share steps, by the clock.

The cost table knows what rows cost. What it costs a machine to take in the drafts of many sessions, and how much that
takes from a step which runs meanwhile, shows in tokens per second only. So these are measured with drafts and without,
in turn, and what was faster goes on until the next comparison.
"""

from dataclasses import dataclass

from specmesh.core.goodput import LEAST_GAIN

SETTLE = 4
"""Steps after a change that count for nothing: drafts are in hand still, or on their way."""

COLD = 32
"""Steps for which drafts are waited for where drafting begins: drafters may have prompts to read first."""

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

    def pays(self, other: "_Rate") -> bool:
        return self.tokens * other.seconds >= LEAST_GAIN * other.tokens * self.seconds


class Contest:
    """Drafting against the target alone, in steps that about as many sessions share; `drafts` is what is to be done."""

    def __init__(self) -> None:
        self.drafts = True
        self._rest = SETTLE  # steps that are not measured
        self._cold = 0  # of those with drafts, how many had none before the first that had
        self._with, self._without = _Rate(), _Rate()
        self._verdict: bool | None = None
        self._span = SPAN

    @property
    def decided(self) -> bool:
        """Whether both were measured."""
        return self._verdict is not None

    @property
    def refuses(self) -> bool:
        """Whether drafting was found not to pay, and is not being tried again."""
        return self._verdict is False and not self.drafts

    def stepped(
        self, sessions: int, tokens: int, seconds: float, *, drafting: bool, drafts: bool | None = None
    ) -> None:
        """A step of so many sessions has ended and has committed so many tokens, so long after the one before it.
        drafting: any of them was asking for drafts; drafts: it had some, None as far as is known."""
        if self._rest:
            self._rest -= 1
            return
        if self.drafts and not drafting:
            return  # no session expects anything of its drafter
        if self.drafts and drafts is False and not self._with.rounds and self._cold < COLD:
            self._cold += 1
            return
        rate, other = (self._with, self._without) if self.drafts else (self._without, self._with)
        rate.add(sessions, tokens, seconds)
        if rate.rounds < (WITH if self.drafts else WITHOUT):
            return
        if other.rounds:
            self._decide(self._with.pays(self._without))
        else:
            self.drafts, self._rest = not self.drafts, SETTLE

    def _decide(self, pays: bool) -> None:
        self._span = min(2 * self._span, LONGEST) if pays == self._verdict else SPAN
        self.drafts = self._verdict = pays
        self._rest = SETTLE + self._span
        self._with, self._without = _Rate(), _Rate()
        self._cold = 0


class Contests:
    """One for each size of crowd: 2 or 3 sessions, 4 to 7, and so on."""

    def __init__(self) -> None:
        self._of: dict[int, Contest] = {}

    def stepped(
        self, sessions: int, tokens: int, seconds: float, *, drafting: bool, drafts: bool | None = None
    ) -> None:
        """A step that so many sessions shared; see `Contest.stepped`."""
        contest = self._of.setdefault(sessions.bit_length(), Contest())
        contest.stepped(sessions, tokens, seconds, drafting=drafting, drafts=drafts)

    def drafts(self, sessions: int) -> bool:
        """Whether so many sessions are to ask for drafts, if they expect something of them."""
        contest = self._of.get(sessions.bit_length())
        return contest is None or contest.drafts

    def refuse(self, sessions: int) -> bool:
        """Whether so many were found to do better without; see `Contest.refuses`."""
        contest = self._of.get(sessions.bit_length())
        return contest is not None and contest.refuses

    def grow_to_draft(self, sessions: int) -> bool:
        """`drafts` of so many that may become more: where nothing is known of them, by the next larger crowd known."""
        known = [size for size, contest in self._of.items() if size >= sessions.bit_length() and contest.decided]
        return self.drafts(sessions) and (not known or self._of[min(known)].drafts)
