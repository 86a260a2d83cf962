"""The costs of the target's steps, and the CPU threads that they depend on.

- `StepThreads` gives each step its threads, and names the costs that learn from it.
- `StepMeter` records the step in these costs, and the pause before it.
"""

from collections.abc import Mapping

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.verifier.events import ThreadsShared
from specmesh.core.verifier.scheduler import Batch
from specmesh.core.verifier.session import SessionState
from specmesh.core.verifier.session_context import SessionContext


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


class StepThreads:
    """The threads of steps: fewer while a drafter of this host drafts for a session that generates.

    A step has all threads while that drafter is off, and for prompts. Steps beside a drafter that
    drafts are measured in `costs`, the others in `costs.alone`.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._share: ThreadsShared | None = None  # None: no other daemon computes on this CPU
        self._used = 0

    def shared(self, share: ThreadsShared) -> None:
        """Note how the cores of this host are shared from now on."""
        self._used = self._used or share.alone
        self._share = share
        if share.beside != share.alone:
            self._costs.split(share.alone / share.beside)
        else:
            self._costs.join()

    def next(self, sessions: Mapping[int, SessionContext]) -> tuple[int | None, StepCosts]:
        """Return the threads of the next step, None if unchanged, and the costs that learn it."""
        share = self._share
        if share is None:
            return None, self._costs
        threads = share.alone
        costs = self._costs.alone
        for context in sessions.values():
            session = context.session
            drafted = session.drafting and context.drafter in share.drafters
            if drafted and session.state is SessionState.GENERATING:
                threads = share.beside
                costs = self._costs
        if threads == self._used:
            return None, costs
        self._used = threads
        return threads, costs
