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


def test_lines_and_summary(fake_daemon: Callable[..., Path]):
    """A line per answer, lost ones said, then count, loss and times of each peer."""
    far = {"peer": "far:2", "address": "tcp://100.64.0.7:7071"}
    events = [event(0.5), event(None, **far), event(None, 2), event(3.0, 2, **far), event(0.7, 3)]  # type: ignore[arg-type]
    path = fake_daemon({"/ping": (200, b"".join(events) + b"data: [DONE]\n\n")})
    done = ping(path, "--count", "3", "--interval", "0.5")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "from mac:1 via tcp://127.0.0.1 (same machine): time=0.50 ms",
        "from far:2 via tcp://100.64.0.7:7071 (tailnet): lost",
        "from mac:1 via tcp://127.0.0.1 (same machine): lost",
        "from far:2 via tcp://100.64.0.7:7071 (tailnet): time=3.00 ms",
        "from mac:1 via tcp://127.0.0.1 (same machine): time=0.70 ms",
        "",
        "mac:1: 3 sent, 2 answered, 33% lost; min/median/max = 0.50/0.60/0.70 ms",
        "far:2: 2 sent, 1 answered, 50% lost; min/median/max = 3.00/3.00/3.00 ms",
    ]
    [(method, resource, body)] = fake_daemon.requests  # type: ignore[attr-defined]
    assert (method, resource) == ("POST", "/ping")
    assert json.loads(body) == {"count": 3, "interval_s": 0.5}


def test_names_cannot_move_the_cursor(fake_daemon: Callable[..., Path]):
    """A peer calls itself what it likes; a terminal sees no control characters of it."""
    done = ping(fake_daemon({"/ping": (200, event(1, peer="mac\x1b[2J\n") + b"data: [DONE]\n\n")}))
    assert done.stdout.startswith("from mac?[2J? via tcp://127.0.0.1 (same machine): time=1.00 ms\n")
