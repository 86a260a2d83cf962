"""Steps of the target, and the sessions that share them.

`handle` takes what happens to a session, `next_step` says what the target runs next, `finish` takes what came of it.
One step runs at a time. Whoever owns this object brings frames and requests, and carries the effects out.
"""

import itertools
from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import RollingAcceptance
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.scheduling.batch import PREFILL_ROWS, Batch, Scheduler
from specmesh.core.scheduling.kv_slots import NO_CONTENTS, KVCut, KVSlots
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits

Rows = NDArray[np.float32] | None
Outcome = tuple[int, list[ev.VerifierEffect]]  # of a session, by its id


class TargetSteps:
    """`costs` are of this target's steps, `acceptance` of all drafts; `slots` are its sequences.

    n_batch: most rows of a step. prefill_rows: of prompts, in a step in which others verify. restores: a sequence that
    is cut decodes ids again in its next step. first: id of the first session.
    """

    def __init__(
        self,
        limits: TargetLimits,
        costs: StepCosts,
        acceptance: RollingAcceptance,
        slots: KVSlots,
        n_batch: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        restores: bool = False,
        first: int = 1,
    ) -> None:
        self.sessions: dict[int, VerifierSession] = {}  # those that have a sequence
        self.slots = slots
        self._limits, self._costs, self._acceptance = limits, costs, acceptance
        self._scheduler = Scheduler(n_batch, costs, prefill_rows, constant=limits.width is not None)
        self._restores = restores
        self._seqs: dict[int, int] = {}
        self._ids = itertools.count(first)
        self._batch: Batch | None = None  # of the step that runs
        self._behind: set[int] = set()  # sequences whose next step decodes ids again
        self._redoes = False  # the step that runs does
        self._last_ended: float | None = None  # of the step before, where sessions have gone on since
        self._pause: float | None = None  # before the step that runs, where nothing was waited for

    # --- sessions

    def open(
        self,
        ids: Sequence[int],
        params: SessionParams,
        now: float,
        n_prompt: int | None = None,
        constraint: Constraint | None = None,
    ) -> tuple[int, VerifierSession]:
        """Begin a session on valid ids, for which a slot is free. One that ended with them is finished, and gone."""
        n_prompt = len(ids) if n_prompt is None else n_prompt
        others = ((self._seqs[key], session.memory) for key, session in self.sessions.items())
        seq, held = self.slots.acquire(ids, n_prompt - 1, others, cached=params.cache_prompt)
        key, company = next(self._ids), len(self.sessions) + 1
        session = VerifierSession(
            ids, params, self._limits, self._costs, self._acceptance, now, n_prompt, constraint, held, company
        )
        self.sessions[key], self._seqs[key] = session, seq
        if session.finished is not None:
            self._close(key)
        return key, session

    def handle(self, key: int, event: ev.VerifierEvent, now: float) -> list[ev.VerifierEffect]:
        """Take in what happened to a session; nothing comes of it where that is over."""
        session = self.sessions.get(key)
        effects = [] if session is None else session.handle(event, now)
        self._ended(key, effects)
        return effects

    def _ended(self, key: int, effects: list[ev.VerifierEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.Trim):
                self.slots.cut(self._seqs[key], effect.length)
                if self._restores:
                    self._behind.add(self._seqs[key])
            elif isinstance(effect, ev.Finish):
                self._close(key)

    def _close(self, key: int) -> None:
        session = self.sessions.pop(key)
        self.slots.release(self._seqs.pop(key), NO_CONTENTS if session.finished == "error" else session.memory)

    # --- steps

    def next_step(self, now: float, threads: int | None = None) -> ev.Step | ev.Wait:
        """Return the step that begins now, perhaps with other CPU `threads`, or until when there is none: for ever,
        infinity."""
        if self._batch is not None:
            return ev.Wait(inf)
        if not self.sessions:
            self._last_ended = None  # no pause is measured over idle time
        batch = self._scheduler.next_batch(self.sessions, now)
        return batch if isinstance(batch, ev.Wait) else self._begin(batch, now, threads)

    def _begin(self, batch: Batch, now: float, threads: int | None) -> ev.Step:
        spans = list[ev.Span]()
        orders = self.slots.orders([self._seqs[key] for key, _ in batch.parts])
        self._redoes, waited = False, 0.0
        if self._behind:
            self._behind -= {order.seq for order in orders if order == KVCut(order.seq, 0)}
            taken = {self._seqs[key] for key, _ in batch.parts} & self._behind
            self._redoes = bool(taken)
            self._behind -= taken
        for key, part in batch.parts:
            seq = self._seqs[key]
            if isinstance(part, ev.Verify):
                waited += self.sessions[key].begin(now)
                spans.append(ev.Span(seq, part.position, (part.last, *part.drafts), logits=True))
            else:
                spans.append(ev.Span(seq, part.position, part.ids, logits=part.stepwise))
        self._batch = batch
        self._pause = now - self._last_ended if self._last_ended is not None and not waited else None
        return ev.Step(orders, tuple(spans), threads)

    def finish(self, rows: Sequence[Rows], started: float, ended: float, now: float) -> list[Outcome]:
        """Take in what the step gave: per span its rows of logits. Return what came of it, by session."""
        batch = self._taken()
        seconds = ended - started
        asked = any(one.drafting for one in self.sessions.values())
        spent = ended - self._last_ended if self._last_ended is not None else None
        if self._pause is not None:
            self._costs.record_pause(self._pause)
        self._last_ended = ended
        if batch.pure:
            each, took, context = batch.measured(seconds, self._limits.width)
            self._costs.record(each, took, context=context, drafts=batch.drafts, redoes=self._redoes)
        outcomes: list[Outcome] = []
        for (key, part), logits in zip(batch.parts, rows, strict=True):
            session = self.sessions.get(key)
            if session is None:
                continue  # it ended while the step ran
            if isinstance(part, ev.Prefill):
                outcomes.append((key, session.handle(ev.Prefilled(len(part.ids)), now)))
            elif logits is not None:
                outcomes.append((key, session.handle(ev.Stepped(part.drafts, logits, seconds, len(batch.parts)), now)))
        if batch.pure and spent is not None:
            self._compare(batch, outcomes, spent, asked=asked)
        for key, effects in outcomes:
            self._ended(key, effects)
        return outcomes

    def _compare(self, batch: Batch, outcomes: list[Outcome], seconds: float, *, asked: bool) -> None:
        """Hold what steps bring with drafts against what they bring without, by how many sessions share one."""
        sharing = len(batch.parts)
        session = self.sessions.get(batch.parts[0][0])
        gate = self._costs.gate(sharing) if sharing > 1 else session.pacing.gate if session is not None else None
        emitted = [effect for _, effects in outcomes for effect in effects if isinstance(effect, ev.Emit)]
        # A grammar's own drafts make one session's steps faster, whoever drafts.
        if gate is not None and not (sharing == 1 and any(effect.forced for effect in emitted)):
            tokens = sum(len(effect.ids) for effect in emitted)
            alone = session.pacing.alone if sharing == 1 and session is not None else inf
            gate.stepped(sharing, tokens, seconds, asked=asked, had=batch.drafts, alone=alone)

    def fail(self) -> list[int]:
        """Give up the step, which failed; return the sessions whose sequences are in doubt."""
        self._batch = None
        doubtful = self.slots.fail()
        return [key for key, seq in self._seqs.items() if seq in doubtful]

    def _taken(self) -> Batch:
        batch, self._batch = self._batch, None
        assert batch is not None, "results come of steps"
        self.slots.end()
        return batch
