"""The verifier's core as its target allows, and the steps that it has the target take."""

import time
from collections.abc import Sequence
from typing import assert_never

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Rows, Step
from specmesh.core.scheduling.batch import PREFILL_ROWS
from specmesh.core.scheduling.kv_slots import KVCopy, KVCut, KVOrder, KVSlots
from specmesh.core.session_params import MAX_DRAFTS, TargetLimits
from specmesh.core.verifier import VerifierCore
from specmesh.engines.base import CpuEngine, VerifyEngine
from specmesh.errors import SpecmeshError


def limits_of(engine: VerifyEngine) -> TargetLimits:
    info, vocabulary = engine.info, engine.vocabulary
    most = MAX_DRAFTS if info.width is None else min(MAX_DRAFTS, info.width - 1)
    drafts = most if info.can_trim else 0
    return TargetLimits(info.n_ctx, len(vocabulary), vocabulary.end_ids, drafts, vocabulary.pieces, info.width)


def core_of(engine: VerifyEngine, limits: TargetLimits, costs: StepCosts, grace: float) -> VerifierCore:
    info = engine.info
    room = info.n_ctx * (1 if info.reuse == "whole" else info.n_seq)
    part = PREFILL_ROWS if info.width is not None else None
    slots = KVSlots(info.n_seq, info.reuse, room, part, restores=info.trimming == "restore")
    first = time.monotonic_ns() & 0xFFFFFF  # ids of sessions differ from those before a restart
    return VerifierCore(limits, costs, slots, info.n_batch, n_seq=info.n_seq, first=first, grace=grace)


def run_step(engine: VerifyEngine, step: Step) -> Sequence[Rows]:
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
