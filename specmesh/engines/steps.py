"""Steps of a core carried out by an engine, and the time that a target's steps take."""

import time
from collections.abc import Mapping, Sequence
from typing import assert_never

from specmesh.core.draft_length import MAX_COPIED, MAX_DRAFTS
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import DraftedRows, DraftRow, DraftStep, Rows, Step
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVSave
from specmesh.core.session_params import TargetLimits
from specmesh.core.verifier.calibration import Calibration
from specmesh.engines.base import Ask, DraftEngine, LocalDrafter, VerifyEngine
from specmesh.errors import NoRoom


def limits_of(engine: VerifyEngine) -> TargetLimits:
    """Return the limits that a target sets for sessions."""
    info = engine.info
    width = info.capabilities.width
    vocabulary = engine.tokenizer.vocabulary
    drafts = MAX_DRAFTS if width is None else min(MAX_DRAFTS, width - 1)
    copied = drafts
    # Other memories take back rows of so many drafts only.
    if width is None and info.capabilities.reuse == "copied":
        outputs = info.n_outputs or info.n_batch
        copied = max(min(MAX_COPIED, outputs - 1), drafts)
    return TargetLimits(
        n_ctx=info.n_ctx,
        n_vocab=len(vocabulary),
        end_ids=vocabulary.end_ids,
        max_drafts=drafts,
        max_copied=copied,
        pieces=vocabulary.pieces,
        width=width,
    )


def run_step(engine: VerifyEngine, step: Step) -> Sequence[Rows]:
    """Carry out a verifier's step; return the logits of its spans.

    Raises EngineError, NoRoom also if a sequence is lost by an order: then the others are carried
    out, and nothing is decoded.
    """
    if step.threads is not None:
        engine.use_threads(step.threads)
    lost: set[int] = set()
    for order in step.orders:
        if isinstance(order, KVCopy) and order.source in lost:
            lost.add(order.seq)
            continue
        if order.seq in lost and not isinstance(order, KVCut):
            continue
        held = engine.carry_out(order)
        match order:
            case KVCut(seq, length) | KVCopy(seq, _, length):
                if length == 0:
                    lost.discard(seq)  # it is to be empty
                elif held < length:
                    lost.add(seq)
            case KVOffload(seq):
                if held == 0:
                    lost.add(seq)
            case KVSave() | KVDrop() | KVNarrow():
                pass
            case _:
                assert_never(order)
    if lost:
        count = f"{len(lost)} of its sequences"
        raise NoRoom(
            f"the memory of the host or the model had no room for {count}", lost, full=False
        )
    return engine.decode(step.spans)


def run_draft_step(
    engine: DraftEngine, speaking: Mapping[int, DraftEngine], step: DraftStep
) -> DraftedRows:
    """Carry out a drafter's step; return the drafts of its rows. Raises EngineError.

    Each row drafts until it has enough drafts, or the model has none. A row whose sequence could
    not be cut to its position has none.

    speaking: by upstream, the engine in the vocabulary of that upstream.
    """
    if step.threads is not None:
        engine.use_threads(step.threads)
    held = dict[int, int]()
    for cut in step.cuts:
        held[cut.seq] = engine.carry_out(cut)
    for order in step.saves:
        # A sequence that could not be cut as far as it was to be is not saved.
        if held.get(order.seq, order.length) >= order.length:
            engine.carry_out(order)
    for offload in step.offloads:
        engine.carry_out(offload)
    rows = dict[int, DraftRow]()
    tokens = dict[int, list[int]]()
    asks = list[Ask]()
    for row in step.rows:
        rows[row.seq] = row
        tokens[row.seq] = []
        if held.get(row.seq, row.position) != row.position:
            continue
        if row.bos:
            _append_bos(engine, row.seq)
        shift = row.text_position - row.position - row.bos
        asks.append(Ask(row.seq, row.ids, row.sampler, shift))
    while asks:
        drafts = speaking[step.upstream].predict(asks)
        following = list[Ask]()
        for ask, draft in zip(asks, drafts, strict=True):
            if draft is None:
                continue
            drafted = tokens[ask.seq]
            drafted.append(draft)
            if len(drafted) < rows[ask.seq].draft_n:
                following.append(Ask(ask.seq, (draft,), ask.sampler, ask.shift))
        asks = following
    return DraftedRows(held, list(tokens.values()))


def run_either(
    engine: VerifyEngine, drafter: LocalDrafter | None, step: Step | DraftStep
) -> Sequence[Rows] | DraftedRows:
    """Carry out a step of a target, or of the drafter in its process. Raises as these do."""
    if isinstance(step, DraftStep):
        assert drafter is not None, "only a drafter has such steps"
        return run_draft_step(drafter.engine, {step.upstream: drafter.speaking}, step)
    if drafter is not None and step.threads is not None:
        # Both have the same number, so that both are computed by the same threads of OpenMP.
        drafter.engine.use_threads(step.threads)
    return run_step(engine, step)


def _append_bos(engine: DraftEngine, seq: int) -> None:
    """Append the model's own BOS, which no other vocabulary need have."""
    bos = engine.info.bos
    assert bos is not None, "windows begin with a BOS only where the model has one"
    engine.predict([Ask(seq, (bos,), None)])


def calibration_of(engine: VerifyEngine) -> Calibration:
    """Return the steps that measure an engine."""
    info = engine.info
    # A target that saves a state does so if there is one.
    held = 1 if info.capabilities.trimming == "restore" else 0
    return Calibration(limits_of(engine), most=info.n_outputs or info.n_batch, held=held)


def calibrate(engine: VerifyEngine, costs: StepCosts) -> None:
    """Measure the steps of an engine that has no sessions. Its sequences are empty afterwards."""
    calibration = calibration_of(engine)
    while not calibration.over:
        started = time.monotonic()
        engine.decode(calibration.spans(0))
        if calibration.ended(costs, time.monotonic() - started):
            engine.carry_out(KVCut(0, 0))
