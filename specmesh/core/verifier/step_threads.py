"""CPU threads of the target's steps beside a drafter of the same host."""

from collections.abc import Mapping

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.verifier.events import ThreadsShared
from specmesh.core.verifier.session import SessionState
from specmesh.core.verifier.session_context import SessionContext


class StepThreads:
    """Fewer threads while a drafter of this host drafts for a session that generates.

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
