"""What a soak found of a pair: lines, and what should not be; whether its processes grow, after a warm-up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

import numpy as np

from soak.truth import Verdict

JUDGED_S = 600.0
"""Seconds of samples from which on a slope fails a soak: in less of them its noise is larger than its bound."""

MEMORY_MB_PER_H, DESCRIPTORS_PER_H = 1.0, 1.0
"""Bounds of the slopes."""

HOUR = 3600.0
MB = 1e6

WRITTEN = ("Anonymous:", "Pss_Shmem:", "Swap:")
"""What Linux tells of memory that was written to."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at a time in seconds: bytes of memory that it has written to but for offloaded sequences, and open
    descriptors but for those of clients that are asking it."""

    at: float
    memory: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Megabytes and descriptors that a process gains in an hour, as found in so many seconds. Descriptors by the
    medians of the first and the last fifth: a client may just have come or left."""

    memory_mb_per_h: float
    descriptors_per_h: float
    seconds: float


def sampled(pid: int, now: float, asking: int, offloaded: int) -> Sample:
    """A process of Linux: memory that it has written to, shared and swapped too. Pages of files that it has only read
    count as its own or not as others come and go."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    memory = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(WRITTEN))
    return Sample(now, memory - offloaded, len([*Path(f"/proc/{pid}/fd").iterdir()]) - asking)


def growth(samples: Sequence[Sample]) -> Growth | None:
    """What the samples show; None where there are too few."""
    if len(samples) < 3:
        return None
    memory_per_s, _ = np.polyfit([one.at for one in samples], [one.memory for one in samples], 1)
    fifth = max(len(samples) // 5, 1)
    first, last = samples[:fifth], samples[-fifth:]
    moved = median_low(one.descriptors for one in last) - median_low(
        one.descriptors for one in first
    )
    return Growth(
        float(memory_per_s) * HOUR / MB,
        moved * HOUR / (last[0].at - first[0].at),
        samples[-1].at - samples[0].at,
    )


@dataclass(slots=True)
class PairReport:
    """One pair: what its clients got, what befell it, sessions left at its end, and lines for what should not be."""

    name: str
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    orphans: int = 0
    growth: dict[str, Growth] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def failures(self) -> list[str]:
        grew = [
            f"{self.name}: the {role} grows"
            for role, one in self.growth.items()
            if one.seconds >= JUDGED_S
            and (
                one.memory_mb_per_h > MEMORY_MB_PER_H
                or abs(one.descriptors_per_h) > DESCRIPTORS_PER_H
            )
        ]
        left = (
            [f"{self.name}: {self.orphans} sessions live on without a client"]
            if self.orphans
            else []
        )
        return [*self.wrong, *left, *grew]

    def lines(self) -> list[str]:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.most_common())
        befell = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        grew = [
            f"  {role}: {one.memory_mb_per_h:+.2f} MB/h, {one.descriptors_per_h:+.2f} descriptors/h "
            f"in {one.seconds / 60:.1f} minutes"
            for role, one in self.growth.items()
        ]
        return [
            f"{self.name}: {self.verdicts.total()} generations, {self.tokens} tokens: {verdicts}",
            f"  {self.faults.total()} faults: {befell}",
            *grew,
            *(f"  FAILED: {line}" for line in self.failures()),
        ]
