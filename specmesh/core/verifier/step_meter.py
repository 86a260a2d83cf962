"""What each step of the target shows: its costs, and the pause before it."""

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.verifier.scheduler import Batch


class StepMeter:
    """Records one step after the other, in the order `begun`, `ended`.

    costs: learn the pauses and, unless `begun` names others, the seconds of steps.
    width: rows of every step, if constant.
    spent: seconds from the end of the step before to that of the newest one; None if it was the
        first.
    """

    def __init__(self, costs: StepCosts, width: int | None) -> None:
        self._costs = costs
        self._width = width
        self._current = costs  # of the step that runs
        self._last_ended: float | None = None  # unless there was no session since
        self._waited = False  # for drafts, before the step that runs
        self.spent: float | None = None

    def idle(self) -> None:
        """Note that there is no session: idle time is no pause."""
        self._last_ended = None

    def begun(self, costs: StepCosts, *, waited: bool) -> None:
        """Note that a step begins, which `costs` learn from."""
        self._current = costs
        self._waited = waited

    def ended(self, batch: Batch, started: float, ended: float, *, cut: bool) -> None:
        """Record a step.

        cut: sequences were cut before it. Some models then decode ids again: drafts cost that.
        """
        before = self._last_ended
        self._last_ended = ended
        self.spent = None
        if before is not None:
            self.spent = ended - before
            if not self._waited:
                self._costs.record_pause(started - before)
        if not batch.pure or (cut and not batch.has_drafts):
            return
        rows = batch.rows
        decodes = 1
        if self._width is not None:  # then each part is a decode of its own
            rows = self._width
            decodes = len(batch.parts)
        self._current.record(rows, (ended - started) / decodes, context=batch.context // decodes)
