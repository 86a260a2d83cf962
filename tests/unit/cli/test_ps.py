"""`specmesh ps`: the daemons at the sockets where they usually are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specmesh.cli import main
from specmesh.cli import status as ps

STATS = {
    "role": "verifier",
    "version": "0.1.0",
    "pid": 4711,
    "uptime_s": 3725.4,
    "model": {"name": "big\x1b.gguf"},
    "sessions": {"live": 1, "opened": 7, "max": 8},
}
LOADING = {"role": "drafter", "pid": 4712, "loading": 0.4, "uptime_s": 3.0}


def run(monkeypatch: pytest.MonkeyPatch, paths: list[Path], *args: str) -> Result:
    monkeypatch.setattr(ps, "known_sockets", lambda: paths)
    return CliRunner().invoke(main, ["ps", *args])


def answering(stats: dict[str, object]) -> dict[str, tuple[int, bytes]]:
    return {"/stats": (200, json.dumps(stats).encode())}


def test_rows(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A row for each daemon, also for one that loads and one that hangs; nothing for a path without one."""
    paths = [fake_daemon(answering(STATS)), tmp_path / "none.sock", fake_daemon(answering(LOADING))]
    hung = fake_daemon({"/stats": None})
    done = run(monkeypatch, [*paths, hung])
    assert done.exit_code == 0, done.output
    heading, *rows = (line.split() for line in done.stdout.splitlines())
    assert heading == ["ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET"]
    assert rows[0] == ["verifier", "4711", "big?.gguf", "1/8", "1h", "2m", str(paths[0])]
    assert rows[1] == ["drafter", "4712", "loading", "40%", "-", "3s", str(paths[2])]
    assert rows[2] == [hung.stem, "-", "does", "not", "answer", "-", "-", str(hung)]


VERIFIER = {
    "drafter": "mac:7\x1b",
    "model": "small.gguf",
    "stuck": True,
    "round_trip_ms": {"p50": 5.04},
    "address": "a",
}
THERE = {"name": "spark:1", "model": "big.gguf", "address": "b", "load": {"sessions": 3, "max": 8}}
REFUSED = {"name": None, "refusal": "no way in", "address": "c", "load": {"sessions": 0, "max": None}}
AWAY = {"name": None, "refusal": None, "address": "d"}
DRAFTER = {"role": "drafter", "pid": 4713, "verifiers": [THERE | {"round_trip_ms": {"p50": 0.5}}, REFUSED, AWAY]}


def test_the_mesh(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """Each daemon's neighbours: a drafter's verifiers, also those that are not there, and a verifier's drafters."""
    paths = [fake_daemon(answering(STATS | {"peers": [VERIFIER]})), fake_daemon(answering(DRAFTER))]
    lines = run(monkeypatch, paths).stdout.splitlines()
    heading, *rows = lines[lines.index("") + 1 :]
    assert heading.split() == ["DAEMON", "NEIGHBOUR", "STATE", "MODEL", "SESSIONS", "ROUND", "TRIP", "ADDRESS"]
    assert [row.split() for row in rows] == [
        ["verifier", "4711", "mac:7?", "stuck", "small.gguf", "-", "5.04", "ms", "a"],
        ["drafter", "4713", "spark:1", "attached", "big.gguf", "3/8", "0.5", "ms", "b"],
        ["drafter", "4713", "-", "refused", "-", "-", "-", "c"],
        ["drafter", "4713", "-", "away", "-", "-", "-", "d"],
    ]
    told = json.loads(run(monkeypatch, paths, "--json").stdout)["daemons"][1]["neighbours"]
    assert (told[0]["sessions"], told[0]["places"], told[1]["state"]) == (3, 8, "refused")
