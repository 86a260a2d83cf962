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

ENDS = 5
"""Descriptors are held against each other from the first and the last of so many parts of the time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at a time in seconds: bytes of memory that it has written to, and open descriptors but for
    those of clients that are asking it."""

    at: float
    memory: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Slopes per hour, and what they were found in: so many samples over so many seconds, megabytes at both ends.

    descriptors_per_h: from the median of the first fifth of it to that of the last, because a client may just have come
    or left, and a connection to the other daemon be there or not; descriptors: fewest and most.
    """

    memory_mb_per_h: float
    descriptors_per_h: float
    samples: int
    seconds: float
    first_mb: float
    last_mb: float
    descriptors: tuple[int, int]


def memory(pid: int) -> int:
    """Bytes that a process of Linux has written to, shared and swapped ones too; pages of files that it has only read
    count as its own or not as others come and go."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(WRITTEN))


def descriptors(pid: int, asking: int = 0) -> int:
    """A process's open descriptors, without those of as many connections as clients are `asking`."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) - asking


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through (x, y) with the least squares; 0 for fewer than two x."""
    x, y = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    if len(x) < 2 or np.ptp(x) == 0:
        return 0.0
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def growth(samples: Sequence[Sample], warm_up: float) -> Growth | None:
    """What the samples after `warm_up` seconds show; None where there are too few."""
    kept = [one for one in samples if one.at >= warm_up]
    if len(kept) < 3:
        return None
    tenth = max(len(kept) // 10, 1)
    return Growth(
        slope([(one.at, one.memory) for one in kept]) * HOUR / MB,
        _moved(kept) * HOUR,
        len(kept),
        kept[-1].at - kept[0].at,
        float(np.median([one.memory for one in kept[:tenth]])) / MB,
        float(np.median([one.memory for one in kept[-tenth:]])) / MB,
        (min(one.descriptors for one in kept), max(one.descriptors for one in kept)),
    )


def _moved(samples: Sequence[Sample]) -> float:
    """By how much a second the descriptors' median has moved from the first fifth of the samples to the last."""
    some = max(len(samples) // ENDS, 1)
    first, last = samples[:some], samples[-some:]
    moved = median_low(one.descriptors for one in last) - median_low(one.descriptors for one in first)
    return moved / (last[0].at - first[0].at)
