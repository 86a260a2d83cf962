"""A process that makes no progress, and nobody who watches it."""

import resource
import socket
import tempfile
from pathlib import Path
from queue import SimpleQueue

import pytest

from specmesh.daemons.runtime.process import STUCK, Notifier, watchdog

PATIENCE = 30.0


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

    with watchdog(progress, Notifier({}), interval=0.001, checks=3, end=ended.put):
        assert ended.get(timeout=PATIENCE) == STUCK
        assert left[0] == 8


def test_a_heartbeat_needs_no_descriptor():
    """A process that has used up its descriptors works, and its manager must hear so."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = str(Path(folder) / "notify")  # a socket's path has 103 bytes
        manager.bind(path)
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000000"})
        assert notifier.socket is not None
        with notifier.socket:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            try:
                notifier.heartbeat()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert manager.recv(100, socket.MSG_DONTWAIT) == b"WATCHDOG=1"
