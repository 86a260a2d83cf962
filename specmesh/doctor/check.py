"""A check: what was found, whether it is right, and what to type where it is not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

SCHEMA_VERSION = 1

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


class Status(StrEnum):
    """warn: it works, but not as it could. fail: something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's; `fix` is None where all is well."""

    group: str
    name: str
    status: Status
    found: str
    fix: str | None = None


def ok(group: str, name: str, found: str) -> Check:
    """All is well."""
    return Check(group, name, Status.OK, found)


def warn(group: str, name: str, found: str, fix: str) -> Check:
    """It works, but not as it could."""
    return Check(group, name, Status.WARN, found, fix)


def fail(group: str, name: str, found: str, fix: str) -> Check:
    """Something will not work."""
    return Check(group, name, Status.FAIL, found, fix)


@dataclass(frozen=True, slots=True)
class Checks:
    """All checks; colour: whether the lines have some."""

    checks: Sequence[Check]
    colour: bool = False

    @property
    def failed(self) -> bool:
        """Whether any check did."""
        return any(check.status is Status.FAIL for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """What --json prints."""
        return {"schema_version": SCHEMA_VERSION, "checks": [asdict(check) for check in self.checks]}

    def lines(self) -> list[str]:
        """The checks by group, then how many there are of each status."""
        width = max((len(check.name) for check in self.checks), default=0)
        told: list[str] = []
        for group in dict.fromkeys(check.group for check in self.checks):
            told += ["", group] if told else [group]
            for check in (check for check in self.checks if check.group == group):
                told.append(f"  {self._mark(check.status)}  {check.name:<{width}}  {check.found}")
                if check.fix is not None:
                    told.append(f"        {'':<{width}}  -> {check.fix}")
        counts = Counter(check.status for check in self.checks)
        return [*told, "", ", ".join(f"{counts[status]} {status}" for status in Status)]

    def _mark(self, status: Status) -> str:
        word = f"{status:<4}"
        return f"\x1b[{_COLOURS[status]}m{word}\x1b[0m" if self.colour else word
