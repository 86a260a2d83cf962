"""`specmesh bench steps`: what a running verifier's steps cost by their width, as it measured them."""

from dataclasses import asdict, dataclass

from specmesh.client import Json
from specmesh.errors import Busy, ConfigError

NOISE = 0.02
"""A wider step is cheaper only where it saves more than this share: medians of two equal widths differ a little."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A width: its rows, the median milliseconds of a step, and that over one row's.

    cheaper: the rows of the cheapest of the wider steps that cost less than this one, None where there are none. Such a
    width is a cliff: filled up with more rows, the step would take less time.
    """

    rows: int
    ms: float
    relative: float | None
    cheaper: int | None


def steps_ms(snapshot: Json) -> dict[int, float]:
    """Milliseconds by rows out of a verifier's /stats. Raises Busy while it loads, ConfigError at a drafter."""
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model: try again in a moment")
    told = snapshot.get("steps_ms")
    if not isinstance(told, dict):
        raise ConfigError("a drafter answers at this socket: give the verifier's with --socket PATH")
    return {int(rows): float(ms) for rows, ms in told.items()}


def step_table(costs: dict[int, float]) -> list[StepRow]:
    """The table, narrowest first. costs: milliseconds by rows."""
    one = costs.get(1, 0.0)
    table = []
    for rows, ms in sorted(costs.items()):
        wider = [(cost, width) for width, cost in costs.items() if width > rows and cost < ms * (1 - NOISE)]
        table.append(StepRow(rows, ms, round(ms / one, 4) if one else None, min(wider)[1] if wider else None))
    return table


def as_json(snapshot: Json, table: list[StepRow]) -> Json:
    """The table as a JSON object, with the model it is of."""
    return {"schema_version": 1, "model": snapshot["model"], "steps": [asdict(row) for row in table]}


def lines(table: list[StepRow]) -> list[str]:
    """The table in words."""
    told = [f"{'rows':>5}{'ms':>12}{'of one row':>13}"]
    for row in table:
        relative = "-" if row.relative is None else f"{row.relative:.2f}"
        mark = "" if row.cheaper is None else f"  ! {row.cheaper} rows cost less"
        told.append(f"{row.rows:>5}{row.ms:>12.4f}{relative:>13}{mark}")
    return told
