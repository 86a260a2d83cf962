"""The daemons under a service manager: what it hears, through a socket as systemd's is."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from manager import Manager
from processes import Mesh, generate, generating, until


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """A manager that the daemons of this test know; it wants to hear from them every second."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    with closing(Manager(tmp_path / "notify")) as made:
        yield made


@pytest.mark.fault("E8.92")
def test_ready_means_ready(mesh: Mesh, manager: Manager):
    """READY once a text can be generated, and not before; STOPPING at the first signal."""
    verifier = mesh.verifier("step_ms=1", ready=False)
    assert "127.0.0.1" in manager.until("READY")["STATUS"]
    assert generate(verifier, "a text", "--max-tokens", 5).code == 0
    assert any("EXTEND_TIMEOUT_USEC" in message for message in manager.heard[:-1])
    manager.drain()  # a socket keeps few messages for who does not read
    assert verifier.stop() == 0
    assert manager.until("STOPPING")["STOPPING"] == "1"


def test_a_drafter_is_ready_without_its_verifier(mesh: Mesh, manager: Manager):
    """Or it would be started over and over while the other machine is off."""
    drafter = mesh.drafter(engine="ngram", ready=False)
    manager.until("READY")
    assert generate(drafter, "a text").code == 69


@pytest.mark.fault("E8.91")
def test_heartbeats_in_a_long_step(mesh: Mesh, manager: Manager):
    """The engine takes longer than the manager's interval: the loop goes on, and says so."""
    verifier = mesh.verifier("steps_ms=1/8000", ready=False)
    manager.until("READY")
    running = generating(verifier, "a text", "--max-tokens", "1")
    until(lambda: verifier.live() == 1, "the step runs")
    manager.drain()
    manager.until("WATCHDOG")
    manager.until("WATCHDOG")
    assert verifier.live() == 1
    assert running.end().code == 0
