"""Compare `auto` with the best draft length in virtual time; exact but for luck.

    python bench/draft_length.py [--tokens N] [--seeds N] [--only NAME] [--against FILE] [--json]

- alone: no drafts.
- ideal: a policy that knows the acceptance and all step costs, of 1 to 25 rows.
- auto: learns both, and begins with the measurements of a calibration.

The burden of a case is how much longer a step takes while its drafter drafts on the same machine.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

from command_line import Options

from specmesh.bench.step_times import costs_of
from specmesh.core.draft_length.policy import Policy, PolicyInputs, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.simulation import Deployment, Simulation, Workload
from specmesh.core.verifier.calibration import WIDTHS

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
    """Return the milliseconds of one row, and of 32."""
    return {1: first, 32: first + 31 * each}


def cliffs() -> dict[int, float]:
    """Return the milliseconds of Q8_0's rows on a CPU."""
    steps: dict[int, float] = {}
    for rows, cost in enumerate(Q8_0, 1):
        steps[rows] = 30.0 * cost
    return steps


STEPS = {
    "7B-like": linear(34.2, 1.0),
    "70B-like": linear(52, 1.6),
    "fast": linear(6.9, 0.15),
    "cliffs": cliffs(),
    "H100 8B": H100_8B,
    "H100 70B": H100_70B,
}
"""Milliseconds by rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A verifier with its drafters; times in milliseconds.

    name: of its step costs. alphas: acceptance of `period` tokens each in turn.
    users: sessions that share steps.
    """

    name: str
    draft: float
    alphas: tuple[float, ...] = (0.75,)
    round_trip: float = 0.3
    period: int = 100
    users: int = 1
    burden: float = 0.0

    def alpha(self, position: int) -> float:
        """Return the probability that a draft for a position is right."""
        return self.alphas[position // self.period % len(self.alphas)]

    def __str__(self) -> str:
        alphas = "/".join(map(str, self.alphas))
        text = f"{self.name} draft {self.draft:g} alpha {alphas} round_trip {self.round_trip:g}"
        if self.users > 1:
            text += f" users {self.users}"
        if self.burden:
            text += f" burden {self.burden:g}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Tokens per second of a case.

    promise: of the ideal policy, if the acceptance is constant.
    """

    case: str
    alone: float
    auto: float
    ideal: float
    promise: float

    def line(self) -> str:
        """Return a row, with auto over ideal and over alone."""
        rates = f"{self.alone:8.1f}{self.auto:8.1f}{self.ideal:8.1f}{self.promise:8.1f}"
        return f"{self.case:<58}{rates}{self.auto / self.ideal:7.3f}{self.auto / self.alone:7.3f}"


like_7b = partial(Case, name="7B-like", draft=5.2)
like_70b = partial(Case, name="70B-like", draft=3.3)
fast = partial(Case, name="fast", draft=5.2)
"""Targets with their drafters. The last one's drafter is hardly faster than the target."""


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for round_trip in (0.3, 5, 20, 80):
        for alpha in (0.5, 0.75, 0.9):
            yield like_7b(alphas=(alpha,), round_trip=round_trip)
            yield like_70b(alphas=(alpha,), round_trip=round_trip)
        for alpha in (0.5, 0.75, 0.85, 0.95):
            yield fast(alphas=(alpha,), round_trip=round_trip)
        yield like_7b(alphas=(0.9, 0.2), round_trip=round_trip)
    for alpha in (0.75, 0.9):
        yield Case(name="cliffs", draft=10, alphas=(alpha,))
    for name, alpha in product(("H100 8B", "H100 70B"), (0.65, 0.85)):
        for draft, round_trip in product((1.5, 2.5, 5.0), (0.3, 5)):
            yield Case(name=name, draft=draft, alphas=(alpha,), round_trip=round_trip)
    for users in (2, 4, 16):
        yield like_7b(users=users)
        yield fast(users=users)
    for burden in (10.0, 100.0):
        yield like_7b(burden=burden)
    yield fast(draft=1.0, burden=20.0)
    yield like_7b(users=4, burden=100.0)


PolicyAt = Callable[[int], Policy]
"""Returns the policy at a position of a text."""


def run(case: Case, tokens: int, seeds: int) -> Found:
    """Return the mean of so many texts, all drafted with the same luck."""
    costs = costs_of({0: STEPS[case.name]})
    site = Deployment(
        costs=costs,
        draft=case.draft / 1e3,
        round_trip=case.round_trip / 1e3,
        known=calibrated(costs),
        burden=case.burden / 1e3,
    )
    policies: dict[float, Policy] = {}
    for alpha in case.alphas:
        policies[alpha] = best(case, costs, alpha)

    def informed(position: int) -> Policy:
        return policies[case.alpha(position)]

    def rate(draft_n: int | None, policy: PolicyAt | None = None) -> float:
        texts = Workload(1, tokens // case.users, draft_n)
        rates: list[float] = []
        for seed in range(seeds):
            right = partial(is_right, case, luck[seed])
            simulation = Simulation(site, texts, case.users, right, policy)
            rates.append(simulation.run().total)
        return fmean(rates)

    # By position, so that all ways to draft have the same luck.
    luck = [chances(seed, tokens + 99) for seed in range(seeds)]
    alone = rate(0)
    auto = rate(None)
    ideal = auto
    if case.users == 1 and not case.burden:
        ideal = rate(None, informed)
    promise = fmean(policy.rate for policy in policies.values())
    return Found(case=str(case), alone=alone, auto=auto, ideal=max(ideal, alone), promise=promise)


def chances(seed: int, count: int) -> list[float]:
    """Return so many random numbers below 1."""
    random = Random(seed)
    return [random.random() for _ in range(count)]


def is_right(case: Case, luck: list[float], position: int) -> bool:
    """Return True if the draft for a position is right."""
    return luck[position] < case.alpha(position)


def calibrated(costs: StepCosts) -> StepCosts:
    """Return the costs that a verifier has measured at its start."""
    known = StepCosts()
    for rows in WIDTHS:
        for _ in range(3):
            known.record(rows, costs.seconds(rows))
    return known


def best(case: Case, costs: StepCosts, alpha: float) -> Policy:
    """Return the policy of a verifier that knows all estimates."""
    steps = tuple(map(costs.seconds, range(1, ROWS + 1)))
    restart = case.round_trip + 1.5 * case.draft
    inputs = PolicyInputs(
        steps=steps,
        rates=(alpha,) * ROWS,
        interval=case.draft / 1e3,
        restart=restart / 1e3,
        undrafted_s=steps[0],
    )
    return solve(inputs)


def main() -> None:
    """Run and print."""
    parser = Options(__doc__)
    parser.option("--tokens", 1200)
    parser.option("--seeds", 3)
    parser.option("--only", "", "cases whose names hold this")
    parser.add_argument(
        "--against", type=Path, help="what --json printed before: print auto over that"
    )
    parser.switch("--json")
    args = parser.parse_args()
    before: dict[str, float] = {}
    if args.against:
        for row in json.loads(args.against.read_text()):
            before[row["case"]] = row["auto"]
    if not args.json:
        print(f"{'':<58}{'alone':>8}{'auto':>8}{'ideal':>8}{'promise':>8}{'effic':>7}{'/alone':>7}")
    rows: list[Found] = []
    for case in cases():
        if args.only not in str(case):
            continue
        row = run(case, args.tokens, args.seeds)
        rows.append(row)
        if not args.json:
            line = row.line()
            if row.case in before:
                line += f"{row.auto / before[row.case]:7.3f}"
            print(line, flush=True)
    if args.json:
        print(json.dumps(list(map(asdict, rows)), indent=1))


if __name__ == "__main__":
    main()
