"""The drafter's sessions with all its verifiers, and the steps of the draft model that they share.

`handle` takes what happens, `next_step` says what the draft model runs next, `finish` takes what came of it; each gives
what is to be sent, or done by others. One step runs at a time; what happens meanwhile is heard before it is finished.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.accept import uses_proposals
from specmesh.core.draft_session import DrafterSession
from specmesh.core.sampling.constraint import SIMPLER, DraftConstraint, Grammar
from specmesh.core.sampling.proposal import ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.scheduling.kv_slots import NO_CONTENTS, KVContents, KVCut, KVSlots
from specmesh.errors import SpecmeshError

UNTOLD = 0.1  # seconds of work after which it is told of, whatever is heard


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a step of the draft model can be. batches: of rows of several sequences."""

    n_ctx: int
    n_batch: int
    batches: bool = False


@dataclass(slots=True, eq=False)
class _Seat:
    """A session here, and its sequence, if any. plain: the sampler does for every position. grammar: to be compiled by
    others; guided: drafts keep to it by now. undraftable: drafting for it has failed."""

    key: int
    upstream: int
    session: DrafterSession
    sampler: Sampler
    asked: ev.DraftFor
    grammar: Grammar | None
    plain: bool
    seq: int | None = None
    guided: DraftConstraint | None = None
    undraftable: bool = False

    def sampler_for(self, plan: ev.Predict) -> Sampler | None:
        """Raises SpecmeshError where the grammar fails."""
        if not plan.guess:
            return None
        session, back = self.session, self.sampler.looks_back
        sampler = self.sampler.after(session.before(plan, back)) if back else self.sampler
        if self.guided is not None:
            length = session.end(plan) - self.asked.n_prompt
            return self.guided.sampler(sampler, length, lambda count: session.before(plan, count))
        return ProposalSampler(sampler, session.crc_after(plan)) if uses_proposals(sampler.params) else sampler


class DrafterCore:
    """`slots`: the draft model's sequences."""

    def __init__(self, limits: DraftLimits, slots: KVSlots) -> None:
        self.slots = slots
        self._limits = limits
        self._together = limits.batches
        self._seats: dict[int, _Seat] = {}  # those who were served last come last
        self._round_trips: dict[int, float] = {}
        self._speaks: set[int] = set()  # upstreams whose ids the draft model can be asked in
        self._cuts: dict[int, int] = {}  # length by sequence, due before its next row
        self._threads: int | None = None  # of the next step, where that changes
        self._troubles: list[ev.CoreEffect] = []  # found while a step was made
        self._work = ev.Worked()  # that nobody was told of
        self._reuse, self._reuse_changed = slots.snapshot(), False

    def handle(self, event: ev.CoreEvent, now: float) -> list[ev.CoreEffect]:
        match event:
            case ev.Heard(key, told):
                seat = self._seats.get(key)
                return [] if seat is None else self._heard(seat, told, now)
            case ev.DraftFor():
                self._open(event)
            case ev.Aside(key):
                return [*self._worked(), (key, event)]
            case ev.Dropped(key):
                if (seat := self._seats.pop(key, None)) is not None:
                    self._release(seat)
            case ev.CompiledGrammar(key, constraint):
                if (seat := self._seats.get(key)) is not None:
                    seat.guided = DraftConstraint(constraint, seat.asked.end_ids)
            case ev.UpstreamChanged():
                self._changed(event)
            case ev.ForgetSlots():
                self.slots.clear()
                self._slots_changed()
            case ev.UseThreads(threads):
                self._threads = threads
            case _:
                assert_never(event)
        return self._reused()

    def _heard(self, seat: _Seat, told: ev.Told | ev.Nacked, now: float) -> list[ev.CoreEffect]:
        effects = self._of(seat, seat.session.handle(told, now)) + self._worked()
        if seat.grammar is not None and seat.session.active and seat.upstream in self._speaks:
            effects.append((seat.key, seat.grammar))
            seat.grammar = None
        return effects

    def _open(self, asked: ev.DraftFor) -> None:
        params, limits = asked.params, self._limits
        session = DrafterSession(
            asked.n_vocab,
            limits.n_ctx,
            limits.n_batch,
            round_trip=self._round_trips.get(asked.upstream, 0.0),
        )
        sampler = Sampler(params)
        plain = not sampler.looks_back and not uses_proposals(params)
        self._seats[asked.key] = _Seat(asked.key, asked.upstream, session, sampler, asked, asked.grammar, plain)

    def _changed(self, event: ev.UpstreamChanged) -> None:
        self._round_trips[event.upstream] = event.round_trip
        (self._speaks.add if event.speaks else self._speaks.discard)(event.upstream)
        for seat in self._seats.values():
            if seat.upstream == event.upstream:
                seat.session.set_round_trip(event.round_trip)

    def _of(self, seat: _Seat, effects: list[ev.DrafterEffect]) -> list[ev.CoreEffect]:
        """What of a session's effects is for others."""
        told: list[ev.CoreEffect] = []
        for effect in effects:
            if not isinstance(effect, ev.Trim):
                told.append((seat.key, effect))
            elif seat.seq is not None:
                self._cut(seat.seq, effect.length)
        return told

    # --- steps

    def next_step(self, _: float) -> ev.DraftStep | ev.Wait:
        """Return the step that begins now, for sessions that drafts are asked for; the others read nothing."""
        plans = self._plans()
        cuts, threads = self._cuts, self._threads
        if not plans and not cuts and threads is None:
            return ev.Wait(inf)
        self._cuts, self._threads = {}, None
        rows = list[ev.DraftRow]()
        for seat, plan in plans:
            assert seat.seq is not None, "only who has a sequence has a plan"
            plain = seat.plain and seat.guided is None and plan.guess
            sampler = seat.sampler if plain else self._sampler(seat, plan)
            rows.append(ev.DraftRow(seat.key, seat.seq, seat.session.held, plan.ids, sampler))
            self._seats[seat.key] = self._seats.pop(seat.key)  # the others come first next time
        upstream = plans[0][0].upstream if plans else -1
        return ev.DraftStep(upstream, tuple([KVCut(*cut) for cut in cuts.items()]), tuple(rows), threads)

    def _plans(self) -> list[tuple[_Seat, ev.Predict]]:
        """What the first session with work does, and others of its verifier that guess in the same step."""
        plans, room = list[tuple[_Seat, ev.Predict]](), self._limits.n_batch
        for seat in self._seats.values():
            session = seat.session
            if not session.draft_n or seat.upstream not in self._speaks:
                continue
            if (plans and seat.upstream != plans[0][0].upstream) or (seat.seq is None and not self._sit(seat)):
                continue
            plan = session.plan()
            if plan is None or (plans and not (plan.guess and len(plan.ids) <= room)):
                continue
            plans.append((seat, plan))
            room -= len(plan.ids)
            if not (self._together and plan.guess):
                break
        return plans

    def _sampler(self, seat: _Seat, plan: ev.Predict) -> Sampler | None:
        try:
            return seat.sampler_for(plan)
        except SpecmeshError as error:
            seat.guided = None
            self._troubles.append((seat.key, _without_grammar(error)))
            return seat.sampler_for(plan)

    def finish(
        self, step: ev.DraftStep, result: ev.Guesses | SpecmeshError, started: float, ended: float
    ) -> list[ev.CoreEffect]:
        effects, self._troubles = self._troubles, []
        if isinstance(result, SpecmeshError):
            return [*effects, *self._failed(step, result), *self._reused()]
        for seq, held in result.held.items():
            self._kept(seq, held)
        work, drafts = self._work, 0
        for row, token in zip(step.rows, result.tokens, strict=True):
            seat = self._seats.get(row.key)
            if seat is None:
                continue  # it has ended meanwhile
            session, before = seat.session, seat.session.drafted
            if told := session.predicted(row, token, started, ended):
                effects += self._of(seat, told)
            if session.drafted > before:
                drafts += 1
                work.sessions[seat.key] = session.drafted, session.draft_seconds
            if seat.guided is not None and (why := seat.guided.exhausted) is not None:
                seat.guided = None
                effects.append((seat.key, _without_grammar(why)))
        if step.rows:
            work.ended, work.seconds, work.drafts = ended, work.seconds + ended - started, work.drafts + drafts
            if drafts:
                work.draft_seconds += ended - started
            if work.seconds > UNTOLD:  # else it is told with what is heard next: others are not woken for each draft
                effects += self._worked()
        return effects + self._reused() if self._reuse_changed else effects

    def _worked(self) -> list[ev.CoreEffect]:
        if not self._work.seconds:
            return []
        told, self._work = self._work, ev.Worked()
        return [told]

    def _kept(self, seq: int, held: int) -> None:
        """Note what a sequence that was cut holds."""
        for seat in self._seats.values():
            if seat.seq == seq:
                if held < seat.session.held:
                    seat.session.relocated(held)
                return
        self._reuse_changed = True
        self.slots.relocated(seq, held)

    def _failed(self, step: ev.DraftStep, error: SpecmeshError) -> Iterator[ev.CoreEffect]:
        """Several rows: decode one sequence at a time, until it shows which one is to blame."""
        several = len(step.rows) > 1
        for cut in step.cuts if step.rows else ():
            self._cut(cut.seq, cut.length)
        self._together = self._limits.batches and not several
        if several:
            meaning = "sessions are drafted for in turn"
            yield ev.Noted("drafting_together_failed", {"error": str(error), "meaning": meaning}, "warning")
        for row in step.rows:
            seat = self._seats.get(row.key)
            if seat is None:
                continue  # it has ended meanwhile
            if several:
                self._cut(row.seq, seat.session.held)
            else:
                self._release(seat, broken=True)
                seat.undraftable = True
                yield seat.key, ev.Noted("drafting_failed", {"error": str(error)}, "error")

    # --- KV slots of the draft model

    def _cut(self, seq: int, length: int) -> None:
        self._cuts[seq] = min(length, self._cuts.get(seq, length))

    def _sit(self, seat: _Seat) -> bool:
        """Give a session a slot, if need be that of one that no drafts are asked for. Return False where it has none.

        A session without work for the draft model gets none: it would displace another's prompt.
        """
        session, n_prompt = seat.session, seat.asked.n_prompt
        if seat.undraftable or not session.active or session.n_truth < max(n_prompt, 1):
            return False
        if not self.slots and session.draft_n:
            idle = (one for one in self._seats.values() if one.seq is not None and not one.session.draft_n)
            if (spare := next(idle, None)) is not None:
                self._release(spare)
        if not self.slots:
            return False
        seat.seq, held = self.slots.acquire(session.truth, n_prompt, cached=seat.asked.cached)
        session.relocated(held)
        self._slots_changed()
        return True

    def _release(self, seat: _Seat, *, broken: bool = False) -> None:
        """Give a session's slot back, with the committed ids that it holds."""
        if seat.seq is None:
            return
        session = seat.session
        held = min(session.held, session.n_truth) if seat.asked.cached and not broken else 0
        self._cut(seat.seq, held)
        self.slots.release(seat.seq, KVContents(session.truth[:held], seat.asked.n_prompt) if held else NO_CONTENTS)
        seat.seq = None
        session.relocated(0)
        self._slots_changed()

    def _slots_changed(self) -> None:
        self._reuse_changed = True
        for order in self.slots.orders():
            assert isinstance(order, KVCut), "a draft model copies nothing"
            self._cut(order.seq, order.length)

    def _reused(self) -> list[ev.CoreEffect]:
        if not self._reuse_changed:
            return []
        self._reuse_changed, before, self._reuse = False, self._reuse, self.slots.snapshot()
        return [self._reuse] if self._reuse != before else []


def _without_grammar(why: object) -> ev.Noted:
    meaning = "its drafts go without"
    return ev.Noted("grammar_spent", {"error": str(why), "meaning": meaning, "hint": SIMPLER}, "warning")
