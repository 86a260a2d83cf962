"""Measure the gate's constants: `SpeculationGate` in virtual time, with these and with others.

    python bench/gate.py [--set NAME=VALUE,...] [--steps N] [--json]

A step without drafts takes one second. Drafting brings texts of two kinds in turn so many tokens a
step. Its steps cost more, the first of them and one in a thousand stand still for twenty seconds,
and the estimate of the rate without drafts may be too low. The result is tokens per second over
those without drafting: below 1 drafting loses, and 1 is not reached if it never pays.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any

from command_line import Options

from specmesh.core.draft_length import gate as constants
from specmesh.core.draft_length.gate import SpeculationGate, StepOutcome

SEEDS = 5
MOST_SHOWN = 12  # cases that differ most
TOKENS = ((1.0, 1.0), (2.0, 2.0), (2.2, 2.2), (1.8, 1.2), (3.0, 1.0), (4.0, 1.0))
NOISE = (0.95, 1.0, 1.0, 1.05)
STANDSTILL = 20.0  # seconds of a step that the host holds up, or that loads a GPU's kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Drafting that pays, that does not, or that does both in turn.

    tokens: of a step with drafts, in texts of each kind. length: mean of texts, in steps.
    cost: seconds of a step with drafts.
    estimate: expected tokens per second and session without drafts; 0 for unknown.
    """

    sessions: int
    tokens: tuple[float, float]
    length: int
    cost: float
    estimate: float


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for sessions in (1, 4, 16):
        estimates = [0.0]
        if sessions == 1:
            estimates = [1.0, 0.7]
        for tokens in TOKENS:
            lengths = [100]
            if tokens[0] != tokens[1]:
                lengths += [500, 2500]
            for length, cost, estimate in product(lengths, (1.3, 1.9), estimates):
                yield Case(
                    sessions=sessions, tokens=tokens, length=length, cost=cost, estimate=estimate
                )


def speed(case: Case, steps: int, seed: int) -> float:
    """Return tokens per second and session. Luck is the same whatever the gate decides."""
    gate = SpeculationGate()
    luck = random.Random(seed)
    now = 0.0
    total = 0
    left = float(case.length)
    kind = seed % 2
    is_cold = True
    for _ in range(steps):
        left -= 1
        if left <= 0:
            kind = 1 - kind
            left = luck.expovariate(1 / case.length)
        chance = (case.tokens[kind] - 1) / 4
        accepted = 0
        for _ in range(4 * case.sessions):
            accepted += int(luck.random() < chance)
        factor = luck.choice(NOISE)
        if luck.random() < 0.001:
            factor = STANDSTILL
        drafting = gate.open
        if drafting and is_cold:
            factor = STANDSTILL
            is_cold = False
        tokens = case.sessions
        seconds = factor
        if drafting:
            tokens += accepted
            seconds *= case.cost
        outcome = StepOutcome(
            sessions=case.sessions,
            tokens=tokens,
            seconds=seconds,
            drafting=drafting,
            has_drafts=drafting,
            rate_without=case.estimate,
        )
        gate.stepped(outcome)
        now += seconds
        total += tokens
    return total / now / case.sessions


def measure(steps: int) -> dict[Case, float]:
    """Return the speed of each case, the mean of some seeds."""
    speeds: dict[Case, float] = {}
    for case in cases():
        speeds[case] = fmean(speed(case, steps, seed) for seed in range(SEEDS))
    return speeds


def summary(speeds: dict[Case, float]) -> dict[str, float]:
    """Return the mean and the worst of all cases."""
    mean = geometric_mean(speeds.values())
    worst = min(speeds.values())
    return {"mean": round(mean, 4), "worst": round(worst, 4)}


def differing(before: dict[Case, float], after: dict[Case, float]) -> dict[str, list[float]]:
    """Return the speeds of the cases that differ most."""

    def difference(case: Case) -> float:
        return abs(after[case] / before[case] - 1)

    found: dict[str, list[float]] = {}
    for case in nlargest(MOST_SHOWN, before, difference):
        found[str(case)] = [round(before[case], 3), round(after[case], 3)]
    return found


def main() -> None:
    """Measure with the gate's constants, and with others if these are named."""
    parser = Options(__doc__)
    parser.add_argument(
        "--set", type=_constants, default={}, help="constants of specmesh/core/draft_length/gate.py"
    )
    parser.option("--steps", 4000)
    parser.switch("--json")
    args = parser.parse_args()
    before = measure(args.steps)
    result: dict[str, Any] = {"as it is": summary(before)}
    if args.set:
        for name, value in args.set.items():
            setattr(constants, name, value)
        after = measure(args.steps)
        result["changed"] = summary(after)
        result["cases"] = differing(before, after)
    if args.json:
        print(json.dumps(result))
        return
    compared = result.pop("cases", {})
    for name, figures in result.items():
        print(f"{name}: {figures}")
    for case, (speed_before, speed_after) in compared.items():
        print(f"{speed_before:6} {speed_after:6}  {case}")


def _constants(text: str) -> dict[str, float]:
    """Return the constants of --set; raise ArgumentTypeError for an unknown name."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not isinstance(getattr(constants, name, None), int | float):
            raise argparse.ArgumentTypeError(f"{name} is no constant of the gate")
        found[name] = float(value)
    return found


if __name__ == "__main__":
    main()
