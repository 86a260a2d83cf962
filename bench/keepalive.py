"""What a request costs on a connection that is kept, over TCP and over the Unix socket.

    python bench/keepalive.py [--requests N] [--json]

A verifier whose engine costs nothing is asked both ways in turn, each on one connection:
`GET /v1/models`, whose answer is a head and a body, and `POST /tokenize`. Printed are milliseconds
from the first byte sent to the last one read.
"""

import argparse
import http.client
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from specmesh.client import Client

sys.path.insert(0, str(Path(__file__).parent))
from live import start, until

PORT = 7398
ASKED = (("GET", "/v1/models", None), ("POST", "/tokenize", '{"content": "to be or not"}'))


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def milliseconds(
    connection: http.client.HTTPConnection, method: str, path: str, body: str | None
) -> float:
    """Ask once; return how long that took."""
    begun = time.perf_counter()
    connection.request(method, path, body)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path} was answered {answer.status}")
    return (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    times: dict[str, dict[str, list[float]]] = {path: {} for _, path, _ in ASKED}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v.sock"
        run = [
            sys.executable,
            "-m",
            "specmesh",
            "verifier",
            "--engine",
            "sim",
            "--model",
            "step_ms=0",
        ]
        where = [
            "--socket",
            str(path),
            "--http",
            f"127.0.0.1:{PORT}",
            "--bind",
            "tcp://127.0.0.1:7397",
        ]
        daemon = start([*run, *where, "--log-level", "warning"])
        try:
            client = Client(path)
            until(lambda: bool(client.get("/health")))
            ways = {
                "unix": UnixConnection(path),
                "tcp": http.client.HTTPConnection("127.0.0.1", PORT),
            }
            for _ in range(args.requests):
                for asked in ASKED:
                    for name, connection in ways.items():
                        took = milliseconds(connection, *asked)
                        times[asked[1]].setdefault(name, []).append(took)
        finally:
            daemon.terminate()
            daemon.wait(15)
    if args.json:
        print(json.dumps(times))
        return
    for asked_path, by_way in times.items():
        for name, taken in by_way.items():
            least, middle, most = min(taken), statistics.median(taken), max(taken)
            print(
                f"{asked_path:12} {name:5} min {least:6.2f}  median {middle:6.2f}  max {most:6.2f}"
            )


if __name__ == "__main__":
    main()
