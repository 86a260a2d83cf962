"""Real daemons on loopback for the benchmarks."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
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
ANSWERING_S = 600.0  # that a daemon has for an answer over HTTP

Cores = set[int] | None
Process = subprocess.Popen[bytes]


def until(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, asked for again while the daemon does not answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(SpecmeshError):
            if ready():
                return
        time.sleep(0.05)
    raise SystemExit("the daemons did not come up")


def command(role: str, **options: object) -> list[str]:
    """Return the command of a daemon with these options, whose names have _ in place of -."""
    words = [sys.executable, "-m", "specmesh", role]
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}", str(value)]
    return words


def start(words: list[str], cores: Cores = None, log: Path | None = None) -> Process:
    """Start a process that may run on these cores only, its output in `log`.

    None: on any core, and with this process's output.
    """
    if cores is None:
        return _popen(words, log)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # a child inherits it
    try:
        return _popen(words, log)
    finally:
        os.sched_setaffinity(0, before)


def _popen(words: list[str], log: Path | None) -> Process:
    if log is None:
        return subprocess.Popen(words)
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file)


@contextmanager
def running(words: list[str], cores: Cores = None, log: Path | None = None) -> Iterator[Process]:
    """Start a process as `start` does, and end it with the block."""
    process = start(words, cores, log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def llama_server(
    words: list[str], cores: Cores, log: Path, answers: Callable[[], bool]
) -> Iterator[None]:
    """Run a llama-server, and wait until it answers. Raise SystemExit if it ends before."""
    with running(words, cores, log) as process:
        until(lambda: process.poll() is not None or answers(), LOADING_S)
        if process.poll() is not None:
            end = log.read_text(errors="replace")[-2000:]
            raise SystemExit(f"llama-server ended:\n{end}")
        yield


@contextmanager
def daemons(
    folder: Path, verifier: list[str], drafter: list[str], cores: tuple[Cores, Cores] = (None, None)
) -> Iterator[Client]:
    """Run a verifier and a drafter with these options, and wait until the drafter is attached.

    Yields the verifier's client.
    """
    address = f"tcp://127.0.0.1:{free_port()}"
    socket_path = folder / "v.sock"
    ours = command("verifier", log_level="warning", bind=address, socket=socket_path)
    theirs = command("drafter", log_level="warning", connect=address, socket=folder / "d.sock")
    with running([*ours, *verifier], cores[0]), running([*theirs, *drafter], cores[1]):
        client = Client(socket_path)
        until(lambda: is_drafted(client), LOADING_S)
        yield client


def is_drafted(client: Client) -> bool:
    """Return True if a verifier has a drafter."""
    return bool(client.get("/stats").get("peers"))


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

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Return the status and the parsed answer."""
        place = urlsplit(self.url)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        with closing(HTTPConnection(place.netloc, timeout=ANSWERING_S)) as connection:
            connection.request("POST", place.path + path, json.dumps(body), headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
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
    """Run a verifier and a drafter with these models and a chat template; yield their APIs.

    They want the key if one is given.
    """
    source = folder / "template.jinja"
    source.write_text(template, encoding="utf-8")
    common = ["--threads", "1", "--ctx", str(ctx), "--max-sessions", "2"]
    if key:
        secret = folder / "keys"
        secret.touch(0o600)
        secret.write_text(key, encoding="utf-8")
        common += ["--api-key-file", str(secret)]
    apis: list[Api] = []
    options: list[list[str]] = []
    for name, model in zip(("verifier", "drafter"), models, strict=True):
        place = f"127.0.0.1:{free_port()}"
        apis.append(Api(name, f"http://{place}/v1", key))
        options.append([*common, "--model", model, "--http", place])
    verifier, drafter = options
    verifier += ["--chat-template", str(source)]
    with daemons(folder, verifier, drafter):
        yield apis[0], apis[1]
