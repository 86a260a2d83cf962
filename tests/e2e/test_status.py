"""`specmesh ping`, `ps`, `doctor` and `stats` with the real daemons."""

import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from processes import PATIENCE, SPECMESH, Running, command, environment, runtime, until

DELAY = 0.03


@pytest.fixture(scope="module")
def found(shared):
    return runtime(shared.folder)


def test_from_both_sides(pair, role):
    """Each side pings the other: a line per answer, none lost, and a summary."""
    done = command("ping", count=4, interval=0.05, socket=pair[role].socket)
    assert done.code == 0, done.err
    *answers, _, _, summary = done.out.splitlines()
    other = pair["drafter" if role == "verifier" else "verifier"]
    answer = re.compile(rf".*:{other.pid} via tcp://127\.0\.0\.1.*: time=")
    assert [bool(answer.match(line)) for line in answers] == [True] * 4
    assert summary.split()[2:5] == ["4", "4", "0.0"]


def test_the_measured_time_is_that_of_the_way(mesh, proxy):
    """From both sides it is at least a proxy's delay, and less than the command's time."""
    verifier = mesh.verifier("step_ms=4")
    drafter = mesh.drafter(port=proxy(mesh.port, delay=DELAY).port)
    for daemon in (verifier, drafter):
        began = time.monotonic()
        done = command("ping", count=5, interval=0.02, json=True, socket=daemon.socket)
        [peer] = done.json["peers"]
        assert peer["answered"] == 5
        assert 2 * DELAY <= peer["min_ms"] / 1e3 < (time.monotonic() - began) / 5


def test_ps(pair, found):
    shown = command("ps", json=True, env=found).json["daemons"]
    for row, (role, daemon) in zip(shown, pair.items(), strict=True):
        assert (row["role"], row["pid"], row["state"]) == (role, daemon.pid, "running")
    heading, *rows = command("ps", env=found).out.splitlines()
    assert heading.split()[:4] == ["role", "pid", "state", "model"]
    assert len(rows) == len(shown)


def test_ps_of_nothing(tmp_path):
    command("ps", env=runtime(tmp_path)).refused(69)


def checks(env):
    done = command("doctor", json=True, env=env)
    assert done.code in (0, 1), done.err
    assert done.json["schema_version"] == 1
    found = {check["name"]: check for check in done.json["checks"]}
    for check in found.values():
        assert (check["fix"] is None) == (check["status"] == "ok")
    statuses = {check["status"] for check in found.values()}
    assert done.code == int("fail" in statuses)
    return found


def test_doctor(pair, found):
    until(lambda: pair["drafter"].verifier().get("name"), "the drafter knows its verifier")
    told = checks(found)
    for name in (*pair, "network", "specmesh"):
        assert told[name]["status"] == "ok"
    for role, daemon in pair.items():
        assert f"pid {daemon.pid}" in told[role]["found"]


def test_doctor_of_what_is_wrong(mesh):
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
    assert "refused" in told["network"]["found"]
    names = ("verifier settings", "drafter settings", "network", "daemons")
    assert [told[name]["status"] for name in names] == ["fail", "ok", "fail", "warn"]


WATCH = ("stats", "--watch", "--interval", 0.1, "--socket")


def test_watch_into_a_pipe_that_closes(pair):
    """Until then it prints lines at once, each time."""
    watch = Running(*WATCH, pair["verifier"].socket)
    watch.line("verifier")
    watch.process.stdout.close()
    assert watch.process.wait(PATIENCE) == 128 + signal.SIGPIPE
    assert watch.process.stderr.read() == b""
    watch.process.stderr.close()


def test_watch_on_a_terminal(pair):
    """It shows a screen until Ctrl-C, and exits with 130; NO_COLOR keeps it without colours."""
    ours, theirs = pty.openpty()
    words = [*SPECMESH, "stats", "--watch", "--socket", str(pair["verifier"].socket)]
    env = environment({"TERM": "xterm", "NO_COLOR": "1"})
    process = subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=theirs, env=env)
    os.close(theirs)
    seen = b""
    while b"sessions" not in seen:
        seen += os.read(ours, 65536)
    assert b"sim-target" in seen
    assert not re.search(rb"\x1b\[[\d;]*3\dm", seen)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    os.close(ours)
