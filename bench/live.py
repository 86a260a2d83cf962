"""Real daemons on loopback for the benchmarks."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specmesh.client import Client
from specmesh.errors import SpecmeshError

ADDRESS = "tcp://127.0.0.1:7399"
LOADING_S = 300.0
"""A verifier reads its whole model, perhaps gigabytes, and times steps of it before it answers."""

Cores = set[int] | None


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


def start(
    command: list[str], cores: Cores = None, log: Path | None = None
) -> "subprocess.Popen[bytes]":
    """A process that may run on these cores only (None: on any), its output in `log` if one is named."""
    if cores is None:
        return _popen(command, log)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # a child inherits it
    try:
        return _popen(command, log)
    finally:
        os.sched_setaffinity(0, before)


def _popen(command: list[str], log: Path | None) -> "subprocess.Popen[bytes]":
    if log is None:
        return subprocess.Popen(command)
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


@contextmanager
def daemons(
    folder: Path, verifier: list[str], drafter: list[str], cores: tuple[Cores, Cores] = (None, None)
) -> Iterator[Client]:
    """A verifier and a drafter with these options; the client is the verifier's, and the drafter is attached."""
    run = [sys.executable, "-m", "specmesh"]
    quiet = ["--log-level", "warning"]
    ours, theirs = ["--socket", str(folder / "v.sock")], ["--socket", str(folder / "d.sock")]
    processes = [
        start([*run, "verifier", *verifier, *quiet, "--bind", ADDRESS, *ours], cores[0]),
        start([*run, "drafter", *drafter, *quiet, "--connect", ADDRESS, *theirs], cores[1]),
    ]
    try:
        client = Client(folder / "v.sock")
        until(lambda: bool(client.get("/stats").get("peers")), LOADING_S)
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
