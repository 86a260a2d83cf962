"""What specmesh itself costs per round, on loopback, with real daemons whose engines cost nothing.

    python bench/overhead.py [--rounds N] [--repeats N] [--json]

A round is: step, TRUTH to the drafter, four drafts, DRAFT to the verifier, next step. With engines that take no time,
all the time between two steps is overhead: scheduling, sockets, threads, sampling, the client's stream. Printed are
percentiles of that gap, as the verifier's own `stats` measures it, for draft_n 4 (each round waits for its drafts and
cannot begin before they come: the full loop), draft_n auto, and draft_n 0 (the verifier's own loop).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from specmesh.client import Client
from specmesh.errors import SpecmeshError

PORT = 7399


@contextmanager
def pair(folder: Path) -> Iterator[Client]:
    """A verifier and a drafter with engines that cost nothing, the drafter always right."""
    run = [sys.executable, "-m", "specmesh"]
    common = ["--engine", "sim", "--log-level", "warning"]
    address = f"tcp://127.0.0.1:{PORT}"
    verifier = subprocess.Popen(
        [*run, "verifier", *common, "--model", "step_ms=0", "--bind", address, "--socket", str(folder / "v.sock")]
    )
    drafter = subprocess.Popen(
        [*run, "drafter", *common, "--model", "alpha=1", "--connect", address, "--socket", str(folder / "d.sock")]
    )
    try:
        client = Client(folder / "v.sock")
        _until(lambda: bool(client.get("/stats").get("peers")))
        yield client
    finally:
        for process in (drafter, verifier):
            process.terminate()
            process.wait(10)


def _until(ready: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except SpecmeshError:
            pass
        time.sleep(0.05)
    raise SystemExit("the daemons did not come up")


def gap_ms(client: Client, draft_n: int | str, tokens: int) -> dict[str, float]:
    """The engine's idle time between two steps, in milliseconds, over one generation of more than 1,024 rounds."""
    for _ in client.complete({"prompt": "overhead", "max_tokens": tokens, "temperature": 0, "draft_n": draft_n}):
        pass
    _until(lambda: client.get("/stats")["sessions"]["live"] == 0)  # type: ignore[index]
    gaps = client.get("/stats")["gap_ms"]
    return cast(dict[str, float], gaps)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {"4": [], "auto": [], "0": []}
    with tempfile.TemporaryDirectory() as folder, pair(Path(folder)) as client:
        for _ in range(args.repeats):
            for draft_n, rows in results.items():
                rounds = args.rounds * (5 if draft_n == "4" else 1)
                rows.append(gap_ms(client, draft_n if draft_n == "auto" else int(draft_n), rounds))
    if args.json:
        print(json.dumps(results))
    else:
        for draft_n, rows in results.items():
            for row in rows:
                print(f"draft_n={draft_n:5}", row)


if __name__ == "__main__":
    main()
