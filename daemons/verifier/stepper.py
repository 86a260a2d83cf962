"""Steps of the target: formed from the sessions that are ready, run on the engine's thread, their cost learned."""

from collections.abc import Callable, Mapping
from math import inf
from typing import assert_never

import structlog

from specmesh import logs
from specmesh.core import events as ev
from specmesh.core.draft_length.gate import SharedStep
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.scheduling.batch import PREFILL_ROWS, Scheduler, Step
from specmesh.core.scheduling.kv_slots import KVCut, KVSlots
from specmesh.daemons.runtime.engine_thread import Decoded, EngineThread
from specmesh.daemons.verifier.session_context import SessionContext
from specmesh.engines.base import Span, VerifyEngine
from specmesh.errors import SpecmeshError

STEP_PATIENCE = 180.0  # seconds until a step is stuck: a part of a prompt takes a large model on a slow CPU a minute

log = structlog.get_logger("specmesh.verifier")

StepOutcome = tuple[SessionContext, list[ev.VerifierEffect]]


class Stepper:
    """Runs one step at a time; its end goes to `deliver`, on the engine's thread."""

    def __init__(
        self,
        engine: VerifyEngine,
        deliver: Callable[[Decoded | SpecmeshError], None],
        costs: StepCosts,
    ) -> None:
        self._engine = EngineThread(engine, deliver)
        self._restores = engine.info.trimming == "restore"
        self._width = engine.info.width
        self._scheduler = Scheduler(engine.info.n_batch, costs, constant=self._width is not None)
        self._costs = costs
        info, part = engine.info, PREFILL_ROWS if self._width is not None else None
        self.slots = KVSlots(info.n_seq, info.reuse, info.n_ctx * (1 if info.reuse == "whole" else info.n_seq), part)
        self._step: Step | None = None
        self._behind: set[int] = set()  # sequences whose next step decodes ids again
        self._begun = 0.0  # when the step that runs was handed over
        self._redoes = False
        self._last_ended: float | None = None  # of the step before, where sessions have gone on since
        self._threads: int | None = None  # to be used from the next step on
        self._pause: float | None = None  # before the step that runs, where nothing was waited for

    def feed(self, sessions: Mapping[int, SessionContext], now: float) -> float:
        """Begin a step if the engine is free and a session ready; return when to try again."""
        if self._step is not None:
            return inf
        step = self._scheduler.next_step({live.id: live.machine for live in sessions.values()}, now)
        match step:
            case Step():
                self._begin(step, sessions, now)
                return inf
            case ev.Wait(until):
                return until
            case _:
                assert_never(step)

    def _begin(self, step: Step, sessions: Mapping[int, SessionContext], now: float) -> None:
        spans = list[Span]()
        orders = self.slots.orders(sessions[session].seq for session, _ in step.parts)
        self._behind -= {order.seq for order in orders if order == KVCut(order.seq, 0)}
        self._redoes, waited = False, 0.0
        for session, part in step.parts:
            live = sessions[session]
            self._redoes |= live.seq in self._behind
            self._behind.discard(live.seq)
            if isinstance(part, ev.Verify):
                waited += live.machine.begin(now)
                spans.append(Span(live.seq, part.position, (part.last, *part.drafts), logits=True))
            else:
                spans.append(Span(live.seq, part.position, part.ids, logits=part.stepwise))
        self._step, self._begun = step, now
        self._pause = now - self._last_ended if self._last_ended is not None and not waited else None
        self._engine.submit((orders, spans, self._threads))
        self._threads = None

    def use_threads(self, threads: int) -> None:
        """Use so many CPU threads from the next step on; learn the costs anew."""
        self._threads = threads
        self._costs.doubt()

    def overdue(self, now: float) -> bool:
        return self._step is not None and now - self._begun > STEP_PATIENCE

    def finish(self, result: Decoded, sessions: Mapping[int, SessionContext], now: float) -> list[StepOutcome]:
        step, self._step = self._step, None
        assert step is not None, "results come of steps"
        self.slots.end()
        seconds = result.ended - result.started
        drafting = any(live.machine.drafting for live in sessions.values())
        if self._pause is not None:
            self._costs.record_pause(self._pause, drafting=drafting)
        self._last_ended = result.ended
        if step.pure:
            rows, each, context = step.measured(seconds, self._width)
            self._costs.record(rows, each, context=context, drafts=step.drafts, redoes=self._redoes)
        sharing = len(step.parts)
        outcomes: list[StepOutcome] = []
        for (session, part), logits in zip(step.parts, result.logits, strict=True):
            live = sessions.get(session)
            if live is None:
                continue  # cancelled while the step ran
            if isinstance(part, ev.Prefill):
                outcomes.append((live, live.machine.handle(ev.Prefilled(len(part.ids)), now)))
            elif logits is not None:
                outcomes.append((live, live.machine.handle(ev.Stepped(part.drafts, logits, seconds, sharing), now)))
        for live, effects in outcomes:
            self._trim(live, effects)
        if logs.debugging():
            _log_step(step, outcomes, seconds)
        if step.pure:
            self._costs.crowds.shared(sharing)
        if step.pure and sharing > 1 and self._pause is not None:
            tokens = sum(
                len(effect.ids) for _, effects in outcomes for effect in effects if isinstance(effect, ev.Emit)
            )
            spent = self._pause + seconds
            self._costs.crowds.stepped(SharedStep(sharing, tokens, spent, drafting, step.drafts, step.left_out))
        return outcomes

    def abandon(self, sessions: Mapping[int, SessionContext]) -> list[SessionContext]:
        """Give up the failed step; return the sessions whose sequences are in doubt."""
        self._step = None
        doubtful = self.slots.fail()
        return [live for live in sessions.values() if live.seq in doubtful]

    def _trim(self, live: SessionContext, effects: list[ev.VerifierEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.Trim):
                self.slots.cut(live.seq, effect.length)
                if self._restores:
                    self._behind.add(live.seq)

    def rest(self) -> None:
        """No session is left: measure no pause until the next step."""
        self._last_ended = None
        self._costs.crowds.rest()

    def close(self, patience: float) -> bool:
        """End the engine's thread; return False where it did not end in time: then the model must not be freed."""
        return self._engine.close(patience)


def _log_step(step: Step, outcomes: list[StepOutcome], seconds: float) -> None:
    verified = [part for _, part in step.parts if isinstance(part, ev.Verify)]
    emitted = [effect for _, effects in outcomes for effect in effects if isinstance(effect, ev.Emit)]
    log.debug(
        "step",
        sessions=[session for session, _ in step.parts],
        rows=step.rows,
        drafts=sum(len(part.drafts) for part in verified),
        accepted=sum(effect.accepted for effect in emitted),
        draft_n=[live.machine.draft_n for live, _ in outcomes],
        seconds=round(seconds, 6),
    )
