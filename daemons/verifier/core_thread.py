"""The verifier's core and its target, on a thread of their own; and policies, which another one solves."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import assert_never

from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.policy import Policy, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Rows, Step
from specmesh.core.scheduling.batch import PREFILL_ROWS
from specmesh.core.scheduling.kv_slots import KVCopy, KVCut, KVOrder, KVSlots
from specmesh.core.session_params import MAX_DRAFTS, TargetLimits
from specmesh.core.verifier import VerifierCore
from specmesh.daemons.runtime.engine_loop import CoreSays, Crashed, EngineLoop, ModelThread
from specmesh.engines.base import CpuEngine, EngineInfo, VerifyEngine
from specmesh.errors import SpecmeshError


class CoreThread:
    """grace: see `VerifierCore`. deliver: takes what the core says, on its thread."""

    def __init__(
        self,
        engine: VerifyEngine,
        limits: TargetLimits,
        costs: StepCosts,
        grace: float,
        deliver: Callable[[CoreSays[vev.Effect] | Crashed], None],
        thread: ModelThread,
    ) -> None:
        self._thread = thread
        self._loop = EngineLoop[vev.Happened, vev.Effect, Step, Sequence[Rows]](
            _core(engine.info, limits, costs, grace),
            lambda step: _run(engine, step),
            vev.TimeUp(),
            deliver,
            thread,
            in_order=True,  # by drafts in hand a session knows what its drafter is at
        )
        self._policies = ThreadPoolExecutor(1, thread_name_prefix="policy")

    def start(self) -> None:
        self._loop.start()

    @property
    def stuck(self) -> bool:
        return self._loop.stuck

    def tell(self, event: vev.Happened, at: float | None = None) -> None:
        """Hand over what happened, now or then; from any thread."""
        self._loop.put(event, time.monotonic() if at is None else at)

    def solve(self, wanted: vev.Solve) -> None:
        """Have a policy solved, and tell the core."""
        future = self._policies.submit(solve, wanted.inputs, wanted.old)
        future.add_done_callback(lambda done: self._solved(wanted.session, done))

    def _solved(self, session: int, done: "Future[Policy]") -> None:
        if not done.cancelled():
            self.tell(vev.Solved(session, done.result()))

    def close(self, timeout: float) -> bool:
        """End after the step that runs; return True where that ended within `timeout` seconds."""
        self._policies.shutdown(wait=False, cancel_futures=True)
        idle = self._loop.close(timeout)
        self._thread.end()
        return idle


def limits_of(engine: VerifyEngine) -> TargetLimits:
    info, vocabulary = engine.info, engine.vocabulary
    most = MAX_DRAFTS if info.width is None else min(MAX_DRAFTS, info.width - 1)
    drafts = most if info.can_trim else 0
    return TargetLimits(info.n_ctx, len(vocabulary), vocabulary.end_ids, drafts, vocabulary.pieces, info.width)


def _core(info: EngineInfo, limits: TargetLimits, costs: StepCosts, grace: float) -> VerifierCore:
    room = info.n_ctx * (1 if info.reuse == "whole" else info.n_seq)
    part = PREFILL_ROWS if info.width is not None else None
    slots = KVSlots(info.n_seq, info.reuse, room, part, restores=info.trimming == "restore")
    first = time.monotonic_ns() & 0xFFFFFF  # ids of sessions differ from those before a restart
    return VerifierCore(limits, costs, slots, info.n_batch, n_seq=info.n_seq, first=first, grace=grace)


def _run(engine: VerifyEngine, step: Step) -> Sequence[Rows]:
    """Run a step: its orders first, then its spans."""
    if step.threads is not None and isinstance(engine, CpuEngine):
        engine.use_threads(step.threads)
    if step.orders:
        _prepare(engine, step.orders)
    return engine.decode(step.spans)


def _prepare(engine: VerifyEngine, orders: tuple[KVOrder, ...]) -> None:
    """Carry all of them out, then raise the first error, if any: one sequence's must not stop another's."""
    failed: SpecmeshError | None = None
    for order in orders:
        try:
            match order:
                case KVCut(seq, length):
                    engine.trim(seq, length)
                case KVCopy(seq, source, length):
                    engine.copy(seq, source, length)
                case _:
                    assert_never(order)
        except SpecmeshError as error:
            failed = failed or error
    if failed is not None:
        raise failed
