"""What a service manager hears, through a socket as systemd's is."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest

from specmesh.daemons.runtime.notify import STUCK, Notifier, Watchdog

PATIENCE = 30.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(PATIENCE)
        listening.bind(str(tmp_path / "notify"))
        yield listening


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def heard(manager: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


def test_states(manager: socket.socket):
    """Loading asks for time, ready and stopping are said once each."""
    notifier = Notifier(environment(manager))
    notifier.reloading(1.5)
    notifier.reloaded()  # not yet ready, and not by that
    notifier.loading(0.43)
    assert heard(manager) == {"STATUS": "loading 43%", "EXTEND_TIMEOUT_USEC": "300000000"}
    notifier.loading(0.0, 1_230_000_000)
    assert heard(manager) == {"STATUS": "downloading, 1230 MB so far", "EXTEND_TIMEOUT_USEC": "300000000"}
    notifier.ready("a model")
    assert heard(manager) == {"READY": "1", "STATUS": "a model"}
    notifier.reloading(2.5)
    assert heard(manager) == {"RELOADING": "1", "MONOTONIC_USEC": "2500000"}
    notifier.reloaded()
    assert heard(manager) == {"READY": "1"}
    notifier.heartbeat()  # nobody waits for any
    notifier.stopping(38.0)
    assert heard(manager) == {"STOPPING": "1", "STATUS": "stopping", "EXTEND_TIMEOUT_USEC": "38000000"}
    notifier.close()
    notifier.ready("too late")


def test_abstract_address():
    """systemd in containers uses names that are no files."""
    name = f"@specmesh-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(PATIENCE)
        listening.bind("\0" + name[1:])
        with closing(Notifier({"NOTIFY_SOCKET": name})) as notifier:
            notifier.ready("here")
            assert heard(listening)["READY"] == "1"


@pytest.mark.parametrize("address", ["", "/no/such/socket", "relative", "vsock:2:1"])
def test_nobody_listens(address: str):
    """A daemon does not depend on who looks after it."""
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    notifier.loading(0.5)
    notifier.ready("ready")
    notifier.heartbeat()
    notifier.close()
    notifier.close()


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval(manager: socket.socket, told: dict[str, str], seconds: float | None):
    """As the environment says, where it means this process."""
    with closing(Notifier(environment(manager, **told))) as notifier:
        assert notifier.watchdog == seconds
    assert Notifier(told).watchdog is None


@pytest.mark.fault("E6.63")
@pytest.mark.fault("E8.91")
def test_a_stuck_process_ends_itself():
    """Without a manager that watches: after so many checks in a row without progress, and not before."""
    ended: SimpleQueue[int] = SimpleQueue()
    told = iter([1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3])
    left = [0]

    def progress() -> int:
        left[0] += 1
        return next(told)

    watchdog = Watchdog(progress, Notifier({}), interval=0.001, checks=3, end=ended.put)
    assert ended.get(timeout=PATIENCE) == STUCK
    assert left[0] == 8
    watchdog.close()
