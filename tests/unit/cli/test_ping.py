"""`specmesh ping`: its lines, its summary, its exit code, against scripted daemons."""

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from specmesh.cli import main


def event(time_ms: float | None, number: int = 1, peer: str = "mac:1", address: str = "tcp://127.0.0.1") -> bytes:
    told = {"number": number, "peer": peer, "address": address, "time_ms": time_ms}
    return f"data: {json.dumps(told)}\n\n".encode()


def ping(path: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["ping", "--socket", str(path), *args])


def test_names_cannot_move_the_cursor(fake_daemon: Callable[..., Path]):
    """A peer calls itself what it likes; a terminal sees no control characters of it."""
    done = ping(fake_daemon({"/ping": (200, event(1, peer="mac\x1b[2J\n") + b"data: [DONE]\n\n")}))
    assert done.stdout.startswith("from mac?[2J? via tcp://127.0.0.1 (same machine): time=1.00 ms\n")
