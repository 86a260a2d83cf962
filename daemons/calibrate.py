"""Timing the target's own step before the first session, so that the first decisions rest on measurements."""

import time

from specmesh.core.costs import StepCosts
from specmesh.engines.base import Span, VerifyEngine

WIDTHS = (1, 2, 3, 5, 9, 17)
REPEATS = 5
BUDGET = 2.0
"""Seconds after which no further width is begun; the rest is interpolated until it is met."""


def calibrate(engine: VerifyEngine, costs: StepCosts) -> None:
    """Measure steps of the WIDTHS on an empty sequence and leave it empty again.

    Where a target saves its state before a step with drafts the sequence holds an id, so that there is a state to save.
    """
    begun = time.monotonic()
    held = int(engine.info.trimming == "restore")
    for rows in WIDTHS:
        if rows > engine.info.n_batch or rows + held > engine.info.n_ctx or time.monotonic() - begun > BUDGET:
            return
        for repeat in range(REPEATS + 1):
            if held:
                engine.decode([Span(0, 0, (0,), logits=False)])
            started = time.monotonic()
            engine.decode([Span(0, held, (0,) * rows, logits=True)])
            if repeat:  # the first run of a width warms caches up and is not typical
                costs.record(rows, time.monotonic() - started)
            engine.trim(0, 0)
