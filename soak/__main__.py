"""python -m soak [--minutes 20] [--seed 1] [--models sim|bundled], more by --help: 1 where it fails."""

import argparse
import sys

from soak.pair import MODELS
from soak.run import PAIRS, USUAL, Settings, soak
from specmesh import logs

WARM_UP_SHARE = 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak", description="Soaks pairs of real daemons.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, help="minutes until memory is watched; a third of them all")
    parser.add_argument("--seed", type=int, default=1, help="of the load and of the faults")
    parser.add_argument("--models", choices=sorted(MODELS), default="sim")
    parser.add_argument("--clients", type=int, default=3, help="of each pair")
    parser.add_argument("--sessions", type=int, help="that each daemon holds at once, and as many may wait")
    parser.add_argument("--only", choices=sorted(PAIRS), action="append", help="this pair")
    args = parser.parse_args()
    logs.configure("error")  # llama.cpp tells much of what it loads
    seconds = args.minutes * 60
    warm_up = seconds * WARM_UP_SHARE if args.warm_up is None else args.warm_up * 60
    settings = Settings(
        seconds,
        args.seed,
        args.models,
        args.clients,
        warm_up=warm_up,
        pairs=tuple(args.only or USUAL),
        sessions=args.sessions,
    )
    report = soak(settings, lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(report.lines()))
    raise SystemExit(bool(report.failures))


if __name__ == "__main__":
    main()
