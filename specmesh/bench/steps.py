"""`specmesh bench steps`: what a running verifier's steps cost by their width, as it measured them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.fields import Json, number_at, object_at
from specmesh.errors import ConfigError

MEASUREMENTS = (
    3  # that a median of a table counts for: a verifier takes so many before its first session
)


def steps_of(snapshot: Json) -> dict[str, dict[str, float]]:
    """Return the milliseconds that steps take, of a verifier's /stats, by context and rows. Raise ConfigError at a
    drafter."""
    if "steps_ms" not in snapshot:
        raise ConfigError(
            "a drafter answers at this socket", "give the verifier's with --socket PATH"
        )
    found = object_at(snapshot, "steps_ms")
    return {
        key: {rows: number_at(found, f"{key}.{rows}") for rows in object_at(found, key)}
        for key in found
    }


def table_of(steps_ms: Mapping[str, Mapping[str, float]]) -> list[Json]:
    """Return `steps_of` as rows of one table. ratio: to the time of one row in such a context."""
    return [
        {
            "context": context,
            "rows": rows,
            "ms": f"{ms:.4f}",
            "ratio": f"{ms / of.get('1', math.nan):.2f}",
        }
        for context, of in steps_ms.items()
        for rows, ms in of.items()
    ]


def costs_of(
    steps_ms: Mapping[int, Mapping[int, float]] | Mapping[str, Mapping[str, float]],
) -> StepCosts:
    """Return what a verifier would expect of steps that take so long, by context and rows. Raise ValueError for what is
    no time, ConfigError where none is."""
    costs = StepCosts()
    if not any(steps_ms.values()):
        raise ConfigError("no step was measured", "let the verifier generate a text first")
    for context, of in steps_ms.items():
        for rows, ms in of.items():
            if not (0 < ms < math.inf and int(rows) > 0):
                raise ValueError(f"{ms} ms for {rows} rows")
            for _ in range(MEASUREMENTS):
                costs.record(int(rows), ms / 1e3, context=int(context))
    return costs


def read_costs(file: Path) -> StepCosts:
    """The same of a file of `bench steps`. Raise ConfigError that names it where it has none."""
    try:
        return costs_of(json.loads(file.read_text())["steps_ms"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
        raise ConfigError(
            f"{file} is not what `specmesh bench steps --json` prints: {error!r}"
        ) from None
