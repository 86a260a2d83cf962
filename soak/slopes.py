"""Whether a process grows, from what was sampled of it after a warm-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import numpy as np

HOUR = 3600.0
MB = 1e6

WRITTEN = ("Anonymous:", "Pss_Shmem:", "Swap:")
"""What Linux tells of memory that was written to."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at a time in seconds: bytes of memory that it has written to, and open descriptors but for
    those of clients that are asking it."""

    at: float
    memory: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Megabytes and descriptors that a process gains in an hour, as found in so many seconds.

    Descriptors by the medians of the first and the last fifth: a client may just have come or left.
    """

    memory_mb_per_h: float
    descriptors_per_h: float
    seconds: float


def memory(pid: int) -> int:
    """Bytes that a process of Linux has written to, shared and swapped ones too; pages of files that it has only read
    count as its own or not as others come and go."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(WRITTEN))


def descriptors(pid: int, asking: int = 0) -> int:
    """A process's open descriptors, without those of as many connections as clients are `asking`."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) - asking


def growth(samples: Sequence[Sample]) -> Growth | None:
    """What the samples show; None where there are too few."""
    if len(samples) < 3:
        return None
    memory_per_s, _ = np.polyfit([one.at for one in samples], [one.memory for one in samples], 1)
    fifth = max(len(samples) // 5, 1)
    first, last = samples[:fifth], samples[-fifth:]
    moved = median_low(one.descriptors for one in last) - median_low(one.descriptors for one in first)
    return Growth(
        float(memory_per_s) * HOUR / MB, moved * HOUR / (last[0].at - first[0].at), samples[-1].at - samples[0].at
    )
