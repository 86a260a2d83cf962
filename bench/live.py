"""Real daemons on loopback for the benchmarks."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specmesh.client import Client
from specmesh.errors import SpecmeshError

ADDRESS = "tcp://127.0.0.1:7399"


def until(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, asked for again while the daemon does not answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except SpecmeshError:
            pass
        time.sleep(0.05)
    raise SystemExit("the daemons did not come up")


@contextmanager
def daemons(folder: Path, verifier: list[str], drafter: list[str]) -> Iterator[Client]:
    """A verifier and a drafter with these options; the client is the verifier's, and the drafter is attached."""
    run = [sys.executable, "-m", "specmesh"]
    quiet = ["--log-level", "warning"]
    processes = [
        subprocess.Popen([*run, "verifier", *verifier, *quiet, "--bind", ADDRESS, "--socket", str(folder / "v.sock")]),
        subprocess.Popen([*run, "drafter", *drafter, *quiet, "--connect", ADDRESS, "--socket", str(folder / "d.sock")]),
    ]
    try:
        client = Client(folder / "v.sock")
        until(lambda: bool(client.get("/stats").get("peers")))
        yield client
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(15)


@contextmanager
def live_pair(folder: Path, target: str, drafter: str) -> Iterator[Client]:
    """Two GGUF models, one thread each: two pools of spinning threads on the same cores would stall each other."""
    common = ["--threads", "1", "--ctx", "1024", "--max-sessions", "2"]
    with daemons(folder, ["--model", target, *common], ["--model", drafter, *common]) as client:
        yield client
