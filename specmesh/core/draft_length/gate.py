"""The speculation gate: whether drafting pays, measured.

Compare tokens per second with drafts against tokens per second without, in the same daemon. The
costs of drafting that no estimate has, such as frames to read or cores that a drafter of this host
takes, show only there.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from specmesh.core.draft_length.bids import LEAST_GAIN, SHORTEST

# In brackets: the change of the mean of bench/gate.py by other values. There fewer steps stand
# still than on a real host, and no drafts are in hand.

SETTLE_STEPS = 4
"""Steps after a change that count for no rate: drafts are still in hand or on their way (2: 0.5 %).
"""
SETTLE_SECONDS = 0.05
"""Seconds for which a drafter that was stopped may go on, on the cores of the verifier's steps."""
DEBT = 4.0
"""Steps without drafts. The gate shuts when drafting has lost the time of so many, and opens when
it has earned it back (8: -1.2 %; 2: 1.1 %, but steps of a real host differ by more than these).

With n sessions it is divided by the square root of n, since the sum of their tokens varies less: 16
sessions at once have 0.92 instead of 0.79 of the speed without drafts in their first 64 steps,
measured with 8.
"""
MOST_GAINED = 64.0
"""Most gained steps that drafting may lose again (32: 0, 1000: -0.2 %, and no bound). A single step
does not lose more either: a drafter of this host holds it up for as long as it reads the text.
"""
EARNED = 1 / 120
"""Part of each step without drafts that drafting may lose again (1/200: -0.9 %; 1/50: 1.8 %, but at
worst 0.921 instead of 0.927).
"""
STEPS_WITHOUT = 16
"""Steps that show the rate without drafts (8: 0.4 %)."""
SECONDS_WITHOUT = 0.05
"""Seconds that they must take. Without this bound a target of 0.6 ms a step takes each hiccup of
its host for the truth.
"""
STEPS_WITH = 512
"""Steps with drafts until the rate without is measured again (128: -0.5 %, with 0.952 instead of
0.927 at worst; 192: 2 % less in bench/head_and_drafter.py).
"""
CLEAR_GAIN = 1.15
"""Times the measured rate without drafts. Drafting that is so fast goes on without another
measurement (never: -0.4 %). An estimate of that rate does not do: by one, two of five starts beside
a drafter of this host had 0.74 and 0.84 of the speed without drafts.
"""


@dataclass(slots=True)
class _Rate:
    """Tokens and seconds of consecutive steps."""

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


class StepOutcome(NamedTuple):
    """One step, as a gate compares it.

    sessions: how many shared it. tokens: committed by it.
    seconds: from the end of the step before to its own end.
    drafting: drafts were asked for. has_drafts: it verified some.
    rate_without: expected tokens per second without drafts; 0 while unknown.
    shared_host: a drafter of this host slows steps down. The rate without drafts is then measured
        before anything is drafted.
    """

    sessions: int
    tokens: int
    seconds: float
    drafting: bool
    has_drafts: bool
    rate_without: float = 0.0
    shared_host: bool = False


class SpeculationGate:
    """Opens and shuts for the drafts of one source at one number of sessions.

    - The budget counts steps without drafts. It grows by the steps that drafts save, and by EARNED
      of each step without; it falls by the steps that drafting loses.
    - The gate shuts when the budget is overdrawn by DEBT, and opens when nothing is owed. So the
      cost of drafting is bounded, even if it pays for some texts only.
    - While it is shut, STEPS_WITHOUT steps show the rate without drafts, and the verdict is made.
      If other sources draft in each step, it opens without that, as soon as nothing is owed.
    - After STEPS_WITH steps with drafts it shuts to measure that rate again, unless drafts gain
      clearly.
    - Beside a drafter of the same host that rate is measured before anything is drafted. Elsewhere
      an estimate stands in for it. Losses by an estimate that was too high are forgiven once the
      rate is measured.
    - Steps just after a change, and one that took far too long, count for no rate. The first one
      with drafts that took far too long does not count in the budget either.

    open: drafts may be asked for.
    verdict: drafting pays; None before it was measured.
    """

    def __init__(self) -> None:
        self.open = True
        self.verdict: bool | None = None
        self._budget = 0.0
        self._rest = SETTLE_STEPS  # steps that count for no rate
        self._rest_seconds = 0.0
        self._stalled = False  # the newest step took too long to count; the next one counts
        self._cold = True  # no step with drafts has taken too long yet
        self._rate_without = 0.0  # tokens a second without drafts: highest estimate, then measured
        self._without = _Rate()  # newest steps without drafts
        self._drafted_in_a_row = 0  # newest steps with drafts of other sources, while it is shut
        self._with = _Rate()  # steps with drafts since
        self._estimated = _Rate()  # steps that count in the budget by an estimate of that rate

    @property
    def refuses(self) -> bool:
        """Return True if drafting was found not to pay and may not be tried again yet."""
        return self.verdict is False and not self.open

    def stepped(self, step: StepOutcome) -> None:
        """Learn from a step."""
        settled = self._rest <= 0 and self._rest_seconds <= 0.0
        self._rest -= 1
        self._rest_seconds -= step.seconds
        # Until a step without drafts was timed an estimate stands in for the rate. The highest one
        # counts: a bar that is too high only ends drafting too soon, and then the rate is measured.
        if not self._without.steps:
            self._rate_without = max(self._rate_without, step.rate_without)
        # In steps without drafts, the unit of the budget: such a step has a token for each session.
        gained = (step.tokens - step.seconds * self._rate_without) / step.sessions
        # Drafts cannot cost so much at once. It was the host, unless the next step is as slow.
        stalled = gained <= -DEBT and not self._stalled
        self._stalled = stalled
        if not self.open:
            if settled and not stalled:
                self._stepped_shut(step)
        elif step.drafting:
            # Steps beside a drafter of this host are slower, with or without drafts. An estimate
            # that learned from them would let drafting pay for its own damage.
            baseline_missing = step.shared_host and not self._without.enough
            if not self._rate_without or baseline_missing:
                self._shut()
            else:
                self._stepped_open(step, gained, settled=settled, stalled=stalled)

    def _stepped_open(
        self, step: StepOutcome, gained: float, *, settled: bool, stalled: bool
    ) -> None:
        """Learn from a step for which drafts were asked for, and see whether to go on."""
        # A step just after a change shows no rate, but its time counts in the budget. The first
        # stalled step with drafts does not count: a GPU loads kernels with it, once. A stalled step
        # without drafts counts: a drafter of this host may be reading, as it does for each text.
        if stalled and self._cold and step.has_drafts:
            self._cold = False
        else:
            self._budget = min(self._budget + max(gained, -MOST_GAINED), MOST_GAINED)
            if not self._without.enough:
                self._estimated.add(step.tokens, step.seconds)
        if not settled:
            return
        if not stalled:
            self._with.add(step.tokens, step.seconds)
        # The measured rate is of the text as it was; the estimate follows its length. The higher
        # one is the stricter bar.
        rate_without = max(self._rate_without, step.rate_without)
        due = self._with.steps >= STEPS_WITH
        clear = self.verdict is not None and self._with.per_second >= CLEAR_GAIN * rate_without
        # To measure again would cost more than it could show.
        if due and clear:
            self._decide(step.sessions, pays=True)
        elif due or self._budget <= -DEBT / sqrt(step.sessions):
            self._shut()

    def _shut(self) -> None:
        """Ask for no drafts from now on, and measure the rate without."""
        self.open = False
        self._rest = SETTLE_STEPS
        self._rest_seconds = SETTLE_SECONDS
        self._without = _Rate()
        self._drafted_in_a_row = 0

    def _stepped_shut(self, step: StepOutcome) -> None:
        """Learn from a step without drafts: compare with those before, and see whether to open.

        A step with drafts of other sources shows no rate, but earns the next try as well. After
        STEPS_WITHOUT of them in a row no measurement is waited for: a source must not be out for as
        long as another one drafts.
        """
        self._budget += EARNED
        if step.has_drafts:
            self._drafted_in_a_row += 1
            waits_in_vain = self._drafted_in_a_row >= STEPS_WITHOUT
            if waits_in_vain and self._budget >= 0 and self.verdict is not None:
                self._with = _Rate()
                self._reopen()
            return
        self._drafted_in_a_row = 0
        # The verdict is made once, at the step that completes the measurement. Later steps only
        # keep the rate up to date and earn the next try.
        known = self._without.enough
        self._without.add(step.tokens, step.seconds)
        if not self._without.enough:
            return
        self._rate_without = self._without.per_second
        if self._estimated.steps:
            self._raise_budget_to(self._gained(self._estimated, step.sessions))
            self._estimated = _Rate()
        measured = self._with.steps >= STEPS_WITHOUT
        # Drafting that overdrew its budget in fewer steps than a rate needs has lost without one.
        if not known and (measured or self._budget < 0):
            pays = measured and self._with.per_second >= LEAST_GAIN * self._rate_without
            self._decide(step.sessions, pays=pays)
        # Refused drafting owes DEBT. At EARNED a step it is tried again after some 500 steps: the
        # text, or the load of the drafter, may be another by then.
        if self._budget >= 0:
            self._reopen()

    def _reopen(self) -> None:
        """Ask for drafts from now on."""
        self.open = True
        self._rest = SETTLE_STEPS
        self._rest_seconds = 0.0

    def _decide(self, sessions: int, *, pays: bool) -> None:
        """Note whether drafting pays, and correct the budget by the newest rate without drafts."""
        if pays:
            self._raise_budget_to(self._gained(self._with, sessions))
        else:
            self._budget = min(self._budget, -DEBT / sqrt(sessions))
        self.verdict = pays
        self._with = _Rate()

    def _gained(self, rate: _Rate, sessions: int) -> float:
        """Return what these steps gained, by the measured rate, in steps without drafts."""
        return (rate.tokens - rate.seconds * self._rate_without) / sessions

    def _raise_budget_to(self, gained: float) -> None:
        """Raise the budget to what drafting gained by the measured rate."""
        self._budget = min(max(self._budget, gained), MOST_GAINED)
