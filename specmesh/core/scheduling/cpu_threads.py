"""CPU threads of the target's steps: fewer while a drafter of the same host drafts, all while it is off."""

from collections.abc import Mapping

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.session_context import SessionContext
from specmesh.core.verifier_events import ThreadsShared


class CpuThreads:
    """Steps beside a drafter that drafts are measured in `costs`, the others in `costs.alone`."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._share: ThreadsShared | None = None  # None: the target does not compute on the CPU, or nobody else does
        self._used = 0

    def shared(self, share: ThreadsShared) -> None:
        self._used = self._used or share.alone
        self._share = share
        if share.beside != share.alone:
            self._costs.split()
        else:
            self._costs.join()

    def next(self, sessions: Mapping[int, SessionContext]) -> tuple[int | None, StepCosts]:
        """Return the threads of the next step where that changes, and the costs that it is measured in."""
        share = self._share
        if share is None:
            return None, self._costs
        drafts = any(live.machine.drafting and live.drafter in share.drafters for live in sessions.values())
        threads = share.beside if drafts else share.alone
        changed, self._used = threads != self._used, threads
        return threads if changed else None, self._costs if drafts else self._costs.alone
