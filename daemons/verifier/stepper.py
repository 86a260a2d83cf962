"""Steps of the target: what the core plans, run on the engine's thread."""

from collections.abc import Callable
from math import inf

import structlog

from specmesh import logs
from specmesh.core import events as ev
from specmesh.core.verifier import Outcome, VerifierCore
from specmesh.daemons.runtime.engine_thread import Decoded, EngineThread
from specmesh.engines.base import VerifyEngine
from specmesh.errors import SpecmeshError

STEP_PATIENCE = 180.0  # seconds until a step is stuck: a part of a prompt takes a large model on a slow CPU a minute

log = structlog.get_logger("specmesh.verifier")


class Stepper:
    """Runs one step at a time; its end goes to `deliver`, on the engine's thread."""

    def __init__(
        self, engine: VerifyEngine, deliver: Callable[[Decoded | SpecmeshError], None], core: VerifierCore
    ) -> None:
        self._engine, self._core = EngineThread(engine, deliver), core
        self._step: ev.Step | None = None
        self._begun = 0.0  # when the step that runs was handed over
        self._threads: int | None = None  # to be used from the next step on

    def feed(self, now: float) -> float:
        """Begin a step if the engine is free and a session ready; return when to try again."""
        step = self._core.next_step(now)
        if isinstance(step, ev.Wait):
            return step.until
        self._step, self._begun = step, now
        self._engine.submit((step.orders, step.spans, self._threads))
        self._threads = None
        return inf

    def use_threads(self, threads: int) -> None:
        """Use so many CPU threads from the next step on."""
        self._threads = threads

    def overdue(self, now: float) -> bool:
        return self._step is not None and now - self._begun > STEP_PATIENCE

    def finish(self, result: Decoded, now: float) -> list[Outcome]:
        step, self._step = self._step, None
        outcomes = self._core.finish(result.logits, result.started, result.ended, now)
        if logs.debugging() and step is not None:
            _log_step(step, outcomes, self._core, result.ended - result.started)
        return outcomes

    def abandon(self) -> list[int]:
        """Give up the failed step; return the sessions whose sequences are in doubt."""
        self._step = None
        return self._core.fail()

    def close(self, patience: float) -> bool:
        """End the engine's thread; return False where it did not end in time: then the model must not be freed."""
        return self._engine.close(patience)


def _log_step(step: ev.Step, outcomes: list[Outcome], core: VerifierCore, seconds: float) -> None:
    emitted = [effect for _, effects in outcomes for effect in effects if isinstance(effect, ev.Emit)]
    log.debug(
        "step",
        sessions=[session for session, _ in outcomes],
        rows=step.rows,
        drafts=sum(len(effect.drafts) for effect in emitted),
        accepted=sum(effect.accepted for effect in emitted),
        draft_n=[core.sessions[session].draft_n for session, _ in outcomes if session in core.sessions],
        seconds=round(seconds, 6),
    )
