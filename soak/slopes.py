"""Whether a process grows: least squares over what was sampled after a warm-up."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

HOUR = 3600.0
MB = 1e6


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at a time in seconds: bytes of memory that are its own, and open descriptors but for those of clients
    that are asking it."""

    at: float
    memory: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Slopes per hour, and what they were found in: so many samples over so many seconds, megabytes at both ends.

    descriptors_per_h: of the medians of the minutes, because a client may be about to connect when it is counted;
    descriptors: fewest and most.
    mb_by_minute, descriptors_by_minute: medians, the warm-up too, from which can be seen whether it grows or settles.
    """

    memory_mb_per_h: float
    descriptors_per_h: float
    samples: int
    seconds: float
    first_mb: float
    last_mb: float
    descriptors: tuple[int, int]
    mb_by_minute: tuple[float, ...] = ()
    descriptors_by_minute: tuple[int, ...] = ()

    def as_json(self) -> dict[str, object]:
        """For the report."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def sample(pid: int, at: float, saved: int = 0, asking: int = 0) -> Sample:
    """Look at a process of Linux. Private memory only: pages of files that others have mapped too come and go. Without
    the `saved` bytes that it says sequences hold which rest: they come and go with the load, by megabytes."""
    private = -saved
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            private += int(line.split()[1]) * 1024
    return Sample(at, private, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) - asking)


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
        slope(_usual(kept)) * HOUR,
        len(kept),
        kept[-1].at - kept[0].at,
        float(np.median([one.memory for one in kept[:tenth]])) / MB,
        float(np.median([one.memory for one in kept[-tenth:]])) / MB,
        (min(one.descriptors for one in kept), max(one.descriptors for one in kept)),
        _by_minute(samples),
        tuple(round(held) for _, held in _usual(samples)),
    )


def _usual(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Of each minute from the first sample on that is more than half there."""
    minutes: dict[int, list[Sample]] = {}
    for one in samples:
        minutes.setdefault(int((one.at - samples[0].at) // 60), []).append(one)
    whole = [held for held in minutes.values() if held[-1].at - held[0].at > 30]
    return [(held[0].at, float(np.median([one.descriptors for one in held]))) for held in whole]


def _by_minute(samples: Sequence[Sample]) -> tuple[float, ...]:
    minutes: dict[int, list[int]] = {}
    for one in samples:
        minutes.setdefault(int(one.at // 60), []).append(one.memory)
    return tuple(round(float(np.median(held)) / MB, 3) for _, held in sorted(minutes.items()))
