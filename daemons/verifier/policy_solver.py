"""Policies solved beside the loop: it takes milliseconds, and steps must not wait for it."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from specmesh.core.draft_length.policy import Policy, solve
from specmesh.daemons.verifier.session_context import SessionContext


@dataclass(frozen=True, slots=True)
class Solved:
    """A policy for a session."""

    session: int
    policy: Policy


class PolicySolver:
    """Solves one policy after the other, on a thread of its own; each goes to `deliver`, on that thread."""

    def __init__(self, deliver: Callable[[Solved], None]) -> None:
        self._deliver = deliver
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="policy")

    def reconsider(self, live: SessionContext, now: float) -> None:
        """Solve a new policy for a session where its estimates have moved."""
        inputs = live.machine.unsolved(now)
        if inputs is not None:
            future = self._pool.submit(solve, inputs, live.machine.pacing.policy)
            future.add_done_callback(lambda solved: self._solved(live.id, solved))

    def _solved(self, session: int, solved: "Future[Policy]") -> None:
        if not solved.cancelled():
            self._deliver(Solved(session, solved.result()))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
