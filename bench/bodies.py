"""What a body of 2 MiB costs the other clients, before its prompt is known.

    python bench/bodies.py [--model MODEL] [--engine NAME] [--clients N] [--seconds S] [--only WORD]
                           [--json]

A real verifier, its event loop with a heartbeat. For each shape (`body_shapes.py`) N clients send
it again and again for S seconds, while others ask for /health and for completions of one
token. Printed are, in milliseconds: the longest that the loop was late (`block`), the longest and
the median wait for /health and for a completion, the longest wait for an answer to the shape
itself, and the statuses that it got. The first row is without such clients. Nothing else may run on
the machine: each number holds what others take of its cores.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Self

from body_shapes import COMPLETIONS, NUMBER, Json, Shape, all_shapes
from command_line import Options
from live import LOADING_S, command, running, until

from specmesh.api import server
from specmesh.api.server import Api
from specmesh.cli import main as specmesh
from specmesh.client import Client

BEAT = 0.002  # seconds between two heartbeats
LATE = struct.Struct("d")
PATIENCE = 120.0
SMALL: Json = {"prompt": "Once upon a time", "max_tokens": 1}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


# --- in the daemon's process


def serve(record: Path, arguments: list[str]) -> None:
    """Run `specmesh` with these arguments; keep the seconds by which its loop is late at most."""
    real = server.serving_api
    with record.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), LATE.size)

    @contextmanager
    def with_heartbeat(*how: object, **named: object) -> Generator[Api]:
        with real(*how, **named) as api:  # type: ignore[arg-type]
            api.loop.call_soon_threadsafe(beat, api.loop, api.loop.time())
            yield api

    def beat(loop: asyncio.AbstractEventLoop, due: float) -> None:
        late = loop.time() - due
        if late > LATE.unpack(shared[:])[0]:
            shared[:] = LATE.pack(late)
        loop.call_later(BEAT, beat, loop, loop.time() + BEAT)

    server.serving_api = with_heartbeat
    sys.argv = ["specmesh", *arguments]
    specmesh()


class Heartbeat:
    """The longest that a daemon's loop was late since the last look."""

    def __init__(self, record: Path) -> None:
        record.write_bytes(bytes(LATE.size))
        with record.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), LATE.size)

    def take(self) -> float:
        """Return it in seconds, and begin anew."""
        (late,) = LATE.unpack(self._shared[:])
        self._shared[:] = bytes(LATE.size)
        return float(late)


# --- its clients


def raw_request(path: str, body: bytes, chunk: int = 0) -> bytes:
    """Return a request's bytes, so that sending them costs this process nothing.

    chunk: bytes of each part of the body, 0 for a body in one.
    """
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if not chunk:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    sent = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    parts: list[bytes] = []
    for at in range(0, len(body), chunk):
        part = body[at : at + chunk]
        parts.append(b"%x\r\n%b\r\n" % (len(part), part))
    return sent + b"".join(parts) + b"0\r\n\r\n"


def completion(body: Json) -> bytes:
    """Return a completion's bytes."""
    return raw_request(COMPLETIONS, json.dumps(body).encode())


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
OTHERS = {
    "health": HEALTH,
    "completion": completion(SMALL),
    "schema": completion(SMALL | {"json_schema": SCHEMA}),
}
"""Requests of the other clients, by the names of their columns."""


def exchange(path: Path, request: bytes) -> str:
    """Send a request on a connection of its own; return its status, or its error."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(os.fspath(path))
        with suppress(OSError):  # it may have been answered before all was sent
            connection.sendall(request)
        try:
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        return str(answer.status)


class Senders:
    """Clients that send one request again and again in the block. None: they send nothing."""

    def __init__(self, path: Path, shape: Shape | None, count: int) -> None:
        self.statuses = Counter[str]()
        self.longest = 0.0
        self._path = path
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        if shape is not None:
            self._request = raw_request(shape.path, shape.body, shape.chunk)
            for _ in range(count):
                self._threads.append(threading.Thread(target=self._send))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def _send(self) -> None:
        while not self._over.is_set():
            number = f"{next(self._numbers):08}"
            begun = time.monotonic()
            request = self._request.replace(NUMBER.encode(), number.encode())
            self.statuses[exchange(self._path, request)] += 1
            self.longest = max(self.longest, time.monotonic() - begun)

    def __exit__(self, *_: object) -> None:
        """Stop after the answers that are under way."""
        self._over.set()
        for thread in self._threads:
            thread.join()


def waits(path: Path, seconds: float, request: bytes) -> list[float]:
    """Ask again and again for so long; return the seconds until each answer."""
    end = time.monotonic() + seconds
    found: list[float] = []
    while time.monotonic() < end or not found:
        begun = time.monotonic()
        exchange(path, request)
        found.append(time.monotonic() - begun)
        time.sleep(0.01)
    return found


def in_ms(seconds: float) -> float:
    """Return milliseconds as they are printed."""
    return round(seconds * 1e3, 1)


def measure(
    path: Path, beats: Heartbeat, shape: Shape | None, args: argparse.Namespace
) -> dict[str, object]:
    """Return one row."""
    ask = partial(waits, path, args.seconds)
    beats.take()
    with Senders(path, shape, args.clients) as senders, ThreadPoolExecutor() as pool:
        found = list(pool.map(ask, OTHERS.values()))
    row: dict[str, object] = {"shape": "none", "bytes": 0}
    if shape is not None:
        row = {"shape": shape.name, "bytes": len(shape.body)}
    row["block"] = in_ms(beats.take())
    for name, times in zip(OTHERS, found, strict=True):
        row[name] = in_ms(max(times))
        row[f"{name}_median"] = in_ms(median(times))
    row["answer"] = in_ms(senders.longest)
    row["statuses"] = dict(senders.statuses)
    return row


@contextmanager
def verifier(folder: Path, model: str, engine: str) -> Iterator[tuple[Path, Heartbeat]]:
    """Run a verifier; yield its socket, and the heartbeat of its loop."""
    path = folder / "v.sock"
    record = folder / "late"
    beats = Heartbeat(record)
    options = command(
        "verifier",
        engine=engine,
        model=model,
        socket=path,
        threads=1,
        log_level="error",
        bind="tcp://127.0.0.1:7398",
    )
    _, _, _, *arguments = options
    with running([sys.executable, __file__, "--serve", str(record), *arguments]):
        until(lambda: Client(path).get("/health")["status"] == "ok", LOADING_S)
        yield path, beats


def main() -> None:
    """Measure, or be the daemon that is measured."""
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = Options(__doc__)
    parser.option("--model", "bundled")
    parser.option("--engine", "llama")
    parser.option("--clients", 10)
    parser.option("--seconds", 3.0)
    parser.option("--only", "", "only shapes with this in their names")
    parser.switch("--json")
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    shapes: list[Shape | None] = [None]
    for shape in all_shapes():
        if args.only in shape.name:
            shapes.append(shape)
    with (
        tempfile.TemporaryDirectory(prefix="specmesh-") as name,
        verifier(Path(name), args.model, args.engine) as (path, beats),
    ):
        for chosen in shapes:
            row = measure(path, beats, chosen, args)
            rows.append(row)
            if not args.json:
                cells = [f"{name} {value}" for name, value in row.items()]
                print("  ".join(cells), flush=True)
    if args.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
