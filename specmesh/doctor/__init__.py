"""`specmesh doctor`: checks of what was found, and what to type where it is not right."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

import click

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Status(StrEnum):
    """warn: it works, but not as it could. fail: something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; fix: a command, None where all is well."""

    status: Status
    name: str
    found: str
    fix: str | None = None


ok, warn, fail = (partial(Check, status) for status in Status)


@dataclass(frozen=True, slots=True)
class Checks:
    """All checks, by group."""

    groups: Mapping[str, Sequence[Check]]

    @property
    def counts(self) -> Counter[Status]:
        return Counter(check.status for checks in self.groups.values() for check in checks)

    def as_json(self) -> dict[str, object]:
        told = [{"group": group} | asdict(check) for group, checks in self.groups.items() for check in checks]
        return {"schema_version": 1, "checks": told}

    def lines(self) -> list[str]:
        width = max(len(check.name) for checks in self.groups.values() for check in checks)
        lines: list[str] = []
        for group, checks in self.groups.items():
            lines.append(group)
            for check in checks:
                mark = click.style(f"{check.status:<4}", _COLOURS[check.status])
                lines.append(f"  {mark}  {check.name:<{width}}  {check.found}")
                if check.fix is not None:
                    lines.append(f"        {'':<{width}}  -> {check.fix}")
            lines.append("")
        return [*lines, ", ".join(f"{self.counts[status]} {status}" for status in Status)]
