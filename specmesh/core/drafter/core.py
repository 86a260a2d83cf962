"""The drafter's sessions with all its verifiers, and the steps of the draft model that they share.

`handle` takes what happens, `next_step` says what the draft model runs next, `finish` takes what came of it; each gives
what is to be sent, or done by others. One step runs at a time; what happens meanwhile is heard before it is finished.
"""

from dataclasses import replace
from math import inf
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.drafter.session import DrafterSession, DraftLimits
from specmesh.core.kv_slots import NO_CONTENTS, KVContents, KVCut, KVOffload, KVSlots
from specmesh.core.sampling.constraint import DraftConstraint
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

REPORT_INTERVAL = 0.25  # seconds until it is reported again what was done, while nothing is over


class DrafterCore:
    """`slots`: the draft model's sequences."""

    def __init__(self, limits: DraftLimits, slots: KVSlots) -> None:
        self.slots = slots
        self._limits = limits
        self.sessions: dict[int, DrafterSession] = {}  # those who were served last come last
        self._round_trips: dict[int, float] = {}
        self._speaks: set[int] = set()  # upstreams whose ids the draft model can be asked in
        self._cuts: dict[
            int, int
        ] = {}  # length by sequence that no session has, due before its next row
        self._threads: int | None = None  # of the next step, where that changes
        self._work = ev.Worked()  # that is not reported yet
        self._reported_at = 0.0
        self._slots_changed = False

    def handle(self, event: ev.CoreEvent, now: float) -> list[ev.CoreEffect]:
        match event:
            case ev.Heard(key, said):
                session = self.sessions.get(key)
                return [] if session is None else self._heard(session, said, now)
            case ev.DraftFor(key, upstream):
                round_trip = self._round_trips.get(upstream, 0.0)
                self.sessions[key] = DrafterSession(event, self._limits, round_trip=round_trip)
            case ev.FollowUp(
                key
            ):  # in order with what is learned, so that no end overtakes its text
                if (session := self.sessions.get(key)) is not None:
                    event = replace(
                        event,
                        draft_tokens=session.draft_tokens,
                        draft_seconds=session.draft_seconds,
                    )
                return [(key, event)]
            case ev.Dropped(key):
                if (session := self.sessions.pop(key, None)) is not None:
                    self._release(session)
                return self._worked(now)  # `stats` would miss it: there may be no step for long
            case ev.CompiledGrammar(key, constraint):
                if (session := self.sessions.get(key)) is not None:
                    session.guided = DraftConstraint(constraint, session.opened.end_ids)
            case ev.UpstreamChanged():
                return self._changed(event, now)
            case ev.UseThreads(threads):
                self._threads = threads
            case _:
                assert_never(event)
        return []

    def _heard(
        self, session: DrafterSession, said: m.Truth | m.Sync | m.Nack, now: float
    ) -> list[ev.CoreEffect]:
        """Take in what was said; the first time that drafts are asked for have the grammar compiled, which takes long:
        texts that nobody drafts for need none."""
        key, effects = session.opened.key, list[ev.CoreEffect]()
        for effect in session.handle(said, now):
            if isinstance(effect, ev.Learned):
                if not effect.sync:
                    work = self._work
                    work.rounds, work.accepted = work.rounds + 1, work.accepted + effect.own
                    work.committed += len(effect.ids)
                if not session.opened.learns:
                    continue
            effects.append((key, effect))
        if (
            session.grammar is not None
            and session.draft_n
            and session.opened.upstream in self._speaks
        ):
            effects.append((key, session.grammar))
            session.grammar = None
        return effects

    def _changed(self, event: ev.UpstreamChanged, now: float) -> list[ev.CoreEffect]:
        self._round_trips[event.upstream] = event.round_trip
        for session in self.sessions.values():
            if session.opened.upstream == event.upstream:
                session.set_round_trip(event.round_trip)
        if event.speaks:
            self._speaks.add(event.upstream)
        elif event.upstream in self._speaks:
            self._speaks.discard(event.upstream)
            self.slots.clear()  # of ended sessions: the same ids may come to mean other tokens
            self._slots_changed = True
            return self._worked(now)
        return []

    def _worked(self, now: float) -> list[ev.CoreEffect]:
        """Tell what was done."""
        report, self._work = self._work, ev.Worked()
        if self._slots_changed:
            report.prefix_cache = self.slots.snapshot()
        self._reported_at, self._slots_changed = now, False
        return [report]

    # --- steps

    def next_step(self, _: float) -> ev.DraftStep | ev.Wait:
        """Return the step that begins now, for sessions that drafts are asked for; the others read nothing."""
        upstream, rows = self._rows()
        offloads = self._ordered()
        for session in self.sessions.values():
            if session.seq is not None and session.held < session.fed:
                self._cut(session.seq, session.held)
        cuts, threads = self._cuts, self._threads
        if not rows and not cuts and not offloads and threads is None:
            return ev.Wait(inf)
        for row in rows:
            self.sessions[row.key] = self.sessions.pop(row.key)  # the others come first next time
        self._cuts, self._threads = {}, None
        orders = tuple([KVCut(*cut) for cut in cuts.items()]) if cuts else ()
        return ev.DraftStep(upstream, orders, tuple(rows), threads, offloads)

    def _rows(self) -> tuple[int, list[ev.DraftRow]]:
        """What the first session with work does, and others of its verifier that draft in the same step."""
        upstream, rows, room = -1, list[ev.DraftRow](), self._limits.n_batch
        for session in self.sessions.values():
            theirs = session.opened.upstream
            if not session.draft_n or theirs not in self._speaks or (rows and theirs != upstream):
                continue
            if session.seq is None and not self._sit(session):
                continue
            row = session.plan(room if rows else None) if not (rows and session.alone) else None
            if row is None:
                continue
            upstream = theirs
            rows.append(row)
            room -= len(row.ids)
            if not self._limits.batches or row.sampler is None or session.alone:
                break
        return upstream, rows

    def finish(
        self,
        step: ev.DraftStep,
        result: ev.DraftedRows | SpecmeshError,
        started: float,
        ended: float,
    ) -> list[ev.CoreEffect]:
        if isinstance(result, SpecmeshError):
            return self._failed(step, result)
        for seq, held in result.held.items():
            self._kept(seq, held)
        effects, work, drafted = list[ev.CoreEffect](), self._work, 0
        for row, tokens in zip(step.rows, result.tokens, strict=True):
            session = self.sessions.get(row.key)
            if session is None:
                continue  # it has ended meanwhile
            session.alone = session.alone and not tokens
            for effect in session.predicted(row, tokens, started, ended):
                effects.append((row.key, effect))
            drafted += len(tokens)
        work.ended, work.seconds = ended, work.seconds + ended - started
        if drafted:
            work.drafted, work.draft_seconds = (
                work.drafted + drafted,
                work.draft_seconds + ended - started,
            )
        if self._slots_changed or ended - self._reported_at > REPORT_INTERVAL:
            effects += self._worked(ended)
        return effects

    def _kept(self, seq: int, held: int) -> None:
        """Note what a sequence that was cut holds."""
        for session in self.sessions.values():
            if session.seq == seq:
                session.cut_to(held)
                return
        self._slots_changed = True
        self.slots.relocated(seq, held)

    def _failed(self, step: ev.DraftStep, error: SpecmeshError) -> list[ev.CoreEffect]:
        """Who had the rows of a failed step to itself gets no more drafts, and its verifier goes on alone. Others try
        alone."""
        report, alone = list[ev.CoreEffect](), len(step.rows) == 1
        for row in step.rows:
            session = self.sessions.get(row.key)
            if session is None:
                continue  # it has ended meanwhile
            self._release(session, broken=True)
            session.undraftable, session.alone = alone, True
            if alone:
                report.append(
                    (row.key, ev.Noted("drafting_failed", {"error": str(error)}, "error"))
                )
        for cut in step.cuts:  # perhaps not carried out
            self._cut(cut.seq, cut.length)
        return report

    # --- KV slots of the draft model

    def _cut(self, seq: int, length: int) -> None:
        self._cuts[seq] = min(length, self._cuts.get(seq, length))

    def _sit(self, session: DrafterSession) -> bool:
        """Give a session that drafts are asked for a slot, if need be that of one without. Return False where it has
        none."""
        n_prompt = session.opened.n_prompt
        if session.undraftable or session.n_truth < max(n_prompt, 1):
            return False
        if not self.slots:
            idle = (
                one for one in self.sessions.values() if one.seq is not None and not one.draft_n
            )
            if (spare := next(idle, None)) is None:
                return False
            self._release(spare)
        slot = self.slots.acquire(session.truth, n_prompt, cached=session.opened.cached)
        session.seq = slot.seq
        session.held = session.fed = slot.length
        self._slots_changed = True
        return True

    def _release(self, session: DrafterSession, *, broken: bool = False) -> None:
        """Give a session's slot back, with the committed ids that it holds."""
        if session.seq is None:
            return
        opened, held = session.opened, min(session.held, session.n_truth)
        if broken or not opened.cached:
            held = 0
        self._cut(session.seq, held)
        self.slots.release(
            session.seq, KVContents(session.truth[:held], opened.n_prompt) if held else NO_CONTENTS
        )
        session.seq, session.held, session.fed = None, 0, 0
        self._slots_changed = True

    def _ordered(self) -> tuple[int, ...]:
        """Take over the cuts that the slots order; return the sequences to offload."""
        offloads: tuple[int, ...] = ()
        for order in self.slots.orders():
            if isinstance(order, KVOffload):
                offloads += (order.seq,)
            else:
                assert isinstance(order, KVCut), "a draft model copies nothing"
                self._cut(order.seq, order.length)
        return offloads
