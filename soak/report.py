"""The findings of a soak for one pair, and the growth of its processes after a warm-up."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

import numpy as np

from soak.truth import Verdict
from specmesh.cli.options import counted

JUDGED_S = 600.0
"""Minimum seconds of samples for a slope to count: in less its noise is larger than its bound."""

MEMORY_MB_PER_H = 1.0  # bound of the slope
DESCRIPTORS_PER_H = 1.0  # likewise

HOUR = 3600.0
MB = 1e6

WRITTEN = ("Anonymous:", "Pss_Shmem:", "Swap:")
"""Linux's lines for memory that was written to."""

MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ (?P<rights>\S+) \S+ \S+ \d+ *(?P<name>.*)")
"""Linux's line for a mapping."""

LARGE = 2**20
"""Bytes from which on a mapping counts whole.

A model's cells and its scratch memory are reserved as it loads, and written to as texts come by.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one time."""

    at: float  # seconds
    memory: int  # bytes that it wrote to or reserved, without offloaded sequences
    descriptors: int  # that are open, without those of its clients


@dataclass(frozen=True, slots=True)
class Growth:
    """The megabytes and descriptors that a process gains in an hour."""

    memory_mb_per_h: float
    descriptors_per_h: float
    seconds: float  # of the measurement

    def fails(self) -> bool:
        """Return True for growth beyond a bound that was measured for long enough."""
        memory = self.memory_mb_per_h > MEMORY_MB_PER_H
        descriptors = abs(self.descriptors_per_h) > DESCRIPTORS_PER_H
        return self.seconds >= JUDGED_S and (memory or descriptors)


def sampled(pid: int, now: float, asking: int, offloaded: int) -> Sample:
    """Return a sample of a process on Linux.

    Its memory is what it wrote to, shared and swapped memory included, and what it has reserved.
    Linux counts pages of files that it only read as its own or not, depending on other processes.
    """
    memory = untouched(Path(f"/proc/{pid}/smaps").read_text()) - offloaded
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(WRITTEN):
            memory += int(line.split()[1]) * 1024
    descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    return Sample(now, memory, len(descriptors) - asking)


def untouched(smaps: str) -> int:
    """Return the bytes of large mappings that are reserved and were not written to yet.

    smaps: /proc/PID/smaps. Mappings of files and those that nobody may write to do not count.
    """
    total = 0
    size = 0
    is_reserved = False
    for line in smaps.splitlines():
        mapping = MAPPING.fullmatch(line)
        if mapping is not None:
            # The heap grows by itself, and is no reservation.
            is_reserved = "w" in mapping["rights"] and not mapping["name"]
            size = 0
        elif line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith(("Anonymous:", "Swap:")) and is_reserved and size >= LARGE:
            written = int(line.split()[1]) * 1024
            total += size - written if line.startswith("Anonymous:") else -written
    return total


def growth(samples: Sequence[Sample]) -> Growth | None:
    """Return the growth that samples show, None for fewer than three.

    Descriptors are compared by the medians of the first and the last fifth: a client may just have
    connected or left.
    """
    if len(samples) < 3:
        return None
    times = [sample.at for sample in samples]
    memory_per_s, _ = np.polyfit(times, [sample.memory for sample in samples], 1)
    fifth = max(len(samples) // 5, 1)
    moved = _descriptors(samples[-fifth:]) - _descriptors(samples[:fifth])
    return Growth(
        float(memory_per_s) * HOUR / MB,
        moved * HOUR / (times[-fifth] - times[0]),
        times[-1] - times[0],
    )


def _descriptors(samples: Sequence[Sample]) -> int:
    return median_low(sample.descriptors for sample in samples)


@dataclass(kw_only=True, slots=True)
class PairReport:
    """The verdicts, faults and growth of one pair."""

    name: str
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    orphans: int = 0  # sessions that were left at its end
    growth: dict[str, Growth] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # other failures, a line each

    def failures(self) -> list[str]:
        """Return a line for each failure."""
        found = list(self.wrong)
        if self.orphans:
            found.append(f"{self.name}: {counted(self.orphans, 'session')} left without a client")
        for role, growth in self.growth.items():
            if growth.fails():
                found.append(f"{self.name}: the {role} grows")
        return found

    def lines(self) -> list[str]:
        """Return the report for people."""
        generations = counted(self.verdicts.total(), "generation")
        verdicts = _counts(self.verdicts)
        found = [
            f"{self.name}: {generations}, {counted(self.tokens, 'token')}: {verdicts}",
            f"  {counted(self.faults.total(), 'fault')}: {_counts(self.faults)}",
        ]
        for role, growth in self.growth.items():
            memory = f"{growth.memory_mb_per_h:+.2f} MB/h"
            descriptors = f"{growth.descriptors_per_h:+.2f} descriptors/h"
            minutes = growth.seconds / 60
            found.append(f"  {role}: {memory}, {descriptors} in {minutes:.1f} minutes")
        found += [f"  FAILED: {line}" for line in self.failures()]
        return found


def _counts(counter: Mapping[Verdict, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))
