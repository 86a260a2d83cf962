"""When to step and with how many drafts: an average-reward semi-Markov decision process in the drafter's lead.

The lead is how many drafts the drafter is ahead of the committed text as seen at the verifier, fractions counting the
part of the next one that is done; after a rejection it is negative: minus the round trip and the draft in flight, in
draft intervals. Between rejections it is the whole state, so the best policy solves a one-dimensional problem:

    at lead l:  wait       -> the next whole lead, a draft's arrival
                step, k<=l -> l + t(k)/interval - (k+1)          with probability r1 r2 ... r(k+1), after t(k) seconds
                           -> the lead after a rejection         otherwise

A step with k drafts commits 1 + r1 + r1 r2 + ... tokens. The policy with the highest rate of tokens per second is found
by value iteration for a given rate inside Dinkelbach's iteration on the rate (Dinkelbach 1967; Puterman, "Markov
Decision Processes", 11.4). Lock-step, pipelined, eager and no drafting at all are members of this one family, so by its
own estimates the policy is never slower than the target alone.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from specmesh.core.draft_length import MAX_LEAD

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUARTERS = 4  # grid points per draft interval
LARGEST_LEAD = MAX_LEAD + 2  # that has a state of its own
MAX_BEHIND = 256  # longest restart in draft intervals; a longer one is as good as for ever
EXACT = 3e-4  # error of values (tokens) and rates (relative): acceptance is known to a few percent at best
BEGIN_GAIN, KEEP_GAIN = (
    1.03,
    1.01,
)  # times the target's own rate that drafting must promise to begin, and to go on
RATES_MOVED, TIMES_MOVED = (
    0.04,
    0.08,
)  # difference of acceptance rates, and relatively of times, for a new policy


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """What a policy is solved from, in seconds; steps include what lies between two."""

    steps: tuple[float, ...]  # with k = 0, 1, ... drafts
    rates: tuple[
        float, ...
    ]  # probability that draft 1, 2, ... is accepted after those before; one more than drafts
    interval: float  # from one draft to the next, > 0
    restart: float  # from sending a recovered token until the first draft on it is here
    alone: float  # a step where nothing is drafted


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do at each lead, from `lowest` on in quarters of a draft."""

    inputs: PolicyInputs
    lowest: float
    drafts: tuple[int, ...]  # the best number to step with at once
    then: tuple[int, ...]  # the index of the lead to wait for, its own where a step now is best
    wanted: int  # most drafts it steps with, 0 where drafting is not worth it
    rate: float  # tokens per second it promises
    values: Floats  # the solution it was read from, by which the next one starts

    def index(self, lead: float) -> int:
        at = int((lead - self.lowest) * QUARTERS + 1e-6)
        return min(max(at, 0), len(self.drafts) - 1)

    def lead_at(self, index: int) -> float:
        return self.lowest + index / QUARTERS


def solve(inputs: PolicyInputs, start: Policy | None = None) -> Policy:
    """The best policy, in milliseconds; faster from a `start` solved from similar inputs."""
    grid = _Grid(inputs)
    rate = start.rate if start is not None else 1.0 / inputs.steps[0]
    values = grid.resampled(start)
    for _ in range(12):
        values, choice, tokens, seconds = grid.iterate(rate, values)
        better = tokens / seconds
        if abs(better - rate) < EXACT * rate:
            break
        rate = better
    drafts, then = choice  # pyright: ignore[reportPossiblyUnboundVariable]  # the loop ran
    least = KEEP_GAIN if start is None or start.wanted else BEGIN_GAIN
    wanted = grid.most_used(drafts, then) if rate > least / inputs.alone else 0
    return Policy(
        inputs, grid.lowest, tuple(drafts.tolist()), tuple(then.tolist()), wanted, rate, values
    )


def moved(old: PolicyInputs, new: PolicyInputs) -> bool:
    """Whether estimates have moved so far that the policy may change."""
    before, after = (
        (*old.steps, old.interval, old.restart, old.alone),
        (*new.steps, new.interval, new.restart, new.alone),
    )
    return any(abs(a - b) > RATES_MOVED for a, b in zip(old.rates, new.rates, strict=True)) or any(
        abs(a - b) > TIMES_MOVED * a for a, b in zip(before, after, strict=True)
    )


class _Grid:
    def __init__(self, inputs: PolicyInputs) -> None:
        steps = np.asarray(inputs.steps)
        dearer = (
            steps > np.minimum.accumulate(steps[::-1])[::-1]
        )  # than a wider step: never worth taking
        self._seconds = np.where(dearer & (np.arange(len(steps)) > 0), np.inf, steps)
        behind = min(inputs.restart / inputs.interval - 1.0, MAX_BEHIND)
        self.lowest = -float(ceil(max(behind, 1.0) * QUARTERS)) / QUARTERS
        size = round((LARGEST_LEAD - self.lowest) * QUARTERS) + 1
        self._interval, self._tick = inputs.interval, inputs.interval / QUARTERS
        self._leads = self.lowest + np.arange(size) / QUARTERS
        self._start = 0 if behind >= 1.0 else round((-behind - self.lowest) * QUARTERS)
        most = len(steps) - 1
        alive = np.cumprod(np.asarray(inputs.rates[: most + 1]))
        self._tokens = 1.0 + np.concatenate(([0.0], np.cumsum(alive[:-1])))
        self._stands = alive
        after = self._leads[:, None] + self._seconds / inputs.interval - (np.arange(most + 1) + 1)
        place = np.clip((after - self.lowest) * QUARTERS, 0, size - 1)
        self._below = np.minimum(place.astype(np.int64), size - 2)
        self._part = place - self._below
        self._allowed = np.arange(most + 1) <= np.maximum(np.floor(self._leads + 1e-9), 0)[:, None]
        self._ticks = np.arange(size, dtype=np.float64) * self._tick
        self._arrivals = (self._leads >= 1.0) & (
            np.arange(size) % QUARTERS == round(-self.lowest * QUARTERS) % QUARTERS
        )

    def resampled(self, start: Policy | None) -> Floats:
        """Values to begin with, of another policy at the same leads."""
        if start is None:
            return np.zeros(len(self._leads))
        old = start.lowest + np.arange(len(start.values)) / QUARTERS
        return np.interp(self._leads, old, start.values)

    def iterate(
        self, rate: float, values: Floats
    ) -> tuple[Floats, tuple[Ints, Ints], float, float]:
        """Solve for one rate; the values, (drafts, where to step) per lead, and tokens and seconds per epoch."""
        gain = np.where(np.isfinite(self._seconds), self._tokens - rate * self._seconds, -np.inf)
        for _ in range(400):
            future = self._at(values)
            scores = np.where(self._allowed, gain + self._stands * future, -np.inf)
            best = scores.max(axis=1)
            new = self._best_later(best - rate * self._ticks) + rate * self._ticks
            change = float(np.abs(new - values).max())
            values = new
            if change < EXACT:
                break
        drafts = scores.argmax(axis=1)  # pyright: ignore[reportPossiblyUnboundVariable]  # the loop ran
        later = self._where_best_later(best - rate * self._ticks)  # pyright: ignore[reportPossiblyUnboundVariable]  # likewise
        tokens, seconds = self._evaluate(drafts, later)
        return values, (drafts, later), tokens, seconds

    def _at(self, values: Floats) -> Floats:
        below = values[self._below]
        found: Floats = below + self._part * (values[self._below + 1] - below)
        return found

    def _best_later(self, scores: Floats) -> Floats:
        arrivals = np.where(self._arrivals, scores, -np.inf)
        found: Floats = np.maximum(scores, np.maximum.accumulate(arrivals[::-1])[::-1])
        return found

    def _where_best_later(self, scores: Floats) -> Ints:
        best, size = self._best_later(scores), len(scores)
        reached = self._arrivals & (scores >= best - 1e-12)
        later = np.minimum.accumulate(np.where(reached, np.arange(size), size - 1)[::-1])[::-1]
        found: Ints = np.where(scores >= best - 1e-12, np.arange(size), later)
        return found

    def _evaluate(self, drafts: Ints, later: Ints) -> tuple[float, float]:
        """Tokens and seconds of one epoch under a policy, from one rejection to the next."""
        rows, k = later, drafts[later]
        waited = self._ticks[later] - self._ticks
        below, part, stands = self._below[rows, k], self._part[rows, k], self._stands[k]
        once = np.stack((self._tokens[k], waited + self._seconds[k]))
        total = once
        for _ in range(400):
            new = once + stands * (total[:, below] + part * (total[:, below + 1] - total[:, below]))
            done = bool((np.abs(new - total).max(axis=1) < EXACT * new.max(axis=1)).all())
            total = new
            if done:
                break
        return float(total[0, self._start]), float(total[1, self._start])

    def most_used(self, drafts: Ints, later: Ints) -> int:
        """Most drafts of a step on the way from one rejection to the next. Leads between two of the grid add up."""
        most, lead, size = 0, float(self._leads[self._start]), len(self._leads)
        for _ in range(size):
            at = min(int((lead - self.lowest) * QUARTERS + 1e-6), size - 1)
            step = int(later[at])
            taken = int(drafts[step])
            most = max(most, taken)
            lead += (
                float(self._leads[step] - self._leads[at])
                + self._seconds[taken] / self._interval
                - (taken + 1)
            )
            lead = max(lead, self.lowest)
        return most
