"""`specmesh bench steps`: what a running verifier's steps cost by their width, as it measured them."""

import json
import math
from pathlib import Path
from typing import Any

from specmesh.client import Json
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.errors import Busy, ConfigError

MEASUREMENTS = 3  # that a median of a table counts for: a verifier takes so many before its first session


def measured(snapshot: Json) -> dict[int, dict[int, float]]:
    """Return milliseconds by rows out of a verifier's /stats, by the least context of each table in ids.

    Raise Busy while it loads, ConfigError at a drafter.
    """
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model: try again in a moment")
    steps, longer = snapshot.get("steps_ms"), snapshot.get("steps_ms_by_context")
    if not isinstance(steps, dict):
        raise ConfigError("a drafter answers at this socket: give the verifier's with --socket PATH")
    tables = {"0": steps} | (longer if isinstance(longer, dict) else {})
    return {int(least): {int(rows): float(ms) for rows, ms in table.items()} for least, table in tables.items()}


def costs_of(tables: dict[int, dict[int, float]]) -> StepCosts:
    """What a verifier would expect of steps. tables: milliseconds by rows, by the least context of each."""
    costs = StepCosts()
    for least, table in tables.items():
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
        if isinstance(told, dict):
            told_of = {"0": told["steps"]} | told.get("steps_by_context", {})
            tables = {int(least): {int(row["rows"]): float(row["ms"]) for row in of} for least, of in told_of.items()}
        else:
            tables = {0: {rows: float(ms) for rows, ms in enumerate(told, 1)}}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise ConfigError(f"{file} is not what `specmesh bench steps --json` prints: {why}") from error
    if 1 not in tables[0] or any(
        rows < 1 or not 0 < ms < math.inf for table in tables.values() for rows, ms in table.items()
    ):
        raise ConfigError(f"{file} needs milliseconds above 0 for 1 and more rows")
    return costs_of(tables)


def report(snapshot: Json) -> dict[str, Any]:
    """Return what --json prints of a verifier's /stats; `steps` is for short contexts. Raise as `measured`."""
    told = {str(least): _table(costs) for least, costs in sorted(measured(snapshot).items())}
    return {"schema_version": 1, "model": snapshot["model"], "steps": told["0"], "steps_by_context": told}


def _table(costs: dict[int, float]) -> list[dict[str, Any]]:
    """Return a row for each width, narrowest first. costs: milliseconds by rows. relative: over one row's."""
    one = costs.get(1)
    return [
        {"rows": rows, "ms": ms, "relative": round(ms / one, 4) if one else None} for rows, ms in sorted(costs.items())
    ]


def lines(told: dict[str, Any]) -> list[str]:
    """Return a `report` as text."""
    found = []
    for least, table in told["steps_by_context"].items():
        found += [f"context of {least} ids and more:"] if len(told["steps_by_context"]) > 1 else []
        found += [f"{'rows':>5}{'ms':>12}{'of one row':>13}"]
        found += [f"{row['rows']:>5}{row['ms']:>12.4f}{row['relative'] or 0:>13.2f}" for row in table]
    return found
