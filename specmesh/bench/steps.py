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
    return {"schema_version": 1} | {name: snapshot[name] for name in ("model", "steps_ms", "steps_ms_by_context")}


def tables(told: dict[str, Any]) -> StepTables:
    """Return the tables of a `report`."""
    found = {"0": told["steps_ms"]} | told.get("steps_ms_by_context", {})
    return {int(least): {int(rows): float(ms) for rows, ms in table.items()} for least, table in found.items()}


def costs_of(found: StepTables) -> StepCosts:
    """What a verifier would expect of steps."""
    costs = StepCosts()
    for least, table in found.items():
        for rows, ms in table.items():
            for _ in range(MEASUREMENTS):
                costs.record(rows, ms / 1e3, context=least)
    return costs


def read_costs(file: Path) -> StepCosts:
    """The same from a file: what `bench steps --json` printed, or a list of milliseconds for 1, 2, ... rows.

    Raises ConfigError where the file is neither.
    """
    try:
        told = json.loads(file.read_text())
        found = {0: dict(enumerate(map(float, told), 1))} if isinstance(told, list) else tables(told)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} is not what `specmesh bench steps --json` prints: {error!r}") from error
    rows = [row for table in found.values() for row in table.items()]
    if 1 not in found[0] or any(width < 1 or not 0 < ms < math.inf for width, ms in rows):
        raise ConfigError(f"{file} needs milliseconds above 0 for 1 and more rows")
    return costs_of(found)


def lines(told: dict[str, Any]) -> list[str]:
    """Return a `report` as text."""
    found = []
    for least, table in sorted(tables(told).items()):
        found.append(f"rows          ms   of one row{f'   (context of {least} tokens and more)' if least else ''}")
        one = table.get(1, math.nan)
        found += [f"{rows:>4}{ms:>12.4f}{ms / one:>13.2f}" for rows, ms in sorted(table.items())]
    return found
