"""python -m soak [--minutes 20] [--seed 1] [--models sim|bundled]: 1 where it fails."""

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
    logs.configure("error")  # llama.cpp tells much of what it loads
    minutes, seed, models = args.minutes, args.seed, args.models
    reports = soak(
        minutes * 60, seed, models, tell=lambda line: print(line, file=sys.stderr, flush=True)
    )
    print("\n".join(line for report in reports for line in report.lines()))
    raise SystemExit(any(report.failures() for report in reports))


if __name__ == "__main__":
    main()
