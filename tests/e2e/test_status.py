"""`specmesh ping`, `ps`, `doctor` and `stats` with the real daemons."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import (
    PATIENCE,
    SPECMESH,
    Daemon,
    Mesh,
    Running,
    command,
    environment,
    runtime,
    until,
)
from proxy import Proxy

DELAY = 0.03


@pytest.fixture(scope="module")
def found(shared: Mesh) -> dict[str, str]:
    return runtime(shared.folder)


def test_from_both_sides(pair: dict[str, Daemon], role: str):
    """Each side pings the other: a line per answer, none lost, and a summary."""
    done = command("ping", "--count", 4, "--interval", 0.05, "--socket", pair[role].socket)
    assert done.code == 0, done.err
    *answers, _, _, summary = done.out.splitlines()
    other = pair["drafter" if role == "verifier" else "verifier"]
    assert len(answers) == 4
    assert all(f":{other.pid} via tcp://127.0.0.1" in line for line in answers)
    assert all(": time=" in line for line in answers)
    assert summary.split()[2:5] == ["4", "4", "0.0"]


def test_the_measured_time_is_that_of_the_way(mesh: Mesh, proxy: Callable[..., Proxy]):
    """Through a proxy that delays each way: from both sides the time is at least that, and less than the command's."""
    verifier = mesh.verifier("step_ms=4")
    drafter = mesh.drafter(port=proxy(mesh.port, DELAY).port)
    for daemon in (verifier, drafter):
        began = time.monotonic()
        done = command(
            "ping", "--count", 5, "--interval", 0.02, "--json", "--socket", daemon.socket
        )
        [peer] = done.json["peers"]
        assert peer["answered"] == 5
        assert 2 * DELAY <= peer["min_ms"] / 1e3 < (time.monotonic() - began) / 5


def test_ps(pair: dict[str, Daemon], found: dict[str, str], tmp_path: Path):
    told = {one["role"]: one for one in command("ps", "--json", env=found).json["daemons"]}
    assert {role: told[role]["pid"] for role in told} == {
        role: daemon.pid for role, daemon in pair.items()
    }
    assert told["verifier"]["max_sessions"] == 8
    assert all(one["state"] == "running" for one in told.values())
    heading, *rows = command("ps", env=found).out.splitlines()
    assert heading.split()[:4] == ["role", "pid", "state", "model"]
    assert len(rows) == 2
    command("ps", env=runtime(tmp_path)).refused(69)


def checks(env: dict[str, str]) -> dict[str, dict[str, str]]:
    done = command("doctor", "--json", env=env)
    assert done.code in (0, 1), done.err
    assert done.json["schema_version"] == 1
    told: list[dict[str, str]] = done.json["checks"]
    assert (done.code == 1) == any(one["status"] == "fail" for one in told)
    assert all((one["fix"] is None) == (one["status"] == "ok") for one in told)
    return {one["name"]: one for one in told}


def test_doctor(pair: dict[str, Daemon], found: dict[str, str]):
    until(
        lambda: pair["drafter"].verifier().get("name"), "the drafter's snapshot knows its verifier"
    )
    told = checks(found)
    assert {told[name]["status"] for name in (*pair, "network", "specmesh")} == {"ok"}, told
    for role, daemon in pair.items():
        assert f"pid {daemon.pid}" in told[role]["found"]


def test_doctor_of_what_is_wrong(mesh: Mesh):
    """A damaged file of settings, a verifier that refuses connections: each with its fix."""
    env = runtime(mesh.folder)
    config = mesh.folder / "config" / "specmesh"
    if sys.platform == "darwin":
        config = mesh.folder / "Library/Application Support/specmesh"
    config.mkdir(parents=True, exist_ok=True)
    (config / "verifier.toml").write_text("ctx = 4096\nbindd = 4\n")
    (config / "drafter.toml").write_text(f'connect = "{mesh.address}"\n')
    told = checks(env | {"XDG_CONFIG_HOME": str(mesh.folder / "config")})
    assert f"{config / 'verifier.toml'}: unknown key bindd" in told["verifier settings"]["found"]
    assert (told["verifier settings"]["status"], told["drafter settings"]["status"]) == (
        "fail",
        "ok",
    )
    assert "refused" in told["network"]["found"]
    assert (told["network"]["status"], told["daemons"]["status"]) == ("fail", "warn")


def test_watch_into_a_pipe(pair: dict[str, Daemon]):
    """stats --watch prints a line each time, at once; Ctrl-C ends it with 130, a reader that leaves without a word."""
    words = ("stats", "--watch", "--interval", 0.1, "--socket")
    for role, daemon in pair.items():
        watch = Running(*words, daemon.socket)
        for _ in range(3):
            watch.line(role)
        watch.process.send_signal(signal.SIGINT)
        done = watch.end()
        assert (done.code, done.err) == (130, "")
    watch = Running(*words, pair["verifier"].socket)
    watch.line("verifier")
    watch.process.stdout.close()
    assert (watch.process.wait(PATIENCE), watch.process.stderr.read()) == (
        128 + signal.SIGPIPE,
        b"",
    )
    watch.process.stderr.close()


def test_watch_on_a_terminal(pair: dict[str, Daemon]):
    """stats --watch on a terminal shows a screen until Ctrl-C, then exits 130; NO_COLOR keeps it without colours."""
    ours, theirs = pty.openpty()
    words = [*SPECMESH, "stats", "--watch", "--socket", str(pair["verifier"].socket)]
    process = subprocess.Popen(
        words,
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env=environment({"TERM": "xterm", "NO_COLOR": "1"}),
    )
    os.close(theirs)
    seen = b""
    while b"sessions" not in seen:
        seen += os.read(ours, 65536)
    assert b"sim-target" in seen
    assert not re.search(rb"\x1b\[[\d;]*3\dm", seen)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    os.close(ours)
