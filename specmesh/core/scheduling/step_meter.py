"""What the target's steps, and the pauses between them, teach about their costs and about drafting."""

from collections.abc import Sequence
from math import inf

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.scheduling.batch import Batch


class StepMeter:
    """Records one step after the other. costs: what they teach of pauses and batch sizes; width: rows of every step,
    where constant."""

    def __init__(self, costs: StepCosts, width: int | None) -> None:
        self._costs, self._width = costs, width
        self._current = costs  # those of the step that runs
        self._last_ended: float | None = None  # of the step before, where sessions have gone on since
        self._pause: float | None = None  # before the step that runs, where nothing was waited for
        self._spent: float | None = None  # from the end of the step before to the end of the newest

    def idle(self) -> None:
        """Note that there is no session: no pause is measured over idle time."""
        self._last_ended = None

    def begun(self, now: float, costs: StepCosts, *, waited: bool) -> None:
        self._current = costs
        self._pause = now - self._last_ended if self._last_ended is not None and not waited else None

    def ended(self, batch: Batch, started: float, ended: float, *, redoes: bool) -> None:
        """Record a step, which perhaps decoded ids again."""
        if self._pause is not None:
            self._costs.record_pause(self._pause)
        self._spent = ended - self._last_ended if self._last_ended is not None else None
        self._last_ended = ended
        if batch.pure:
            rows, seconds, context = batch.measured(ended - started, self._width)
            self._current.record(rows, seconds, context=context, drafts=batch.drafts, redoes=redoes)

    def compare(self, batch: Batch, first: DraftLengthController, emitted: Sequence[ev.Emit], *, asked: bool) -> None:
        """Hold what steps bring with drafts against what they bring without, by how many sessions share one. `first`
        is of the first session; asked: some session asked for drafts."""
        sharing = len(batch.parts)
        gate = first.gate if sharing == 1 else self._costs.gate(sharing)
        # A grammar's own drafts make one session's steps faster, whoever drafts.
        if gate is None or not batch.pure or self._spent is None or (sharing == 1 and any(e.forced for e in emitted)):
            return
        tokens = sum(len(emit.ids) for emit in emitted)
        alone = first.alone if sharing == 1 else inf
        gate.stepped(sharing, tokens, self._spent, asked=asked, had=batch.drafts, alone=alone)
