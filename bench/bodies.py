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
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from body_shapes import COMPLETIONS, NUMBER, Shape, all_shapes
from command_line import Options
from live import start, until

from specmesh.api.server import Api
from specmesh.cli import main as specmesh
from specmesh.client import Client
from specmesh.daemons import serve as daemons

BEAT = 0.002  # seconds between two heartbeats
LATE = struct.Struct("d")
PATIENCE = 120.0
SMALL = {"prompt": "Once upon a time", "max_tokens": 1}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


# --- in the daemon's process


def serve(record: Path, arguments: list[str]) -> None:
    """Run `specmesh` with these arguments, and note in a file by how many seconds its event loop is
    late at most."""
    real = daemons.serving_api  # type: ignore[attr-defined]
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

    daemons.serving_api = with_heartbeat  # type: ignore[attr-defined]
    sys.argv = ["specmesh", *arguments]
    specmesh()


class Heartbeat:
    """How late a daemon's loop was at most since the last look."""

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


def raw_request(shape: Shape) -> bytes:
    """Return a request's bytes, so that sending them costs this process nothing."""
    head = f"POST {shape.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if not shape.chunk:
        return f"{head}Content-Length: {len(shape.body)}\r\n\r\n".encode() + shape.body
    sent, step = [f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()], shape.chunk
    for at in range(0, len(shape.body), step):
        part = shape.body[at : at + step]
        sent.append(f"{len(part):x}\r\n".encode() + part + b"\r\n")
    return b"".join((*sent, b"0\r\n\r\n"))


def exchange(path: Path, request: bytes) -> str:
    """Send a request on a connection of its own; return its status, or how the connection ended."""
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
    """Clients that send one request again and again until they are to stop."""

    def __init__(self, path: Path, shape: Shape, count: int) -> None:
        self._path, self._request = path, raw_request(shape)
        self._numbers = itertools.count()
        self._over = threading.Event()
        self.statuses, self.longest = Counter[str](), 0.0
        self._threads = [threading.Thread(target=self._send) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._over.is_set():
            begun, number = time.monotonic(), f"{next(self._numbers):08}"
            request = self._request.replace(NUMBER.encode(), number.encode())
            self.statuses[exchange(self._path, request)] += 1
            self.longest = max(self.longest, time.monotonic() - begun)

    def end(self) -> None:
        """Stop after the answers that are under way."""
        self._over.set()
        for thread in self._threads:
            thread.join()


def timed(act: Callable[[], object]) -> float:
    """Return how long something takes, in seconds."""
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def waits(path: Path, request: bytes, seconds: float) -> list[float]:
    """Ask again and again for so long; return how long each answer took."""
    end, found = time.monotonic() + seconds, list[float]()
    while time.monotonic() < end or not found:
        found.append(timed(lambda: exchange(path, request)))
        time.sleep(0.01)
    return found


def measure(
    path: Path, beats: Heartbeat, shape: Shape | None, count: int, seconds: float
) -> dict[str, object]:
    """Return one row."""
    small = raw_request(Shape("", COMPLETIONS, json.dumps(SMALL).encode()))
    guided = raw_request(
        Shape("", COMPLETIONS, json.dumps(SMALL | {"json_schema": SCHEMA}).encode())
    )
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    asked = {"health": health, "completion": small, "schema": guided}
    found = dict[str, list[float]]()

    def ask(name: str) -> None:
        found[name] = waits(path, asked[name], seconds)

    threads = [threading.Thread(target=ask, args=(name,)) for name in asked]
    beats.take()
    senders = Senders(path, shape, count) if shape is not None else None
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if senders is not None:
        senders.end()
    row: dict[str, object] = {"shape": shape.name if shape else "none"}
    row["bytes"] = len(shape.body) if shape else 0
    row["block"] = round(beats.take() * 1e3, 1)
    for name, times in found.items():
        row[name] = round(max(times) * 1e3, 1)
        row[f"{name}_median"] = round(median(times) * 1e3, 1)
    row["answer"] = round(senders.longest * 1e3, 1) if senders else 0.0
    row["statuses"] = dict(senders.statuses) if senders else {}
    return row


@contextmanager
def verifier(folder: Path, model: str, engine: str) -> Iterator[tuple[Path, Heartbeat]]:
    """Run a verifier; yield its socket, and how late its loop is."""
    path, record = folder / "v.sock", folder / "late"
    beats = Heartbeat(record)
    arguments = ["verifier", "--engine", engine, "--model", model, "--socket", str(path)]
    arguments += ["--threads", "1", "--log-level", "error", "--bind", "tcp://127.0.0.1:7398"]
    daemon = start([sys.executable, __file__, "--serve", str(record), *arguments])
    try:
        until(lambda: Client(path).get("/health")["status"] == "ok", 300.0)
        yield path, beats
    finally:
        daemon.terminate()
        daemon.wait(30)


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
    rows = list[dict[str, object]]()
    with (
        tempfile.TemporaryDirectory(prefix="specmesh-") as name,
        verifier(Path(name), args.model, args.engine) as (path, beats),
    ):
        shapes = [None, *(one for one in all_shapes() if args.only in one.name)]
        for shape in shapes:
            rows.append(measure(path, beats, shape, args.clients, args.seconds))
            if not args.json:
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if args.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
