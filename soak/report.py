"""What a soak found of a pair: lines, and what should not be."""

from collections import Counter
from dataclasses import dataclass, field

from soak.slopes import Growth
from soak.truth import Verdict

JUDGED_S = 600.0
"""Seconds of samples from which on a slope fails a soak: in less of them its noise is larger than its bound."""

MEMORY_MB_PER_H, DESCRIPTORS_PER_H = 1.0, 1.0
"""Bounds of the slopes."""


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
            and (one.memory_mb_per_h > MEMORY_MB_PER_H or abs(one.descriptors_per_h) > DESCRIPTORS_PER_H)
        ]
        left = [f"{self.name}: {self.orphans} sessions live on without a client"] if self.orphans else []
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
