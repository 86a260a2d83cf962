"""Timing the target's own step before the first session, so that the first decisions rest on measurements."""

import time

from specmesh.core.costs import StepCosts
from specmesh.engines.base import Span, VerifyEngine

WIDTHS = (1, 2, 3, 5, 9, 17, 4, 7, 8, 6, 10, 12, 14, 16, 11, 13, 15, 24, 33)
"""Rows, the ones that tell most first: what time does not reach is interpolated until it is met."""

REPEATS = 3
BUDGET = 2.0
"""Seconds after which no further measurement is begun."""

CHECKED, SAME = (1, 3, 5), 0.2
"""Steps of so many rows may be so far from what is remembered of them for the rest of it to hold."""


def calibrate(engine: VerifyEngine, costs: StepCosts, remembered: dict[int, float] | None = None) -> None:
    """Measure steps of the WIDTHS on an empty sequence, over and over while there is time, and leave it empty again.
    Where a target has one width only, that is measured.

    remembered: seconds by rows of an earlier run with the same model and machine; taken over where steps of a few
    widths still take as long as then.
    """
    begun = time.monotonic()
    held = int(engine.info.trimming == "restore")
    constant = engine.info.width
    candidates = WIDTHS if constant is None else (constant,)
    most = min(engine.info.n_outputs or engine.info.n_batch, engine.info.n_ctx - held)
    widths = [rows for rows in candidates if rows <= most]
    _step(engine, held, widths[0])  # the first ever warms caches up and is not typical
    if remembered is not None and widths[0] in remembered and _still(engine, held, remembered):
        for rows, seconds in remembered.items():
            costs.record(rows, seconds)
        return
    for _ in range(REPEATS):
        for rows in widths:
            if time.monotonic() - begun > BUDGET:
                return
            costs.record(rows, _step(engine, held, rows))


def _still(engine: VerifyEngine, held: int, remembered: dict[int, float]) -> bool:
    """Whether steps of a few widths take as long as they did, the quickest of three each."""
    checked = [rows for rows in CHECKED if rows in remembered] or list(remembered)[:1]
    quickest = {rows: min(_step(engine, held, rows) for _ in range(3)) for rows in checked}
    return all(abs(seconds - remembered[rows]) <= SAME * remembered[rows] for rows, seconds in quickest.items())


def _step(engine: VerifyEngine, held: int, rows: int) -> float:
    """Seconds of one step of `rows` rows.

    Where a target saves its state before a step with drafts the sequence holds an id, so that there is one to save.
    """
    if held:
        engine.decode([Span(0, 0, (0,), logits=False)])
    started = time.monotonic()
    engine.decode([Span(0, held, (0,) * rows, logits=True)])
    seconds = time.monotonic() - started
    engine.trim(0, 0)
    return seconds
