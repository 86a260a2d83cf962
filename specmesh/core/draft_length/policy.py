"""When to step and with how many drafts: an average-reward semi-Markov decision process.

Its state is the drafter's lead: how many drafts the drafter is ahead of the committed text as seen
at the verifier, fractions counting the part of the next one that is done. After a rejection it is
negative: minus the round trip and the draft in flight, in draft intervals. Between rejections it is
the whole state, so the best policy solves a one-dimensional problem:

    at lead l:  wait       -> the next whole lead, a draft's arrival
                step, k<=l -> l + t(k)/interval - (k+1)   with probability r1 r2 ... r(k+1),
                                                          after t(k) seconds
                           -> the lead after a rejection  otherwise

A step with k drafts commits 1 + r1 + r1 r2 + ... tokens. The policy with the highest rate of tokens
per second is found by value iteration for a given rate inside Dinkelbach's iteration on the rate
(Dinkelbach 1967; Puterman, "Markov Decision Processes", 11.4). Lock-step, pipelined, eager and no
drafting at all are members of this one family, so by its own estimates the policy is never slower
than the target alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specmesh.core.draft_length import MAX_LEAD

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

QUARTERS = 4  # grid points per draft interval
LARGEST_LEAD = MAX_LEAD + 2  # that has a state of its own
MAX_BEHIND = 256  # longest restart in draft intervals; a longer one is as good as for ever
EXACT = 3e-4
"""Error of values, in tokens, and of rates, relatively. Acceptance is known to a few percent at
best.
"""
BEGIN_GAIN = 1.03  # times the target's own rate that drafting must promise to begin
KEEP_GAIN = 1.01  # the same to go on
RATES_MOVED = 0.04  # difference of an acceptance rate that is worth a new policy
TIMES_MOVED = 0.08  # relative difference of a time that is worth a new policy
MOST_RATES = 12  # iterations of Dinkelbach's
MOST_SWEEPS = 400  # iterations of values for one rate


class PolicyInputs(NamedTuple):
    """The estimates that a policy is solved from, in seconds.

    steps: a step with 0, 1, ... drafts and the pause before it.
    rates: probability that draft 1, 2, ... is accepted after those before it, one for each of
        `steps`.
    interval: from one draft to the next; above 0.
    restart: from sending a recovered token until the first draft on it is here.
    undrafted_s: a step while nothing is drafted.
    """

    steps: tuple[float, ...]
    rates: tuple[float, ...]
    interval: float
    restart: float
    undrafted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The best action at each lead, from `lowest` on in quarters of a draft.

    drafts: the best number of drafts to step with at once.
    then: index of the lead to wait for; the lead's own if a step now is best.
    wanted: most drafts of its steps; 0 if drafting is not worth it.
    rate: tokens per second that it promises.
    values: the solution that it was read from. The next solution starts from it.
    """

    inputs: PolicyInputs
    lowest: float
    drafts: tuple[int, ...]
    then: tuple[int, ...]
    wanted: int
    rate: float
    values: Floats

    def index_of(self, lead: float) -> int:
        """Return the index of a lead, or of the nearest one that has a state."""
        at = int((lead - self.lowest) * QUARTERS + 1e-6)
        return min(max(at, 0), len(self.drafts) - 1)

    def gain_of(self, lead: float, acceptance: Sequence[float], seconds: float) -> float:
        """Return the tokens that a step with drafts of another source gains at a lead.

        Compared with the best action of this policy there. Whether the drafter agrees with what
        the step commits is taken to be independent of whose drafts were accepted.

        acceptance: probabilities that the first 1, 2, ... of them are all accepted; at most as
            many as the policy's steps have.
        seconds: of the step and of the drafts.
        """
        worth = -self.rate * seconds
        ahead = lead + seconds / self.inputs.interval
        agreed = 1.0
        all_before = 1.0
        for accepted, rate in enumerate(self.inputs.rates[: len(acceptance) + 1]):
            agreed *= rate
            one_more = acceptance[accepted] if accepted < len(acceptance) else 0.0
            tokens = accepted + 1
            outcome = tokens + agreed * self._worth(ahead - tokens)
            worth += (all_before - one_more) * outcome
            all_before = one_more
        return worth - self._worth(lead)

    def _worth(self, lead: float) -> float:
        """Return the tokens that a lead is worth until the next rejection, less its time."""
        last = len(self.values) - 1
        place = min(max((lead - self.lowest) * QUARTERS, 0.0), float(last))
        below = min(int(place), last - 1)
        low, high = self.values[below : below + 2].tolist()
        return float(low + (place - below) * (high - low))

    def lead_at(self, index: int) -> float:
        """Return the lead of an index."""
        return self.lowest + index / QUARTERS


def solve(inputs: PolicyInputs, start: Policy | None = None) -> Policy:
    """Return the best policy. It takes milliseconds, fewer from a `start` with similar inputs."""
    grid = _Grid(inputs)
    # The rate and the values depend on each other. From a policy of similar inputs one or two turns
    # are enough.
    rate = 1.0 / inputs.steps[0] if start is None else start.rate
    values = grid.resampled(start)
    iterations = 0
    while True:
        solution = grid.solve_for(rate, values)
        if abs(solution.rate - rate) < EXACT * rate:
            break
        rate = solution.rate
        values = solution.values
        iterations += 1
        if iterations == MOST_RATES:
            break
    drafting = start is None or start.wanted > 0
    # Two bars: with a single one, noise in the estimates would switch drafting on and off.
    least_gain = KEEP_GAIN if drafting else BEGIN_GAIN
    wanted = 0
    if rate > least_gain / inputs.undrafted_s:
        wanted = grid.most_drafts(solution)
    return Policy(
        inputs=inputs,
        lowest=grid.lowest,
        drafts=tuple(solution.drafts.tolist()),
        then=tuple(solution.then.tolist()),
        wanted=wanted,
        rate=rate,
        values=solution.values,
    )


def moved(old: PolicyInputs, new: PolicyInputs) -> bool:
    """Return True if estimates have moved so far that the policy may change."""
    for before, after in zip(old.rates, new.rates, strict=True):
        if abs(before - after) > RATES_MOVED:
            return True
    for before, after in zip(_times(old), _times(new), strict=True):
        if abs(before - after) > TIMES_MOVED * before:
            return True
    return False


def _times(inputs: PolicyInputs) -> tuple[float, ...]:
    """Return all times of the inputs."""
    return (*inputs.steps, inputs.interval, inputs.restart, inputs.undrafted_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """The best policy if time costs a given rate of tokens per second.

    values: (leads,) tokens that each lead is worth until the next rejection, less the cost of time.
    drafts: (leads,) best number of drafts of a step. then: (leads,) index of the lead to step at.
    rate: tokens per second that it reaches.
    """

    values: Floats
    drafts: Ints
    then: Ints
    rate: float


class _Grid:
    """The leads from `lowest` on in quarters of a draft, and the outcome of each step from each.

    By number of drafts, shape (drafts,):

    - _step_seconds: of a step; infinite for a step that is never worth taking.
    - _step_tokens: that it commits, expected.
    - _unbroken: probability that nothing is rejected, so that the lead goes on from here.

    By lead, shape (leads,):

    - _leads: the leads themselves.
    - _elapsed: seconds until the drafter has come there from the lowest lead.
    - _arrivals: a draft arrives there, which ends a wait.

    By both, shape (leads, drafts), for a step without a rejection:

    - _possible: so many drafts are in hand.
    - _next, _fraction: the lead after it lies this fraction of a quarter above the lead `_next`.

    _restart: index of the lead after a rejection. _interval: seconds from one draft to the next.
    """

    def __init__(self, inputs: PolicyInputs) -> None:
        steps = np.asarray(inputs.steps)
        drafts = np.arange(len(steps))
        cheapest_wider = np.minimum.accumulate(steps[::-1])[::-1]
        never = (steps > cheapest_wider) & (drafts > 0)
        self._interval = inputs.interval
        self._step_seconds = np.where(never, np.inf, steps)
        self._unbroken = np.cumprod(np.asarray(inputs.rates[: len(steps)]))
        accepted = np.concatenate(([0.0], np.cumsum(self._unbroken[:-1])))
        self._step_tokens = 1.0 + accepted
        behind = min(inputs.restart / inputs.interval - 1.0, MAX_BEHIND)
        self.lowest = -ceil(max(behind, 1.0) * QUARTERS) / QUARTERS
        self._restart = 0
        if behind < 1.0:
            self._restart = round((-behind - self.lowest) * QUARTERS)
        size = round((LARGEST_LEAD - self.lowest) * QUARTERS) + 1
        indices = np.arange(size)
        self._leads = self.lowest + indices / QUARTERS
        self._elapsed = indices.astype(np.float64) * (inputs.interval / QUARTERS)
        first_whole = round(-self.lowest * QUARTERS) % QUARTERS
        self._arrivals = (self._leads >= 1.0) & (indices % QUARTERS == first_whole)
        in_hand = np.maximum(np.floor(self._leads + 1e-9), 0)
        self._possible = drafts <= in_hand[:, None]
        after = self._leads[:, None] + self._step_seconds / inputs.interval - (drafts + 1)
        place = np.clip((after - self.lowest) * QUARTERS, 0, size - 1)
        self._next = np.minimum(place.astype(np.int64), size - 2)
        self._fraction = place - self._next

    def resampled(self, start: Policy | None) -> Floats:
        """Return values to begin with: those of another policy at these leads."""
        if start is None:
            return np.zeros(len(self._leads))
        leads = start.lowest + np.arange(len(start.values)) / QUARTERS
        return np.interp(self._leads, leads, start.values)

    def solve_for(self, rate: float, values: Floats) -> _Solution:
        """Return the solution for one rate by value iteration, which begins with `values`."""
        tokens = self._step_tokens - rate * self._step_seconds
        gain = np.where(np.isfinite(self._step_seconds), tokens, -np.inf)
        waiting = rate * self._elapsed
        sweeps = 0
        while True:
            outcomes = gain + self._unbroken * self._after(values)
            scores = np.where(self._possible, outcomes, -np.inf)
            at_once = scores.max(axis=1) - waiting
            improved = self._best_later(at_once) + waiting
            change = float(np.abs(improved - values).max())
            values = improved
            sweeps += 1
            if change < EXACT or sweeps == MOST_SWEEPS:
                break
        drafts = scores.argmax(axis=1)
        then = self._where_best_later(at_once)
        return _Solution(values=values, drafts=drafts, then=then, rate=self._rate_of(drafts, then))

    def _after(self, values: Floats) -> Floats:
        """Return the value of the lead after each step, (leads, drafts)."""
        below = values[self._next]
        above = values[self._next + 1]
        found: Floats = below + self._fraction * (above - below)
        return found

    def _best_later(self, scores: Floats) -> Floats:
        """Return the best score at each lead: its own, or that of a later arrival."""
        arrivals = np.where(self._arrivals, scores, -np.inf)
        best_arrival = np.maximum.accumulate(arrivals[::-1])[::-1]
        found: Floats = np.maximum(scores, best_arrival)
        return found

    def _where_best_later(self, scores: Floats) -> Ints:
        """Return the index of the first lead with the best score, from each lead on."""
        indices = np.arange(len(scores))
        is_best: Flags = scores >= self._best_later(scores) - 1e-12
        best_arrivals = np.where(self._arrivals & is_best, indices, len(scores) - 1)
        next_best = np.minimum.accumulate(best_arrivals[::-1])[::-1]
        found: Ints = np.where(is_best, indices, next_best)
        return found

    def _rate_of(self, drafts: Ints, then: Ints) -> float:
        """Return the tokens per second of a policy, from one rejection to the next."""
        taken = drafts[then]
        waited = self._elapsed[then] - self._elapsed
        below = self._next[then, taken]
        fraction = self._fraction[then, taken]
        unbroken = self._unbroken[taken]
        # Two rows, tokens and seconds: of one step, and of all until the rejection.
        once = np.stack((self._step_tokens[taken], waited + self._step_seconds[taken]))
        total = once
        for _ in range(MOST_SWEEPS):
            later = total[:, below]
            after = later + fraction * (total[:, below + 1] - later)
            improved = once + unbroken * after
            changes = np.abs(improved - total).max(axis=1)
            total = improved
            if (changes < EXACT * improved.max(axis=1)).all():
                break
        tokens, seconds = total[:, self._restart].tolist()
        return float(tokens) / float(seconds)

    def most_drafts(self, solution: _Solution) -> int:
        """Return the most drafts of a step on the way from one rejection to the next.

        The way is followed lead by lead, between those of the grid too.
        """
        most = 0
        lead = float(self._leads[self._restart])
        size = len(self._leads)
        for _ in range(size):
            at = min(int((lead - self.lowest) * QUARTERS + 1e-6), size - 1)
            step = int(solution.then[at])
            taken = int(solution.drafts[step])
            most = max(most, taken)
            waited = float(self._leads[step] - self._leads[at])
            lead += waited + self._step_seconds[taken] / self._interval - (taken + 1)
            lead = max(lead, self.lowest)
        return most
