"""`specmesh doctor`: checks of what was found, and what to type where it is not right."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


class Status(StrEnum):
    """warn: it works, but not as it could. fail: something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; fix: a command, None where all is well."""

    group: str
    name: str
    status: Status
    found: str
    fix: str | None = None


def ok(group: str, name: str, found: str) -> Check:
    return Check(group, name, Status.OK, found)


def warn(group: str, name: str, found: str, fix: str) -> Check:
    return Check(group, name, Status.WARN, found, fix)


def fail(group: str, name: str, found: str, fix: str) -> Check:
    return Check(group, name, Status.FAIL, found, fix)


@dataclass(frozen=True, slots=True)
class Checks:
    """All checks; colour: whether to colour their lines."""

    checks: Sequence[Check]
    colour: bool = False

    @property
    def failed(self) -> bool:
        return any(check.status is Status.FAIL for check in self.checks)

    def as_json(self) -> dict[str, object]:
        return {"schema_version": 1, "checks": [asdict(check) for check in self.checks]}

    def lines(self) -> list[str]:
        width = max((len(check.name) for check in self.checks), default=0)
        lines: list[str] = []
        for group in dict.fromkeys(check.group for check in self.checks):
            lines += ["", group] if lines else [group]
            for check in (check for check in self.checks if check.group == group):
                word = f"{check.status:<4}"
                mark = f"\x1b[{_COLOURS[check.status]}m{word}\x1b[0m" if self.colour else word
                lines.append(f"  {mark}  {check.name:<{width}}  {check.found}")
                if check.fix is not None:
                    lines.append(f"        {'':<{width}}  -> {check.fix}")
        counts = Counter(check.status for check in self.checks)
        return [*lines, "", ", ".join(f"{counts[status]} {status}" for status in Status)]
