"""`specmesh bench steps`: the times of a running verifier's steps by their width."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.fields import Json, number_at, object_at
from specmesh.errors import ConfigError

MEASUREMENTS = 3
"""Measurements that a median counts for: a verifier has as many before its first session."""


def steps_of(snapshot: Json) -> dict[str, dict[str, float]]:
    """Return the milliseconds of steps from a verifier's /stats, by context and rows.

    Raises ConfigError for a drafter's.
    """
    if "steps_ms" not in snapshot:
        reason = "a drafter answers at this socket"
        raise ConfigError(reason, "give the verifier's with --socket PATH")
    by_context = object_at(snapshot, "steps_ms")
    found = dict[str, dict[str, float]]()
    for context in by_context:
        times = object_at(by_context, context)
        found[context] = {rows: number_at(times, rows) for rows in times}
    return found


def table_of(steps_ms: Mapping[str, Mapping[str, float]]) -> list[Json]:
    """Return `steps_of` as rows of one table. ratio: to the time of one row in such a context."""
    table = list[Json]()
    for context, times in steps_ms.items():
        single = times.get("1", math.nan)
        for rows, ms in times.items():
            row: Json = {"context": context, "rows": rows}
            table.append(row | {"ms": f"{ms:.4f}", "ratio": f"{ms / single:.2f}"})
    return table


def costs_of(
    steps_ms: Mapping[int, Mapping[int, float]] | Mapping[str, Mapping[str, float]],
) -> StepCosts:
    """Return a verifier's costs from the milliseconds of steps, by context and rows.

    Raises ValueError for a number that is no time, ConfigError without any.
    """
    costs = StepCosts()
    if not any(steps_ms.values()):
        raise ConfigError("no step was measured", "let the verifier generate a text first")
    for context, times in steps_ms.items():
        for rows, ms in times.items():
            if not (0 < ms < math.inf and int(rows) > 0):
                raise ValueError(f"{ms} ms for {rows} rows")
            for _ in range(MEASUREMENTS):
                costs.record(int(rows), ms / 1e3, context_length=int(context))
    return costs


def read_costs(file: Path) -> StepCosts:
    """Return the costs from a file of `bench steps`. Raises ConfigError that names the file."""
    try:
        return costs_of(json.loads(file.read_text())["steps_ms"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
        reason = f"{file} is not what `specmesh bench steps --json` prints: {error!r}"
        raise ConfigError(reason) from None
