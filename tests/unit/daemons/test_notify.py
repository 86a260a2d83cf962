"""A process that makes no progress, and nobody who watches it."""

from queue import SimpleQueue

import pytest
from harness import PATIENCE

from specmesh.daemons.runtime.process import STUCK, Notifier, watchdog


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
