"""python -m soak [--minutes 20] [--seed 1] [--models sim|bundled]; exit code 1 for a failure."""

import argparse
import sys

from soak.pair import MODELS
from soak.run import soak
from specmesh import logs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description="Soaks pairs of real daemons."
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1, help="of the load and of the faults")
    parser.add_argument("--models", choices=sorted(MODELS), default="sim")
    args = parser.parse_args()
    logs.configure("error")  # llama.cpp logs each load at length
    failed = False
    for report in soak(args.minutes * 60, args.seed, args.models, tell=_tell):
        print("\n".join(report.lines()))
        failed = failed or bool(report.failures())
    raise SystemExit(failed)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
