"""How much other programs ran while a benchmark did: on a shared machine a number means little without it."""

import os
import resource
import time
from pathlib import Path


def _busy() -> float:
    """Seconds that all cores have worked since the start of the machine, waiting for disks left out."""
    user, nice, system, _idle, _disk, interrupts, soft, *_ = (
        Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return sum(map(int, (user, nice, system, interrupts, soft))) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Seconds that this process and its children that have ended have worked."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Foreign:
    """Counts from construction on."""

    def __init__(self) -> None:
        self._begun, self._busy, self._own = time.monotonic(), _busy(), _own()

    def cores(self) -> float:
        """Cores that other programs kept busy on average, right once all processes started here have ended."""
        others = _busy() - self._busy - (_own() - self._own)
        return round(max(others, 0.0) / (time.monotonic() - self._begun), 2)
