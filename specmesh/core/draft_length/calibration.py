"""Which steps of the target are measured before it serves."""

from collections.abc import Generator
from math import inf, isfinite

from specmesh.core.draft_length.estimates import StepCosts

# rows: those first at whose sides kernels change, up to a step with the most drafts; more while there is time
WIDTHS = (1, 2, 4, 8, 9, 16, 17, 25, 3, 5, 6, 7, 12, 33, 10, 11, 13, 14, 15, 20)
REPEATS = 3
BUDGET = 2.0  # seconds after which no further measurement is begun
CHECK_WIDTHS, TOLERANCE = (1, 4, 16), 0.2  # rows whose remembered times must hold, and how closely
MAX_ROWS = 1024

Measuring = Generator[int, tuple[float, float]]
"""Rows of a step that is to be measured; its seconds, and those since the first began, come back."""


def calibration(costs: StepCosts, most: int, width: int | None, remembered: dict[int, float] | None) -> Measuring:
    """Measure steps of the WIDTHS up to `most` rows, over and over while there is time, or of the target's one `width`.

    remembered: seconds by rows of an earlier run, taken over where steps of a few widths still take as long.
    """
    widths = [rows for rows in (WIDTHS if width is None else (width,)) if rows <= most]
    _, elapsed = yield widths[0]  # the first ever warms caches up and is not typical
    if remembered is not None and widths[0] in remembered and (yield from _holds(remembered)):
        for rows, seconds in remembered.items():
            costs.record(rows, seconds)
        return
    for _ in range(REPEATS):
        for rows in widths:
            if elapsed > BUDGET:
                return
            seconds, elapsed = yield rows
            costs.record(rows, seconds)


def _holds(remembered: dict[int, float]) -> Generator[int, tuple[float, float], bool]:
    """Do steps of a few widths, the quickest of three each, take as long as they did?"""
    held = True
    for rows in [rows for rows in CHECK_WIDTHS if rows in remembered] or list(remembered)[:1]:
        quickest = inf
        for _ in range(3):
            seconds, _ = yield rows
            quickest = min(quickest, seconds)
        held &= abs(quickest - remembered[rows]) <= TOLERANCE * remembered[rows]
    return held


def step_table(told: object) -> dict[int, float] | None:
    """Return seconds by rows as they were stored; None for anything else. Raises ValueError or TypeError for some."""
    if not isinstance(told, dict):
        return None
    table = {int(rows): float(seconds) for rows, seconds in told.items()}
    sound = all(1 <= rows <= MAX_ROWS and isfinite(seconds) and seconds > 0 for rows, seconds in table.items())
    return table if table and sound else None
