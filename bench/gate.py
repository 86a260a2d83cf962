"""What do the gate's constants bring? `SpeculationGate` alone in virtual time, beside itself with other constants.

    python bench/gate.py [--set NAME=VALUE,...] [--steps N] [--json]

A step without drafts takes one second. Drafting brings texts of two kinds in turn so many tokens a step; its steps cost
more, one in a thousand stands still for twenty, and what is expected without drafts may be too low. Tokens per second
over those without drafting: below 1 it loses, and 1 is not reached where it never pays.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import Any

from specmesh.core.draft_length import gate as constants
from specmesh.core.draft_length.gate import SpeculationGate

SEEDS = 5
MOST_TOLD = 12  # cases that differ most


@dataclass(frozen=True, slots=True)
class Case:
    """tokens: of a step with drafts, in texts of each kind; length: mean of these, in steps; cost: seconds of a step
    with drafts; estimate: tokens per second and session expected without, 0 unknown."""

    sessions: int
    tokens: tuple[float, float]
    length: int
    cost: float
    estimate: float


def cases() -> Iterator[Case]:
    """Drafting that pays, that does not, and that does both in turn."""
    for sessions in (1, 4, 16):
        for tokens in ((1.0, 1.0), (2.0, 2.0), (2.2, 2.2), (1.8, 1.2), (3.0, 1.0), (4.0, 1.0)):
            for length in (100, 500, 2500) if tokens[0] != tokens[1] else (100,):
                for cost in (1.3, 1.9):
                    for estimate in (1.0, 0.7) if sessions == 1 else (0.0,):
                        yield Case(sessions, tokens, length, cost, estimate)


def speed(case: Case, steps: int, seed: int) -> float:
    """Tokens per second and session. Luck is the same whatever the gate decides."""
    gate, luck = SpeculationGate(), random.Random(seed)
    now, said, left, kind = 0.0, 0, float(case.length), seed % 2
    for _ in range(steps):
        left -= 1
        if left <= 0:
            kind, left = 1 - kind, luck.expovariate(1 / case.length)
        most = 4 * case.sessions
        stood = sum(luck.random() < (case.tokens[kind] - 1) / 4 for _ in range(most))
        noise, stands = luck.choice((0.95, 1.0, 1.0, 1.05)), luck.random() < 0.001
        drafts = gate.open
        spent = (case.cost if drafts else 1.0) * (20.0 if stands else noise)
        tokens = case.sessions + (stood if drafts else 0)
        gate.stepped(case.sessions, tokens, spent, asked=drafts, had=drafts, alone=case.estimate)
        now, said = now + spent, said + tokens
    return said / now / case.sessions


def measure(steps: int) -> dict[Case, float]:
    """The speed of each case, mean of some seeds."""
    return {case: fmean(speed(case, steps, seed) for seed in range(SEEDS)) for case in cases()}


def summary(speeds: dict[Case, float]) -> dict[str, float]:
    """Mean and worst of all cases."""
    return {
        "mean": round(geometric_mean(speeds.values()), 4),
        "worst": round(min(speeds.values()), 4),
    }


def main() -> None:
    """Measure with the gate's constants, and with others where these are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--set", type=_constants, default={}, help="constants of specmesh/core/draft_length/gate.py"
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    as_it_is = measure(args.steps)
    told: dict[str, Any] = {"as it is": summary(as_it_is)}
    if args.set:
        for name, value in args.set.items():
            setattr(constants, name, value)
        changed = measure(args.steps)
        told["changed"] = summary(changed)
        most = sorted(as_it_is, key=lambda case: -abs(changed[case] / as_it_is[case] - 1))
        told["cases"] = {
            str(case): [round(as_it_is[case], 3), round(changed[case], 3)]
            for case in most[:MOST_TOLD]
        }
    if args.json:
        print(json.dumps(told))
        return
    for name in ("as it is", "changed") if args.set else ("as it is",):
        print(f"{name}: {told[name]}")
    for case, (before, after) in told.get("cases", {}).items():
        print(f"{before:6} {after:6}  {case}")


def _constants(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not isinstance(getattr(constants, name, None), int | float):
            raise argparse.ArgumentTypeError(f"{name} is no constant of the gate")
        found[name] = float(value)
    return found


if __name__ == "__main__":
    main()
