"""Run a daemon of real models whose steps last as long as those of a much slower machine.

    python bench/stretched.py MACHINE FACTOR LATE verifier|drafter OPTIONS...

A step lasts FACTOR times as long as MACHINE's (specmesh/machines.py), a draft likewise. A step that
outlasts this is noted as a line of the file LATE, for its run shows nothing about MACHINE. Longer
steps, that read a prompt or a window, may last as they do.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from specmesh import machines
from specmesh.cli import main
from specmesh.engines import stretched
from specmesh.engines.base import Ask
from specmesh.engines.llama.engine import LlamaDrafter
from specmesh.engines.sim import wait_until

DRAFT_IDS = 8
"""Most ids that a session's step reads to draft: those since its last one."""


def stretch(machine: str, factor: float, late: Path) -> None:
    """Have all steps of this process last `factor` times as long as those of a machine."""
    steps = machines.STEPS_MS[machine]
    for rows, milliseconds in steps.items():
        steps[rows] = milliseconds * factor
    read = [0]  # rows of the current step

    def step_ms(machine: str, rows: int) -> float:
        read[0] = rows if rows <= max(steps) else 0
        return machines.step_ms(machine, rows)

    predict: Callable[..., list[int | None]] = LlamaDrafter.predict

    def noted_predict(self: LlamaDrafter, asks: Sequence[Ask]) -> list[int | None]:
        ids = sum(len(ask.ids) for ask in asks)
        read[0] = ids if ids <= DRAFT_IDS else 0
        return predict(self, asks)

    def noted_wait(until: float) -> None:
        over = time.perf_counter() - until
        if over > 0 and read[0] and factor:
            with late.open("a") as file:
                file.write(f"a step of {read[0]} rows took {over * 1e3:.1f} ms too long\n")
        wait_until(until)

    vars(stretched).update(
        DRAFT_MS=machines.DRAFT_MS * factor, step_ms=step_ms, wait_until=noted_wait
    )
    LlamaDrafter.predict = noted_predict  # type: ignore[method-assign]


def run() -> None:
    """Run the daemon that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", choices=list(machines.STEPS_MS))
    parser.add_argument("factor", type=float)
    parser.add_argument("late", type=Path, help="file for the steps that lasted too long")
    parser.add_argument("daemon", nargs=argparse.REMAINDER, help="verifier|drafter OPTIONS...")
    given = parser.parse_args()
    stretch(given.machine, given.factor, given.late)
    sys.argv = ["specmesh", *given.daemon]
    main()


if __name__ == "__main__":
    run()
