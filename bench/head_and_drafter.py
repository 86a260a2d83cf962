"""Compare a target's own head, a drafter daemon and both, in virtual time; exact but for luck.

    python bench/head_and_drafter.py [--tokens N] [--seeds N] [--json]

One user. Ratios are to the same target without drafts, `both / better` to the better one of head
and drafter. Rows are cheap (an H100 with 70B in 8 bits) or dear (F16 on a CPU); the head reads and
drafts in the seconds that bench/mtp.py's head takes there, or a layer in 80. A head's draft and a
drafter's for the same position are right independently of each other.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from random import Random
from statistics import fmean, geometric_mean

from command_line import Options
from draft_length import H100_70B

from specmesh.bench.step_times import costs_of
from specmesh.core import events as ev
from specmesh.core.draft_length.local_estimates import LocalEstimates
from specmesh.core.session_params import TargetLimits
from specmesh.core.simulation import (
    ENDLESS,
    RIGHT,
    SIMULATED_ROWS,
    WRONG,
    Deployment,
    Simulation,
    Workload,
)
from specmesh.core.verifier.events import DrafterId
from specmesh.core.verifier.local_drafting import LocalDrafting, LocalLimits
from specmesh.core.verifier.target import Target

F16_CPU = {1: 22.3, 2: 29.5, 3: 30.7, 4: 38.9, 5: 40.8, 8: 47.5, 9: 52.0, 16: 70.4, 17: 76.0}
KEPT_ROWS = 64
DRAFT_S = 0.003  # of the drafter daemon
ROUND_TRIPS = (0.0006, 0.04)
RATES = ((0.8, 0.45), (0.8, 0.65), (0.6, 0.45), (0.6, 0.7))
"""Rates at which drafts of the drafter and of the head are accepted."""

Right = Callable[[int], bool]
"""Whether the draft for a position is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSeconds:
    """Seconds that a head takes: for a step at least, for each row, for each further draft."""

    least: float
    row: float
    draft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The milliseconds of a target's steps by rows, and the seconds of its head."""

    steps: dict[int, float]
    head: HeadSeconds


MACHINES = {
    "cheap rows": Machine(steps=H100_70B, head=HeadSeconds(least=1e-3, row=1e-5, draft=1e-3)),
    "dear rows": Machine(steps=F16_CPU, head=HeadSeconds(least=1.3e-3, row=3e-4, draft=1.6e-3)),
}


class SimulatedHead(Simulation):
    """A user of a target whose own head drafts, beside the drafters of the deployment.

    beside: drafters are attached.
    """

    def __init__(
        self,
        site: Deployment,
        texts: Workload,
        right: Right,
        *,
        head: HeadSeconds,
        head_right: Right,
        beside: bool,
    ) -> None:
        self._head = head
        self._head_right = head_right
        self._beside = beside
        super().__init__(site, texts, 1, right)

    def _target(self, limits: TargetLimits) -> Target:
        target = super()._target(limits)
        local = LocalDrafting(
            LocalLimits(
                n_ctx=ENDLESS,
                n_batch=SIMULATED_ROWS,
                batches=True,
                follows=True,
                kept_rows=KEPT_ROWS,
            ),
            LocalEstimates("mtp", batches=True),
            target.costs,
            target.speculations,
        )
        return replace(target, local=local)

    def _join(self, identity: DrafterId) -> None:
        if self._beside:
            super()._join(identity)

    def _begin(self, step: ev.Step | ev.DraftStep, now: float) -> None:
        if isinstance(step, ev.Step):
            super()._begin(step, now)
            return
        seconds = self._seconds_of_head(step)
        self._at(now + seconds, partial(self._head_drafted, step, seconds))

    def _seconds_of_head(self, step: ev.DraftStep) -> float:
        rows = sum(len(row.ids) for row in step.rows)
        drafts = [row.draft_n for row in step.rows if row.sampler is not None]
        further = max(max(drafts, default=0) - 1, 0)
        return self._head.least + self._head.row * rows + self._head.draft * further

    def _head_drafted(self, step: ev.DraftStep, seconds: float, now: float) -> None:
        drafts: list[list[int]] = []
        for row in step.rows:
            end = row.text_position + len(row.ids)
            count = row.draft_n if row.sampler is not None else 0
            drafts.append([self._drafted_id(end + place) for place in range(count)])
        held = {cut.seq: cut.length for cut in step.cuts}
        result = ev.DraftedRows(held, drafts)
        self._carry_out(self._verifier.finish(step, result, now - seconds, now), now)
        self._next_turn(now)

    def _drafted_id(self, position: int) -> int:
        return RIGHT if self._head_right(position) else WRONG


def chance(rate: float, seed: int) -> Right:
    """Return whether drafts are right, at this rate; the same whoever asks, however often."""
    return lambda position: Random(f"{seed} {position}").random() < rate


def speeds(
    machine: Machine, round_trip: float, rates: tuple[float, float], *, tokens: int, seed: int
) -> dict[str, float]:
    """Return the tokens per second of each contender."""
    site = Deployment(
        costs=costs_of({0: machine.steps}), draft=DRAFT_S, round_trip=round_trip, pause=2e-4
    )
    texts = Workload(prompt=120, tokens=tokens)
    right = chance(rates[0], seed)
    headed = partial(
        SimulatedHead, site, texts, right, head=machine.head, head_right=chance(rates[1], -seed - 1)
    )
    alone = Simulation(site, Workload(prompt=120, tokens=tokens, draft_n=0), 1, right)
    runs = {
        "none": alone,
        "head": headed(beside=False),
        "drafter": Simulation(site, texts, 1, right),
        "both": headed(beside=True),
    }
    return {name: run.run().total for name, run in runs.items()}


def main() -> None:
    """Measure all cases and print them."""
    parser = Options(__doc__)
    parser.option("--tokens", 1000)
    parser.option("--seeds", 3)
    parser.switch("--json")
    args = parser.parse_args()
    found: list[dict[str, object]] = []
    gains: dict[str, list[float]] = {}
    for (name, machine), round_trip, rates in product(MACHINES.items(), ROUND_TRIPS, RATES):
        by_contender: dict[str, list[float]] = defaultdict(list)
        for seed in range(args.seeds):
            measured = speeds(machine, round_trip, rates, tokens=args.tokens, seed=seed)
            for who, speed in measured.items():
                by_contender[who].append(speed)
        mean = {who: fmean(some) for who, some in by_contender.items()}
        gain = mean["both"] / max(mean["head"], mean["drafter"])
        gains.setdefault(f"{name}, {round_trip * 1e3:g} ms", []).append(gain)
        ratios = {who: round(speed / mean["none"], 3) for who, speed in mean.items()}
        case = {"machine": name, "round_trip_ms": round_trip * 1e3, "rates": rates}
        found.append(case | ratios | {"both / better": round(gain, 3)})
    overall = {name: round(geometric_mean(some), 3) for name, some in gains.items()}
    if args.json:
        print(json.dumps({"cases": found, "both / better": overall}))
        return
    for row in found:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    for name, gain in overall.items():
        print(f"{name}: both / better {gain}")


if __name__ == "__main__":
    main()
