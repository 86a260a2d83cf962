"""Measure a round of specmesh by itself: real daemons on loopback, engines that cost nothing.

    python bench/overhead.py [--rounds N] [--repeats N] [--target SIM] [--drafter SIM] [--json]

A round is: step, TRUTH to the drafter, four drafts, DRAFT to the verifier, next step. With engines
that take no time, all the time between two steps is overhead: scheduling, sockets, threads,
sampling, the client's stream. Printed are percentiles of that gap, as the verifier's own `stats`
measures it, for draft_n 4 (each round waits for its drafts and cannot begin before they come: the
full loop), draft_n auto, and draft_n 0 (the verifier's own loop). SIM are settings of a simulated
engine: drafts are in hand when a step ends with

    --target step_ms=3.09,row_ms=0.25,n_vocab=128000 --drafter alpha=1,n_vocab=128000
"""

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import cast

from command_line import Options
from live import daemons, until

from specmesh.bench.texts import generate
from specmesh.client import Client
from specmesh.core.fields import Json, number_at


def pause_ms(client: Client, draft_n: int | str, tokens: int) -> dict[str, float]:
    """Return the engine's idle milliseconds between two steps, over more than 1,024 rounds."""
    body: Json = {"prompt": "overhead", "max_tokens": tokens, "temperature": 0}
    text = generate(client, body | {"draft_n": draft_n})
    if draft_n == 4 and not number_at(text.report, "drafted", 0):
        raise SystemExit("its drafter does not draft")
    until(lambda: number_at(client.get("/stats"), "sessions.live") == 0)
    return cast("dict[str, float]", client.get("/stats")["pause_ms"])


def main() -> None:
    """Run and print."""
    parser = Options(__doc__)
    parser.option("--rounds", 1100)
    parser.option("--repeats", 3)
    parser.option("--target", "step_ms=0")
    parser.option("--drafter", "alpha=1")
    parser.switch("--json")
    args = parser.parse_args()
    # With four drafts a round has five tokens.
    tokens: dict[int | str, int] = {4: 5 * args.rounds, "auto": args.rounds, 0: args.rounds}
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    target = ["--engine", "sim", "--model", args.target]
    drafter = ["--engine", "sim", "--model", args.drafter]
    with (
        tempfile.TemporaryDirectory() as folder,
        daemons(Path(folder), target, drafter) as client,
    ):
        for _ in range(args.repeats):
            for draft_n, count in tokens.items():
                results[str(draft_n)].append(pause_ms(client, draft_n, count))
    if args.json:
        print(json.dumps(results))
    else:
        for name, rows in results.items():
            for row in rows:
                print(f"draft_n={name:5}", row)


if __name__ == "__main__":
    main()
