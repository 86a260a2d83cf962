"""The steps of a verifier's target: their rows, their results, and their costs.

One step is one decode of the target, over one or more sessions. Its life:

1. `next_step` asks the scheduler for a batch. Each session's part becomes a span: consecutive rows
   of its sequence. A session that verifies has the last committed id and its drafts, with logits on
   each row. A session that prefills has ids of its prompt.
2. The engine carries out the orders of the KV slots, then decodes the spans. Meanwhile the core
   takes frames of drafters. What else happens waits for the end of the step.
3. `finish` gives each session its rows. Effects follow in the order of the sessions: tokens for
   clients, TRUTH for drafters, cuts of sequences for the next step.
4. The gate compares the step with steps without drafts, and sessions may change their drafter.

`StepThreads` gives each step its CPU threads, and names the costs that learn from it. `StepMeter`
records the step in these costs, and the pause before it.

A step that failed may have changed its sequences in part. Its sessions end, and nothing of these
sequences is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specmesh.core import events as ev
from specmesh.core.draft_length.gate import SpeculationGate, StepOutcome
from specmesh.core.draft_length.speculation import Speculation
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.draft_sources import REMOTE
from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_orders import KVOffload
from specmesh.core.rounds import Round
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.lifecycle import SessionLifecycle
from specmesh.core.verifier.scheduler import Batch, Part, Scheduler
from specmesh.core.verifier.session import SessionState, VerifierSession
from specmesh.core.verifier.session_context import SessionContext
from specmesh.core.verifier.target import Target
from specmesh.errors import LocalProtocolError, NoRoom, SpecmeshError

_CALIBRATING = Batch.of(())
"""Stands for a step without sessions."""


class _EndedStep(NamedTuple):
    """A step of the target that is over."""

    batch: Batch
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.ended - self.started


class TargetSteps:
    """Forms one step after the other, and gives each session its result.

    - A step begins when the one before is over; LocalProtocolError is raised otherwise.
    - Each session of a step takes its rows of logits, which may end it.
    - Then the gate compares the step with steps without drafts, and a session may get another
      drafter.

    batch: the step that runs; None between two steps.
    threads: CPU threads of the steps.
    """

    def __init__(
        self, target: Target, lifecycle: SessionLifecycle, outbox: list[vev.Effect]
    ) -> None:
        """Begin with no step; `outbox` gets the effects."""
        width = target.limits.width
        self._target = target
        self._lifecycle = lifecycle
        self._outbox = outbox
        self._scheduler = Scheduler(
            target.n_batch, target.costs, target.prefill_rows, constant=width is not None
        )
        self._meter = StepMeter(target.costs, width)
        self.threads = StepThreads(target.costs)
        self.batch: Batch | None = None
        self._calibration = target.calibration
        self._costs = target.costs  # which learn from a calibrating step that runs
        self._local = target.local
        self._drafting = False  # a step of the drafter in this process runs

    @property
    def running(self) -> bool:
        """Return True while a step runs, of the target or of the drafter in this process."""
        return self.batch is not None or self._drafting

    # --- a step begins

    def next_step(self, now: float) -> ev.Step | ev.DraftStep | ev.Wait:
        """Return the step that begins now, or until when there is none."""
        if self.running:
            raise LocalProtocolError("a step begins while another runs")
        sessions = self._lifecycle.ready()
        if not sessions:
            self._meter.idle()
        if self._local is not None:
            drafting = self._local.next_step(sessions, now)
            if drafting is not None:
                self._drafting = True
                return drafting
        batch = self._scheduler.next_batch(sessions, now)
        while isinstance(batch, Batch) and not self._has_cells(batch):
            sessions = self._lifecycle.ready()
            batch = self._scheduler.next_batch(sessions, now)
        if isinstance(batch, ev.Wait):
            return self._calibrate_or_wait(now, min(batch.until, self._lifecycle.next_due()))
        return self._begin(batch, sessions, now)

    def _begin(self, batch: Batch, sessions: Mapping[int, SessionContext], now: float) -> ev.Step:
        """Begin the step of a batch."""
        if self._calibration is not None:
            self._calibration.disturbed()
        self.batch = batch
        spans: list[ev.Span] = []
        waited = 0.0
        slots = self._target.slots
        for number, part in batch.parts:
            session = sessions[number].session
            if session.slot.stops:
                slots.reached(session.slot)
            if isinstance(part, ev.Verify):
                waited += session.begin(now)
            spans += _spans_of(part, session.slot.seq)
        threads, costs = self.threads.next(self._lifecycle.running)
        drafted = self._local is not None and self._local.begun()
        self._meter.begun(costs, waited=waited > 0 or drafted)
        orders = slots.orders(batch.rows) if slots.has_orders else ()
        return ev.Step(orders, tuple(spans), threads)

    def _has_cells(self, batch: Batch) -> bool:
        """Return True if the pool has cells for a step, or if there is no pool.

        Sessions may be set back for that. Then return False: the step is formed anew. The cells of
        prompts are claimed when their sessions begin, so only rows that verify need more.
        """
        slots = self._target.slots
        if slots.pool is None:
            return True
        slots.steps += 1
        slots.cells_left -= batch.verified
        if slots.cells_left >= 0:
            return True
        cells = self._lifecycle.cells
        before = cells.setbacks
        left = cells.make_room(batch.verified)
        slots.cells_left = left - batch.verified
        return cells.setbacks == before

    def _calibrate_or_wait(self, now: float, until: float) -> ev.Step | ev.Wait:
        """Return a step that measures the target; Wait if there is none to measure.

        until: when something else is to be done.
        """
        calibration = self._calibration
        if calibration is None:
            return ev.Wait(until)
        if calibration.over and self._target.costs.undrafted.lost_advance:
            calibration.repeat(now)
        if calibration.over:
            return ev.Wait(until)
        slots = self._target.slots
        seq = None
        if not self._lifecycle.running:
            seq = calibration.sequence(slots)
        if seq is None:
            calibration.disturbed()
            return ev.Wait(until)
        begins = calibration.begins_at(now)
        if now < begins:
            return ev.Wait(min(until, begins))
        self.batch = _CALIBRATING
        threads, self._costs = self.threads.next({})
        spans = calibration.spans(seq)
        orders = slots.orders(len(spans[0].ids)) if slots.has_orders else ()
        return ev.Step(orders, spans, threads)

    # --- a step ends

    def finish(
        self,
        step: ev.Step | ev.DraftStep,
        result: Sequence[ev.Rows] | ev.DraftedRows | SpecmeshError,
        started: float,
        ended: float,
        *,
        other_work: bool = False,
    ) -> None:
        """Take the result of the step that runs, or why it failed.

        other_work: the target did more in that time, of its own accord.
        """
        if isinstance(step, ev.DraftStep):
            assert isinstance(result, ev.DraftedRows | SpecmeshError), "it drafts"
            self._finish_drafting(step, result, ended - started)
        else:
            assert not isinstance(result, ev.DraftedRows), "the target drafts nothing"
            if other_work and self.batch is not None:
                self.batch = self.batch._replace(pure=False)
            self._finish_step(step, result, started, ended)

    def abandon(self) -> None:
        """Forget the step that runs, if there is one: it has no result."""
        self.batch = None
        self._drafting = False
        self._meter.idle()

    def _finish_drafting(
        self, step: ev.DraftStep, result: ev.DraftedRows | SpecmeshError, seconds: float
    ) -> None:
        """Take the drafts of a step of the drafter in this process."""
        if self._local is None or not self._drafting:
            raise LocalProtocolError("a step ends that has not begun")
        self._drafting = False
        self._outbox += self._local.finish(step, result, self._lifecycle.running, seconds)

    def _finish_step(
        self, step: ev.Step, result: Sequence[ev.Rows] | SpecmeshError, started: float, ended: float
    ) -> None:
        """Take the result of a step of the target."""
        batch = self.batch
        if batch is None:
            raise LocalProtocolError("a step ends that has not begun")
        self.batch = None
        if batch is _CALIBRATING:
            self._calibrated(step, result, ended - started)
        elif isinstance(result, NoRoom) and self._makes_room(result, ended):
            self._meter.idle()  # the step did not run
        elif isinstance(result, SpecmeshError):
            self._fail(step, result, ended)
        else:
            self._meter.ended(batch, started, ended, cut=bool(step.orders))
            self._take(_EndedStep(batch, started, ended), result)

    def _makes_room(self, error: NoRoom, now: float) -> bool:
        """Make room after a step found none; return False if nobody can leave.

        A session that would lose its sequence again and again ends with the error.
        """
        fields: dict[str, object] = {"error": str(error), "emptied": len(error.lost)}
        self._outbox.append(vev.Noted("no_room", fields, "warning"))
        cells = self._lifecycle.cells
        self._lifecycle.fail(cells.stuck(error.lost), error, now)
        return cells.full(error.lost, pool_is_full=error.full)

    def _calibrated(
        self, step: ev.Step, result: Sequence[ev.Rows] | SpecmeshError, seconds: float
    ) -> None:
        """Learn from a step without sessions, and let its sequence be empty after the last one."""
        calibration = self._calibration
        assert calibration is not None, "such a step begins with it only"
        [span] = step.spans
        empties = True
        if isinstance(result, SpecmeshError):
            calibration.end()
            meaning = "its steps are not measured in advance"
            fields: dict[str, object] = {"error": str(result), "meaning": meaning}
            self._outbox.append(vev.Noted("calibration_failed", fields, "warning"))
        else:
            empties = calibration.ended(self._costs, seconds)
        slots = self._target.slots
        if empties:
            slots.doubt({span.seq})
        else:
            # A session that comes before the next step may get the sequence, and has to empty it.
            slots.release(span.seq, KVContents(span.ids, len(span.ids)))

    def _take(self, step: _EndedStep, result: Sequence[ev.Rows]) -> None:
        """Give each session its rows, then let gates and drafter pool learn from the whole step."""
        contexts: dict[int, SessionContext] = {}
        rounds: list[Round] = []
        draft_n: list[int] = []
        tokens = 0
        drafting = False
        # No session has ended since the batch was formed: all that ends one waits for `finish`.
        spans = iter(result)
        for number, part in step.batch.parts:
            context = contexts[number] = self._lifecycle.running[number]
            draft_length = context.session.draft_length
            # As it was when the step began: its result may change the wish.
            drafting = drafting or draft_length.wants_drafts
            effects = self._effects_of(context, part, spans, step)
            # The session's own draft_n, before the effects can change its drafter.
            for effect in effects:
                if isinstance(effect, Round):
                    rounds.append(effect)
                    draft_n.append(draft_length.draft_n)
                    tokens += len(effect.text.ids)
            self._lifecycle.carry_out(context, effects, step.ended)
        ran = vev.Ran(
            started=step.started,
            ended=step.ended,
            rows=step.batch.rows,
            tokens=tokens,
            rounds=tuple(rounds),
            draft_n=tuple(draft_n),
        )
        self._learn(step.batch, contexts, ran, drafting=drafting)
        self._outbox.append(ran)

    def _effects_of(
        self, context: SessionContext, part: Part, spans: Iterator[ev.Rows], step: _EndedStep
    ) -> list[ev.VerifierEffect]:
        """Give a session its rows of a step, the next of `spans`; return what follows from them."""
        session = context.session
        logits = next(spans)
        if isinstance(part, ev.Verify):
            if logits is None:
                return []
            sessions = len(step.batch.parts)
            return session.stepped(
                part, logits, step.ended, seconds=step.seconds, sessions=sessions
            )
        effects = session.prefilled(len(part.ids), logits)
        if session.progress is not None:
            read = part.position + len(part.ids)
            effects += session.progress.read(read, step.batch.rows, step.started, step.ended)
        if part.last is not None:
            effects += self._first(session, part.last, next(spans), step)
        return effects

    def _first(
        self, session: VerifierSession, last: int, logits: ev.Rows, step: _EndedStep
    ) -> list[ev.VerifierEffect]:
        """Give a session the first token of its text, after the last id of its prompt.

        Its row counts for its share of the step.
        """
        assert logits is not None, "the last id of a prompt has logits"
        batch = step.batch
        share = step.seconds / batch.rows
        session.begin(step.ended - share)
        verify = ev.Verify(len(session.prefix) - 1, last, ())
        return session.stepped(verify, logits, step.ended, seconds=share, sessions=len(batch.parts))

    # --- what is learned from a step

    def _learn(
        self, batch: Batch, contexts: Mapping[int, SessionContext], ran: vev.Ran, *, drafting: bool
    ) -> None:
        """Let the gates, the drafter in this process and the drafter pool learn from a step.

        contexts: its sessions. drafting: drafts were asked for when it began.
        """
        if contexts:
            self._compare_in_hand(batch, contexts, ran)
        if self._local is not None:
            self._local.stepped(batch.parts, contexts, self._meter.spent if batch.pure else None)
        drafters = self._lifecycle.drafters
        n_drafters = drafters.count
        if not (contexts and n_drafters):
            return
        refused = self._compare(batch, contexts, ran, drafting=drafting)
        # While the only drafter is refused the pool has nothing to decide, and each step would pay
        # for the look.
        if not refused or n_drafters > 1:
            for context in contexts.values():
                drafters.stepped(context, ran.ended)

    def _compare(
        self, batch: Batch, contexts: Mapping[int, SessionContext], ran: vev.Ran, *, drafting: bool
    ) -> bool:
        """Let the gate of drafter daemons learn from a step; return True if it refused drafts.

        It does not learn from a step

        - that read a prompt;
        - that follows no other step, so that the time for it is unknown;
        - without drafts asked for, while the gate is open;
        - that drafts of other sources made faster, while the gate is open.

        drafting: drafts were asked for when the step began.
        """
        lone: SessionContext | None = None
        if len(contexts) == 1:
            [lone] = contexts.values()
        speculation = self._remote_speculation(contexts, lone)
        if speculation is None:
            # Nobody drafts, or the client has chosen: there is nothing to decide.
            return False
        gate = speculation.gate
        refused = gate.refuses
        spent = self._meter.spent
        if not batch.pure or spent is None or (gate.open and not drafting):
            return refused
        has_drafts, has_others = _verified_drafts(contexts, ran.rounds)
        if gate.open and has_others and (lone is not None or not has_drafts):
            return refused
        undrafted_s = 0.0
        if lone is not None and not refused:
            undrafted_s = lone.session.draft_length.undrafted_s
        outcome = StepOutcome(
            sessions=len(contexts),
            tokens=ran.tokens,
            seconds=spent,
            drafting=drafting,
            has_drafts=has_drafts or has_others,
            rate_without=1 / undrafted_s if undrafted_s else 0.0,
            shared_host=self._target.costs.beside_drafter,
        )
        gate.stepped(outcome)
        return refused

    def _remote_speculation(
        self, contexts: Mapping[int, SessionContext], lone: SessionContext | None
    ) -> Speculation | None:
        """Return the speculation with drafter daemons that a step is about.

        A lone session has that of its drafter; several share that of their number. None if there is
        no drafter, or if clients chose draft_n or let no drafter draft.
        """
        if lone is not None:
            return self._lifecycle.drafters.speculation(lone)
        if any(each.session.draft_length.allows_remote for each in contexts.values()):
            return self._target.speculations.of(REMOTE, len(contexts))
        return None

    def _compare_in_hand(
        self, batch: Batch, contexts: Mapping[int, SessionContext], ran: vev.Ran
    ) -> None:
        """Let the gates of sources that have their drafts here learn from a step.

        An open gate learns from steps with drafts of its source; a shut one from those without any.
        """
        spent = self._meter.spent
        if spent is None or not batch.pure:
            return
        gates = self._gates_in_hand(contexts, ran.rounds)
        if not gates:
            return
        if self._local is not None:
            # A text that is read pays later, for many steps. It is bounded by itself.
            spent = max(spent - self._local.read_s, 0.0)
        sessions = len(contexts)
        costs = self._target.costs
        undrafted = costs.undrafted.seconds(sessions, batch.context) + costs.pause
        has_drafts = _has_guesses(ran.rounds)
        for gate in gates:
            outcome = StepOutcome(
                sessions=sessions,
                tokens=ran.tokens,
                seconds=spent,
                drafting=gate.open,
                has_drafts=has_drafts,
                rate_without=sessions / undrafted if undrafted else 0.0,
            )
            gate.stepped(outcome)

    def _gates_in_hand(
        self, contexts: Mapping[int, SessionContext], rounds: Sequence[Round]
    ) -> set[SpeculationGate]:
        """Return the gates of the sources in hand that drafted for a step, and those that are shut.

        A client that chose draft_n has drafts whatever a gate decides, so its show nothing.
        """
        sessions = len(contexts)
        gates: set[SpeculationGate] = set()
        for done in rounds:
            draft_length = contexts[done.session].session.draft_length
            if not draft_length.adapts:
                continue
            for drafts in done.by_source:
                if not drafts.exact and drafts.source != REMOTE:
                    gates.add(draft_length.gate_of(drafts.source, sessions))
        shut = self._target.speculations.shut(sessions)
        for context in contexts.values():
            gates.update(context.session.draft_length.shut_gates(shut, sessions))
        if self._local is not None and self._local.drafted:
            # Also if a grammar has forbidden all of them.
            gates.add(self._target.speculations.of(self._local.name, sessions).gate)
        return gates

    def _fail(self, step: ev.Step, error: SpecmeshError, now: float) -> None:
        """End the sessions of a failed step, and doubt all that it has touched."""
        # The time until the next step is no pause.
        self._meter.idle()
        self._outbox.append(vev.Noted("step_failed", {"error": str(error)}, "error"))
        seqs = {span.seq for span in step.spans}
        for order in step.orders:
            if not isinstance(order, KVOffload):
                seqs.add(order.seq)
        self._lifecycle.fail(seqs, error, now)


def _spans_of(part: Part, seq: int) -> list[ev.Span]:
    """Return the rows of a session's part: one span, and another for the last id of a prompt."""
    if isinstance(part, ev.Verify):
        return [ev.Span(seq, part.position, (part.last, *part.drafts), logits=True)]
    spans = [ev.Span(seq, part.position, tuple(part.ids), part.stepwise)]
    if part.last is not None:
        end = part.position + len(part.ids)
        spans.append(ev.Span(seq, end, (part.last,), logits=True))
    return spans


def _verified_drafts(
    contexts: Mapping[int, SessionContext], rounds: Sequence[Round]
) -> tuple[bool, bool]:
    """Return whether a step verified drafts of drafter daemons, and whether it did of others.

    Drafts of a number that a client has chosen come whatever the gate decides. They show nothing
    about drafter daemons, so they do not count for them. Exact drafts count for a lone session
    only.
    """
    has_drafts = False
    has_others = False
    lone = len(contexts) == 1
    for done in rounds:
        adapts = contexts[done.session].session.draft_length.adapts
        for drafts in done.by_source:
            if drafts.source == REMOTE:
                has_drafts = has_drafts or adapts
            else:
                has_others = has_others or lone or not drafts.exact
    return has_drafts, has_others


def _has_guesses(rounds: Sequence[Round]) -> bool:
    """Return True if drafts were verified that could have been rejected."""
    guesses = False
    for done in rounds:
        for drafts in done.by_source:
            guesses = guesses or not drafts.exact
    return guesses


# --- the costs of a step, and its threads


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
            # After a wait for drafts the time between two steps is no pause: the engine was ready.
            if not self._waited:
                self._costs.record_pause(started - before)
        if not batch.pure or (cut and not batch.has_drafts):
            return
        rows = batch.rows
        decodes = 1
        if self._width is not None:  # then each part is a decode of its own
            rows = self._width
            decodes = len(batch.parts)
        self._current.record(
            rows, (ended - started) / decodes, context_length=batch.context // decodes
        )


class StepThreads:
    """The threads of steps: fewer while a drafter of this host drafts for a session that generates.

    A step has all threads while that drafter is off, and for prompts. Steps beside a drafter that
    drafts are measured in `costs`, the others in `costs.undrafted`.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._shared: vev.ThreadsShared | None = None  # None: no other daemon computes on this CPU
        self._used = 0

    def share(self, threads: vev.ThreadsShared) -> None:
        """Note how the cores of this host are shared from now on."""
        # The engine has begun with all threads. Only a change is an order to it.
        self._used = self._used or threads.undivided
        self._shared = threads
        if threads.beside != threads.undivided:
            self._costs.split(threads.undivided / threads.beside)
        else:
            self._costs.join()

    def next(self, sessions: Mapping[int, SessionContext]) -> tuple[int | None, StepCosts]:
        """Return the threads of the next step, None if unchanged, and the costs that learn it."""
        shared = self._shared
        if shared is None:
            return None, self._costs
        threads = shared.undivided
        costs = self._costs.undrafted
        for context in sessions.values():
            session = context.session
            # A drafter of another host takes no cores of this one, and a prompt is not drafted for.
            drafted = session.drafting and context.drafter in shared.drafters
            if drafted and session.state is SessionState.GENERATING:
                threads = shared.beside
                costs = self._costs
        if threads == self._used:
            return None, costs
        self._used = threads
        return threads, costs
