"""Real daemons on loopback for the benchmarks."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
    """A process that may run on these cores only (None: on any), its output in `log` if one is
    named."""
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
    """A verifier and a drafter with these options; the client is the verifier's, and the drafter is
    attached."""
    run = [sys.executable, "-m", "specmesh"]
    quiet = ["--log-level", "warning"]
    ours, theirs = ["--socket", str(folder / "v.sock")], ["--socket", str(folder / "d.sock")]
    address = f"tcp://127.0.0.1:{free_port()}"
    processes = [
        start([*run, "verifier", *verifier, *quiet, "--bind", address, *ours], cores[0]),
        start([*run, "drafter", *drafter, *quiet, "--connect", address, *theirs], cores[1]),
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


def free_port() -> int:
    """Return a TCP port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True)
class Api:
    """A daemon's HTTP API, whose url ends with /v1."""

    name: str
    url: str
    key: str

    def post(self, path: str, body: object, seconds: float = 600.0) -> tuple[int, Any]:
        """Return the status and the parsed answer."""
        place = urlsplit(self.url)
        connection = HTTPConnection(place.netloc, timeout=seconds)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        connection.request("POST", place.path + path, json.dumps(body), headers)
        answer = connection.getresponse()
        content: Any = json.loads(answer.read())
        connection.close()
        return answer.status, content


@contextmanager
def http_pair(
    folder: Path,
    *,
    template: str,
    ctx: int,
    key: str = "",
    models: tuple[str, str] = ("bundled", "bundled"),
) -> Iterator[tuple[Api, Api]]:
    """Run a verifier and a drafter with these models and a chat template, and yield their APIs.
    They want the key if one is given."""
    source, secret = folder / "template.jinja", folder / "keys"
    source.write_text(template, encoding="utf-8")
    secret.touch(0o600)
    secret.write_text(key, encoding="utf-8")
    common = ["--threads", "1", "--ctx", str(ctx), "--max-sessions", "2"]
    if key:
        common += ["--api-key-file", str(secret)]
    apis, options = list[Api](), list[list[str]]()
    for name, model in zip(("verifier", "drafter"), models, strict=True):
        place = f"127.0.0.1:{free_port()}"
        apis.append(Api(name, f"http://{place}/v1", key))
        options.append([*common, "--model", model, "--http", place])
    verifier, drafter = options
    verifier += ["--chat-template", str(source)]
    with daemons(folder, verifier, drafter):
        yield apis[0], apis[1]


@contextmanager
def live_pair(folder: Path, target: str, drafter: str) -> Iterator[Client]:
    """Two GGUF models, one thread each: two pools of spinning threads on the same cores would stall
    each other."""
    common = ["--threads", "1", "--ctx", "1024", "--max-sessions", "2"]
    with daemons(folder, ["--model", target, *common], ["--model", drafter, *common]) as client:
        yield client
