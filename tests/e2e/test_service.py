"""The daemons under a service manager: its notifications, through a socket as systemd's is.

A service lives from `install` to `uninstall` in a home of its own; systemctl is a script that notes
its arguments.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.ports import free_port
from managers import Manager
from processes import PATIENCE, command, environment, generate, generating, sim_text, until, writes

from specmesh.client import Client

fault = pytest.mark.fault
SYSTEMD = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A manager that the daemons of this test know; it expects a heartbeat every second."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    with Manager(tmp_path / "notify") as made:
        yield made


@fault("E8.92")
def test_ready_means_ready(mesh, manager):
    """READY once a text can be generated, and not before; STOPPING at the first signal."""
    verifier = mesh.verifier("step_ms=1", ready=False)
    assert "127.0.0.1" in manager.until("READY")["STATUS"]
    writes(verifier, "a text", 5)
    assert any("EXTEND_TIMEOUT_USEC" in message for message in manager.heard[:-1])
    manager.drain()  # a socket keeps few messages for who does not read
    assert verifier.stop() == 0
    assert manager.until("STOPPING")["STOPPING"] == "1"


def test_a_drafter_is_ready_without_its_verifier(mesh, manager):
    """Or it would be started over and over while the other machine is off."""
    drafter = mesh.drafter(engine="ngram", ready=False)
    manager.until("READY")
    assert generate(drafter, "a text").code == 69


@fault("E8.91")
def test_heartbeats_in_a_long_step(mesh, manager):
    """The engine takes longer than the manager's interval: the loop goes on, with heartbeats."""
    verifier = mesh.verifier("steps_ms=1/8000", ready=False)
    manager.until("READY")
    running = generating(verifier, "a text", max_tokens="1")
    until(lambda: verifier.live() == 1, "the step runs")
    manager.drain()
    manager.until("WATCHDOG")
    manager.until("WATCHDOG")
    assert verifier.live() == 1
    running.process.kill()
    running.end()


SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> told
[ ! -e broken ] || { echo "no bus" >&2; exit 1; }
"""


class Home:
    """A user's home, with a systemctl."""

    def __init__(self, folder):
        for name in ("bin", "run"):
            (folder / name).mkdir(parents=True)
        script = folder / "bin/systemctl"
        script.write_text(SYSTEMCTL)
        script.chmod(0o755)
        self.env = {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "XDG_CACHE_HOME": str(folder / ".cache"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        }
        self.folder = folder
        self.unit = folder / ".config/systemd/user/specmesh-verifier.service"

    def specmesh(self, *args):
        return command(*args, env=self.env)

    @contextmanager
    def started(self):
        """Do with the unit as systemd does: run ExecStart, wait for READY, and end it."""
        _, _, line = self.unit.read_text().partition("ExecStart=")
        line = line.partition("\n")[0].replace("%%", "%").replace("$$", "$")
        path = self.folder / "notify"
        env = environment(self.env | {"NOTIFY_SOCKET": str(path)})
        with Manager(path) as manager:
            process = subprocess.Popen(shlex.split(line), env=env)
            try:
                manager.until("READY")
                yield process
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()
        path.unlink()

    def files(self):
        """Return all files but the test's own, caches, and those that end with the login."""
        found = set[Path]()
        for path in self.folder.rglob("*"):
            top = path.relative_to(self.folder).parts[0]
            if not path.is_dir() and top not in {"bin", "run", ".cache"}:
                found.add(path)
        return found

    def told(self):
        return (self.folder / "bin/told").read_text().splitlines()


@pytest.fixture
def home():
    """A home whose name has spaces and letters, in a short folder, as a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="sm-") as short:
        yield Home(Path(short) / "Büro von Ada")


@SYSTEMD
@fault("E8.93")
def test_from_install_to_uninstall(home):
    """It is installed, run by its own line, asked, upgraded, stopped and uninstalled."""
    assert home.specmesh("service", "install", "verifier").code == 0
    settings = home.folder / ".config/specmesh/verifier.toml"
    assert home.files() == {home.unit, settings}
    assert home.told() == ["--user daemon-reload", "--user enable specmesh-verifier"]

    bind = f"tcp://127.0.0.1:{free_port()}"
    settings.write_text(f'engine = "sim"\nmodel = "step_ms=1"\nbind = "{bind}"\n')
    with home.started():
        asked = home.specmesh("generate", "once", "--max-tokens", 20)
        assert (asked.code, asked.out) == (0, sim_text("once", 20) + "\n")
        before = home.unit.read_text()
        older = before.replace("WatchdogSec=60", "WatchdogSec=6")
        home.unit.write_text(older)
        assert home.specmesh("service", "install", "verifier").code == 0
        assert home.unit.read_text() == before
        assert 'engine = "sim"' in settings.read_text()

    socket_path = home.folder / "run/specmesh/verifier.sock"
    with home.started():
        until(lambda: Client(socket_path).get("/health")["status"] == "ok", "ready again")
    assert not socket_path.exists()

    assert home.specmesh("service", "uninstall", "verifier").code == 0
    assert home.files() == set()
    ended = [line.split()[1] for line in home.told()[-4:-1]]
    assert ended == ["stop", "reset-failed", "disable"]


@SYSTEMD
def test_an_install_that_failed_can_be_repeated(home):
    """A notification that the manager missed is sent again."""
    broken = home.folder / "bin/broken"
    broken.touch()
    failed = home.specmesh("service", "install", "verifier")
    assert failed.code == 1
    assert "no bus" in failed.err
    assert "daemon-reload failed" in failed.err
    broken.unlink()
    assert home.specmesh("service", "install", "verifier").code == 0
    assert home.told()[-2:] == ["--user daemon-reload", "--user enable specmesh-verifier"]
    broken.touch()
    removed = home.specmesh("service", "uninstall", "verifier")
    assert (removed.code, home.files()) == (0, set())
    assert "no bus" in removed.err
