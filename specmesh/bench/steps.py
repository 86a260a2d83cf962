"""`specmesh bench steps`: what a running verifier's steps cost by their width, as it measured them."""

import json
import math
from pathlib import Path
from typing import Any

from specmesh.client import Json
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.errors import Busy, ConfigError

MEASUREMENTS = 3  # that a median of a table counts for: a verifier takes so many before its first session

StepTables = dict[int, dict[int, float]]
"""Milliseconds by rows, by the least context of each table in tokens."""


def report(snapshot: Json) -> dict[str, Any]:
    """Return what --json prints of a verifier's /stats. Raise Busy while it loads, ConfigError at a drafter."""
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model: try again in a moment")
    if "steps_ms" not in snapshot:
        raise ConfigError("a drafter answers at this socket: give the verifier's with --socket PATH")
    return {"schema_version": 1, "model": snapshot["model"], "steps_ms": snapshot["steps_ms"]}


def tables(told: dict[str, Any]) -> StepTables:
    """Return the tables of a `report`."""
    return {int(least): {int(rows): float(ms) for rows, ms in of.items()} for least, of in told["steps_ms"].items()}


def table_of(told: dict[str, Any]) -> list[dict[str, object]]:
    """Return a `report` as rows of one table. ratio: to the time of one row in such a context."""
    return [
        {"context": least, "rows": rows, "ms": f"{ms:.4f}", "ratio": f"{ms / of.get(1, math.nan):.2f}"}
        for least, of in sorted(tables(told).items())
        for rows, ms in sorted(of.items())
    ]


def costs_of(found: StepTables) -> StepCosts:
    """What a verifier would expect of steps."""
    costs = StepCosts()
    for least, of in found.items():
        for width, ms in of.items():
            for _ in range(MEASUREMENTS):
                costs.record(width, ms / 1e3, context=least)
    return costs


def read_costs(file: Path) -> StepCosts:
    """The same of a file with a `report`, or with a list of milliseconds for 1, 2, ... rows. Raise ConfigError that
    names it where it has neither."""
    try:
        told = json.loads(file.read_text())
        found = {0: dict(enumerate(map(float, told), 1))} if isinstance(told, list) else tables(told)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} is not what `specmesh bench steps --json` prints: {error!r}") from error
    widths = [row for of in found.values() for row in of.items()]
    if 1 not in found.get(0, {}) or any(width < 1 or not 0 < ms < math.inf for width, ms in widths):
        raise ConfigError(f"{file} needs milliseconds above 0 for 1 and more rows")
    return costs_of(found)
