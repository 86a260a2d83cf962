"""How near the best draft length does `auto` come, in virtual time? Exact but for luck, and no daemon runs.

    python bench/draft_length.py [--tokens N] [--seeds N] [--only NAME] [--against FILE] [--json]

Alone: no drafts. Ideal: a policy that is told acceptance and all step costs, 1 to 25 rows. Auto learns both; it begins
with what a calibration measures. Burden: seconds that a step takes longer while its drafter drafts, on one machine.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

from specmesh.bench.steps import costs_of
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.policy import Policy, PolicyInputs, solve
from specmesh.core.simulation import Deployment, Simulation, Workload
from specmesh.engines.load import WIDTHS

ROWS = 25
Q8_0 = (1, 2.54, 2.97, 3.33, 4.59, 5.29, 4.4, 3.5, 3.7, 3.9, 4.1, 4.46, 5, 5.4, 5.8, 6.14, 6.5)
H100_8B = {1: 3.09, 2: 3.61, 4: 4.25, 8: 5.90, 16: 6.81, 32: 7.99}
H100_70B = {
    1: 18.9,
    2: 19.7,
    3: 21.9,
    4: 25.2,
    6: 32.3,
    8: 38.8,
    9: 36.9,
    16: 37.5,
    17: 43.7,
    32: 48.7,
}


def linear(first: float, each: float) -> dict[int, float]:
    """Milliseconds of one row, and of 32."""
    return {1: first, 32: first + 31 * each}


STEPS = {
    "7B-like": linear(34.2, 1.0),
    "70B-like": linear(52, 1.6),
    "fast": linear(6.9, 0.15),
    "cliffs": {rows: 30.0 * cost for rows, cost in enumerate(Q8_0, 1)},
    "H100 8B": H100_8B,
    "H100 70B": H100_70B,
}  # milliseconds by rows


@dataclass(frozen=True, slots=True)
class Case:
    """Milliseconds, and the acceptance of `period` tokens each in turn. users: sessions that share steps."""

    name: str
    draft: float
    alphas: tuple[float, ...]
    round_trip: float
    period: int = 100
    users: int = 1
    burden: float = 0.0

    def alpha(self, position: int) -> float:
        """The probability that a draft for `position` is right."""
        return self.alphas[position // self.period % len(self.alphas)]

    def __str__(self) -> str:
        alphas, also = (
            "/".join(map(str, self.alphas)),
            f" users {self.users}" if self.users > 1 else "",
        )
        also += f" burden {self.burden:g}" if self.burden else ""
        return (
            f"{self.name} draft {self.draft:g} alpha {alphas} round_trip {self.round_trip:g}{also}"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens per second."""

    case: str
    alone: float
    auto: float
    ideal: float
    promise: float  # of the ideal policy, where acceptance is constant

    def line(self) -> str:
        """The same as a row, with auto over ideal and over alone."""
        rates = f"{self.alone:8.1f}{self.auto:8.1f}{self.ideal:8.1f}{self.promise:8.1f}"
        return f"{self.case:<58}{rates}{self.auto / self.ideal:7.3f}{self.auto / self.alone:7.3f}"


def cases() -> Iterator[Case]:
    """All there are."""
    for round_trip in (0.3, 5, 20, 80):
        for alpha in (0.5, 0.75, 0.9):
            yield Case("7B-like", 5.2, (alpha,), round_trip)
            yield Case("70B-like", 3.3, (alpha,), round_trip)
        for alpha in (0.5, 0.75, 0.85, 0.95):
            yield Case("fast", 5.2, (alpha,), round_trip)
        yield Case("7B-like", 5.2, (0.9, 0.2), round_trip)
    for alpha in (0.75, 0.9):
        yield Case("cliffs", 10, (alpha,), 0.3)
    for name, alpha, draft, round_trip in product(
        ("H100 8B", "H100 70B"), (0.65, 0.85), (1.5, 2.5, 5.0), (0.3, 5)
    ):
        yield Case(name, draft, (alpha,), round_trip)
    for users in (2, 4, 16):
        yield Case("7B-like", 5.2, (0.75,), 0.3, users=users)
        yield Case("fast", 5.2, (0.75,), 0.3, users=users)
    for burden in (10.0, 100.0):
        yield Case("7B-like", 5.2, (0.75,), 0.3, burden=burden)
    yield Case("fast", 1.0, (0.75,), 0.3, burden=20.0)
    yield Case("7B-like", 5.2, (0.75,), 0.3, users=4, burden=100.0)


def run(case: Case, tokens: int, seeds: int) -> Found:
    """The mean of so many texts, drafted alike by luck."""
    costs = costs_of({"0": {str(rows): ms for rows, ms in STEPS[case.name].items()}})
    known = StepCosts()
    for rows in WIDTHS:
        for _ in range(3):
            known.record(rows, costs.seconds(rows))
    site = Deployment(
        costs, case.draft / 1e3, case.round_trip / 1e3, known=known, burden=case.burden / 1e3
    )
    told = {alpha: best(case, costs, alpha) for alpha in case.alphas}

    def rate(draft_n: int | None, policy: Callable[[int], Policy] | None = None) -> float:
        return fmean(one_rate(seed, draft_n, policy) for seed in range(seeds))

    def one_rate(seed: int, draft_n: int | None, policy: Callable[[int], Policy] | None) -> float:
        chance = Random(seed)
        texts = Workload(1, tokens // case.users, draft_n)
        luck = [
            chance.random() for _ in range(tokens + 99)
        ]  # by position, so that all ways have the same
        return (
            Simulation(site, texts, case.users, lambda at: luck[at] < case.alpha(at), policy)
            .run()
            .total
        )

    alone, auto = rate(0), rate(None)
    ideal = auto if case.users > 1 or case.burden else rate(None, lambda at: told[case.alpha(at)])
    return Found(
        str(case), alone, auto, max(ideal, alone), fmean(one.rate for one in told.values())
    )


def best(case: Case, costs: StepCosts, alpha: float) -> Policy:
    """The policy where all is known."""
    steps = tuple(costs.seconds(rows) for rows in range(1, ROWS + 1))
    restart = (case.round_trip + 1.5 * case.draft) / 1e3
    return solve(PolicyInputs(steps, (alpha,) * ROWS, case.draft / 1e3, restart, steps[0]))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument(
        "--against", type=Path, help="what --json printed before: print auto over that"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    before = (
        {one["case"]: one for one in json.loads(args.against.read_text())} if args.against else {}
    )
    chosen = [case for case in cases() if args.only in str(case)]
    if not args.json:
        print(f"{'':<58}{'alone':>8}{'auto':>8}{'ideal':>8}{'promise':>8}{'effic':>7}{'/alone':>7}")
    found = []
    for case in chosen:
        found.append(run(case, args.tokens, args.seeds))
        old = before.get(str(case))
        if not args.json:
            ratio = f"{found[-1].auto / old['auto']:7.3f}" if old else ""
            print(found[-1].line() + ratio, flush=True)
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()
