"""Which steps of the target are measured before it serves."""

from collections.abc import Generator

from specmesh.core.draft_length.estimates import StepCosts

# rows: those first at whose sides kernels change, up to a step with the most drafts; more while there is time
WIDTHS = (1, 2, 4, 8, 9, 16, 17, 25, 3, 5, 6, 7, 12, 33, 10, 11, 13, 14, 15, 20)
REPEATS = 3
BUDGET = 2.0  # seconds after which no further measurement is begun


def calibration(costs: StepCosts, most: int, width: int | None) -> Generator[int, tuple[float, float]]:
    """Measure steps of the WIDTHS up to `most` rows, over and over while there is time, or of the target's one `width`.

    Yield the rows of a step that is to be measured; its seconds, and those since the first began, come back."""
    widths = [rows for rows in (WIDTHS if width is None else (width,)) if rows <= most]
    _, elapsed = yield widths[0]  # the first ever warms caches up and is not typical
    for _ in range(REPEATS):
        for rows in widths:
            if elapsed > BUDGET:
                return
            seconds, elapsed = yield rows
            costs.record(rows, seconds)
