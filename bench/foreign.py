"""The work of other programs during a benchmark, without which its numbers mean little."""

import os
import resource
import time
from pathlib import Path

WORKING = (0, 1, 2, 5, 6)
"""Columns of /proc/stat: user, nice, system, interrupts and soft interrupts; not waiting."""


def _busy() -> float:
    """Return the seconds that all cores have worked since the start of the machine."""
    first, *_ = Path("/proc/stat").read_text().splitlines()
    _, *total = first.split()
    ticks = sum(int(total[column]) for column in WORKING)
    return ticks / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Return the seconds that this process and its ended children have worked."""
    seconds = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        seconds += used.ru_utime + used.ru_stime
    return seconds


class Foreign:
    """Counts from construction on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._busy = _busy()
        self._own = _own()

    def cores(self) -> float:
        """Return the mean number of cores that other programs kept busy.

        It is right once all processes that were started here have ended.
        """
        own = _own() - self._own
        others = max(_busy() - self._busy - own, 0.0)
        return round(others / (time.monotonic() - self._begun), 2)
