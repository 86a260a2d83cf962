"""The verifier's core: its sessions from beginning to end, who drafts for them, and the steps of its target.

`handle` takes what happened, `next_step` says what the target runs next, `finish` takes what came of it. Both return
what is to be done. The engine's thread calls it, nobody else.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import REMOTE
from specmesh.core.draft_length.speculation import SharedSpeculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_slots import NO_CONTENTS, KVOffload, KVSlots
from specmesh.core.requests import Scored
from specmesh.core.rounds import Round
from specmesh.core.session_params import TargetLimits
from specmesh.core.statistics.counters import SERVED, RoundCounts
from specmesh.core.statistics.session_report import session_report, session_row
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import GRACE, READER_PATIENCE, KeptSessions, WaitingRequests
from specmesh.core.verifier.drafter_pool import DrafterPool
from specmesh.core.verifier.scheduler import PREFILL_ROWS, Batch, Scheduler
from specmesh.core.verifier.session import VerifierSession
from specmesh.core.verifier.session_context import ContextState, SessionContext
from specmesh.core.verifier.step_meter import StepDrafts, StepMeter
from specmesh.core.verifier.step_threads import StepThreads
from specmesh.errors import LocalProtocolError, NoSuchText, RequestError, SpecmeshError
from specmesh.wire import messages as m


class VerifierCore:
    """`costs` are of this target's steps; `slots` are its sequences, one a session. n_batch: most
    rows of a step, at least `max_sessions`. guests: sequences for short texts besides.
    prefill_rows: of prompts, in a step in which others verify. first: id of the first session.
    grace: seconds that a session is kept for its lost drafter."""

    def __init__(
        self,
        limits: TargetLimits,
        costs: StepCosts,
        slots: KVSlots,
        n_batch: int,
        *,
        max_sessions: int,
        guests: int = 0,
        prefill_rows: int = PREFILL_ROWS,
        first: int = 1,
        grace: float = GRACE,
    ) -> None:
        self.sessions: dict[int, SessionContext] = {}  # those that have a sequence
        self._limits, self._costs, self._slots = limits, costs, slots
        self._shared = SharedSpeculations()
        self._ids = itertools.count(first)
        self._scheduler = Scheduler(n_batch, costs, prefill_rows, constant=limits.width is not None)
        self._meter = StepMeter(costs, limits.width)
        self._batch: Batch | None = None  # of the step that runs
        self._late: list[vev.Change] = []  # what happened while the step ran
        self._effects: list[vev.Effect] = []
        self.drafters = DrafterPool(self.sessions)
        self._max_sessions, self._guests = max_sessions, guests
        self.waiting = WaitingRequests(max_sessions, guests)
        self.kept = KeptSessions(grace)
        self._paused: dict[int, float] = {}  # sessions that wait for their readers, and until when
        self._threads = StepThreads(costs)
        self._stray_frames = 0
        self._over = RoundCounts()  # of sessions that have ended
        self._now = 0.0  # of the newest event

    def _tell(self, effect: vev.Effect) -> None:
        self._effects.append(effect)

    def take_effects(self, now: float) -> list[vev.Effect]:
        """Do what is due between two steps, and return all that is to be done."""
        if self._batch is None:
            for live in self.kept.expire(now) if self.kept else ():
                self._drop(live)
            if self._paused:
                self._end_paused(now)
            if self.waiting.openings:
                self._admit(now)
        effects, self._effects = self._effects, []
        return effects

    # --- what happened

    def handle(self, event: vev.Happened, now: float) -> list[vev.Effect]:
        """Take what happened. While a step runs only what drafters say counts, and when it came: sessions begin, end
        and change their drafter between steps."""
        self._now = now
        if isinstance(event, vev.FromDrafter):
            self._heard(event, now)
        elif self._batch is not None:
            self._late.append(event)
        else:
            self._change(event, now)
        return self.take_effects(now)

    def _change(self, event: vev.Change, now: float) -> None:
        match event:
            case vev.Opening():
                self._resume_or_wait(event, now)
            case vev.Solved(session, policy):
                if (live := self.sessions.get(session)) is not None:
                    live.session.draft_length.solved(policy)
            case vev.RoundTrip(name, seconds):
                self.drafters.round_trip(name, seconds)
            case vev.ClientLeft(client):
                self.waiting.withdraw(lambda opening: opening.client == client)
                for live in self._sessions_of(client):
                    self._cancel(live)
            case vev.ClientPaused(client, paused):
                for live in self._sessions_of(client):
                    self._pause(live, now, paused=paused)
            case vev.SessionPaused(drafter, session, paused):
                asked = self.sessions.get(session)
                if asked is not None and asked.owner == drafter:  # nobody else may say so
                    self._pause(asked, now, paused=paused)
            case vev.SessionClosed(drafter, session):
                self._closed(drafter, session)
            case vev.DrafterJoined():
                self._effects += self.drafters.join(event, now)
            case vev.DrafterLeft(drafter, may_return):
                self._left(drafter, now, may_return=may_return)
            case vev.DrafterMuted(drafter, muted):
                self._effects += self.drafters.mute(drafter, now, muted=muted)
            case vev.ThreadsShared():
                self._threads.shared(event)
            case vev.Signal.STOPPING:  # nobody can come back for what is kept
                self.kept.grace = 0.0
                while (kept := self.kept.running()) is not None:
                    self._drop(kept)
            case vev.Signal.REPORT_WANTED:
                self._tell(self._report(now))
            case vev.Signal.TIME_UP:
                pass  # `take_effects` looks what is due
            case _:
                assert_never(event)

    def _sessions_of(self, client: int) -> list[SessionContext]:
        return [live for live in self.sessions.values() if live.client == client]

    def _heard(self, event: vev.FromDrafter, now: float) -> None:
        live = self.sessions.get(event.said.session)
        if live is not None and live.drafter == event.drafter:
            self._carry_out(live, live.session.take(event.said, now))
        else:
            self._stray_frames += 1

    def _report(self, now: float) -> vev.CoreReport:
        lives, totals, costs = list(self.sessions.values()), RoundCounts(), self._costs.alone
        for live in lives:
            changed = self.drafters.changed(live, now)
            if changed is not None:
                self._tell(changed)
        for counts in (self._over, *(live.session.counts for live in lives)):
            totals.add(counts)
        return vev.CoreReport(
            sessions=[self._row(live, now) for live in lives],
            drafters=self.drafters.reports(),
            kept=len(self.kept),
            stray_frames=self._stray_frames,
            draft_n=lives[-1].session.draft_n if lives else None,
            prefix_cache=self._slots.snapshot(),
            totals=totals,
            step_s=costs.seconds(1),
            steps=costs.tables(),
        )

    def _row(self, live: SessionContext, now: float) -> dict[str, object]:
        drafter, no_drafts = self.drafters.name(live.drafter), self.drafters.no_drafts(live)
        return session_row(live.session, drafter, now, no_drafts)

    # --- steps

    def next_step(self, now: float) -> ev.Step | ev.Wait:
        """Return the step that begins now, or until when there is none: for ever, infinity."""
        if self._batch is not None:
            raise LocalProtocolError("a step begins while another runs")
        running = self._running() if self._paused else self.sessions
        if not running:
            self._meter.idle()
        batch = self._scheduler.next_batch(running, now)
        if isinstance(batch, ev.Wait):
            return self._until_due(batch)
        sessions, spans, waited = self.sessions, list[ev.Span](), 0.0
        for key, part in batch.parts:
            session = sessions[key].session
            seq = session.slot.seq
            if isinstance(part, ev.Verify):
                waited += session.begin(now)
                spans.append(ev.Span(seq, part.position, (part.last, *part.drafts), logits=True))
            else:
                spans.append(ev.Span(seq, part.position, part.ids, logits=part.stepwise))
        self._batch = batch
        threads, costs = self._threads.next(sessions)
        self._meter.begun(costs, waited=waited > 0)
        return ev.Step(self._slots.orders(), tuple(spans), threads)

    def finish(
        self, step: ev.Step, result: Sequence[ev.Rows] | SpecmeshError, started: float, ended: float
    ) -> list[vev.Effect]:
        """Take in what a step gave, per span its rows of logits; or why it failed, which ends its sessions."""
        if (batch := self._batch) is None:
            raise LocalProtocolError("a step ends that has not begun")
        self._batch = None
        self._now = ended
        if isinstance(result, SpecmeshError):
            self._failed(step, result)
        else:
            self._stepped(batch, step, result, started, ended)
        late, self._late = self._late, []
        for event in late:
            self._change(event, ended)
        return self.take_effects(ended)

    def _stepped(
        self, batch: Batch, step: ev.Step, result: Sequence[ev.Rows], started: float, ended: float
    ) -> None:
        """Give each session its rows, then gate and drafter pool what the whole step has brought."""
        self._meter.ended(batch, started, ended, cut=bool(step.orders))
        lives: list[SessionContext] = []
        rounds: list[tuple[SessionContext, Round]] = []
        asked = False
        for (key, part), logits in zip(batch.parts, result, strict=True):
            live = self.sessions[key]
            lives.append(live)
            asked = asked or live.session.draft_length.asking
            effects: list[ev.VerifierEffect] = []
            if isinstance(part, ev.Prefill):
                effects = live.session.prefilled(len(part.ids), logits)
            elif logits is not None:
                effects = live.session.stepped(
                    part, logits, ended, seconds=ended - started, sessions=len(batch.parts)
                )
            rounds += [(live, effect) for effect in effects if isinstance(effect, Round)]
            self._carry_out(live, effects)
        tokens = sum(done.shown for _, done in rounds)
        if lives and self.drafters.drafters:
            self._compare(batch, lives, rounds, tokens, asked=asked, ended=ended)
        self._tell(vev.Ran(started, ended, batch.rows, tokens))

    def _compare(
        self,
        batch: Batch,
        lives: list[SessionContext],
        rounds: list[tuple[SessionContext, Round]],
        tokens: int,
        *,
        asked: bool,
        ended: float,
    ) -> None:
        """Compare a step with those without drafts, and see whether sessions change drafters."""
        alone = len(lives) == 1
        if alone:
            speculation = self.drafters.speculation(lives[0])
        else:
            speculation = self._shared.of(REMOTE, len(lives))
        # Every step pays for all that is done here while drafts are refused.
        refused = speculation is not None and speculation.gate.refuses
        if speculation is not None:
            drafts = StepDrafts(
                tokens=tokens,
                seconds_alone=lives[0].session.draft_length.alone if alone and not refused else 0.0,
                asked=asked,
                had=any(_speculated(live, done) for live, done in rounds),
                had_exact=any(done.exact_drafts for _, done in rounds),
            )
            self._meter.compare(batch, drafts, speculation.gate)
        if not refused or len(self.drafters.drafters) > 1:
            for live in lives:
                self._effects += self.drafters.stepped(live, ended)

    def _failed(self, step: ev.Step, error: SpecmeshError) -> None:
        self._meter.idle()  # the time until the next step is no pause
        self._tell(vev.Noted("step_failed", {"error": str(error)}, "error"))
        doubtful = {
            one.seq for one in (*step.orders, *step.spans) if not isinstance(one, KVOffload)
        }
        self._slots.doubt(doubtful)
        for live in [live for live in self.sessions.values() if live.session.slot.seq in doubtful]:
            if live.client is not None:
                self._tell(vev.RequestRefused(live.client, error))
            self._cancel(live, m.FinishReason.ERROR)

    # --- a session waits for its reader

    def _until_due(self, wait: ev.Wait) -> ev.Wait:
        """Return a wait that ends when something is due besides steps."""
        until = min(wait.until, self.kept.next_end) if self.kept else wait.until
        if self._paused:
            until = min(until, *self._paused.values())
        return ev.Wait(until)

    def _running(self) -> dict[int, SessionContext]:
        """Return the sessions that do not wait for their readers."""
        return {key: live for key, live in self.sessions.items() if key not in self._paused}

    def _pause(self, live: SessionContext, now: float, *, paused: bool) -> None:
        """Let a session have no steps, or have them again."""
        if paused == (live.id in self._paused):
            return
        if paused:
            self._paused[live.id] = now + READER_PATIENCE
        else:
            del self._paused[live.id]
            live.session.draft_length.interrupted()
        fields: dict[str, object] = {"session": live.id, "paused": paused}
        self._tell(vev.Noted("session_paused", fields, "debug"))

    def _end_paused(self, now: float) -> None:
        """End sessions whose readers have kept them waiting for too long."""
        for key, until in list(self._paused.items()):
            if now >= until:
                self._note("session_unread", self.sessions[key], seconds=READER_PATIENCE)
                self._cancel(self.sessions[key])

    # --- a session begins

    def _resume_or_wait(self, opening: vev.Opening, now: float) -> None:
        """Resume the session that a request names, else let it wait for a sequence."""
        resumed = self._resumed(opening, now)
        if not resumed and opening.n_prompt:
            self.waiting.openings.append(opening)
        elif not resumed:
            self._tell(vev.RequestRefused(opening.client, NoSuchText()))

    def _admit(self, now: float) -> None:
        """Begin what waits; sessions that are kept give way."""
        while (found := self.waiting.next(self.sessions.values())) is not None:
            opening, guest = found
            if not self._resumed(opening, now):
                self._begin(opening, now, guest=guest)

    def _begin(self, opening: vev.Opening, now: float, *, guest: bool) -> None:
        """Begin a session on valid ids; one whose text ended with them is over at once."""
        there = sum(live.guest == guest for live in self.sessions.values())
        full = there >= (self._guests if guest else self._max_sessions)
        if full and (kept := self.kept.running(guest=guest)) is not None:
            self._drop(kept)
        ids, params = opening.ids, opening.request.params
        others = ((live.session.slot.seq, live.session.memory) for live in self.sessions.values())
        slot = self._slots.acquire(ids, opening.n_prompt - 1, others, cached=params.cache_prompt)
        session = VerifierSession(
            id=next(self._ids),
            ids=ids,
            params=params,
            limits=self._limits,
            costs=self._costs,
            shared=self._shared,
            now=now,
            n_prompt=opening.n_prompt,
            constraint=opening.constraint,
            slot=slot,
        )
        live = SessionContext(
            session=session,
            client=opening.client,
            owner=opening.owner,
            name=opening.request.id,
            key=opening.key,
            guest=guest,
        )
        self.sessions[live.id] = live
        self.drafters.share(self.waiting.sharing(len(self.sessions)))
        self._tell(live.opened(opening.request.label))
        self._hand_over(live, opening, now)
        if session.finished is not None:
            self._finish(live, session.finished, None, now)

    def _resumed(self, opening: vev.Opening, now: float) -> bool:
        """Give an opening the session that it names, if any, or refuse it where it must not have that; return False
        where there is none."""
        name = opening.request.id
        known = (*self.sessions.values(), *self.kept.values()) if name else ()
        live = next((one for one in known if one.name == name), None)
        if live is None:
            return False
        # A client here needs no key: it could read the daemon's memory as well.
        if opening.owner is not None and opening.key != live.key:
            self._tell(vev.RequestRefused(opening.client, NoSuchText()))
            return True
        end = live.end
        if end is None:
            self._take_over(live, opening.owner)
            self.kept.pop(live.id, None)
            live.move(ContextState.CONNECTED)
        self._note("session_resumed", live, tokens=live.session.generated)
        self._hand_over(live, opening, now, adopted=True)
        if end is not None:
            self._tell(replace(end, client=live.client, again=True))
            if live.owner is None:
                self._forget(live)
            else:
                done = m.Done(live.id, end.reason, len(live.session.prefix), end.report)
                self._tell(vev.ToDrafter(live.owner, done))
                self._keep(live, ContextState.ENDED, now)
        return True

    def _take_over(self, live: SessionContext, owner: vev.DrafterId | None) -> None:
        """Take a session from its client and drafter for `owner`, the drafter that gets it, if one does."""
        if live.owner is None and live.client is not None:
            error = RequestError("somebody else has asked for this text by its name")
            self._tell(vev.RequestRefused(live.client, error))
        for identity in {live.owner} if owner is None else {live.owner, live.drafter}:
            if identity is not None and identity != owner:
                self._effects += self.drafters.release(live, identity)
                if live.drafter == identity:
                    self.drafters.detach(live)

    def _hand_over(
        self, live: SessionContext, opening: vev.Opening, now: float, *, adopted: bool = False
    ) -> None:
        """Give a session to the opening's client, with what that does not know of the text."""
        self._pause(live, now, paused=False)  # that was for the reader before
        session, live.client, live.owner = live.session, opening.client, opening.owner
        live.tenant = opening.tenant
        session.followed = opening.owner is not None
        self._tell(live.began(opening.request.known, adopted=adopted))
        if opening.owner is not None:
            self._effects += self.drafters.attach(live, opening.owner, now)
        elif (
            session.finished is None
            and live.drafter is None
            and session.may_draft
            and self.drafters.drafters
        ):
            self._effects += self.drafters.find(live, now)

    # --- a drafter comes or goes

    def _left(self, drafter: vev.DrafterId, now: float, *, may_return: bool) -> None:
        """Keep the sessions of a lost drafter's own clients where it may return, give the others another drafter."""
        self.waiting.withdraw(lambda opening: opening.owner == drafter)
        self.drafters.gone(drafter)
        for live in [live for live in self.sessions.values() if live.owner == drafter]:
            if may_return and live.name and self.kept.grace > 0:
                self._keep(live, ContextState.KEPT, now)
                self._pause(live, now, paused=False)
                live.client, live.owner, live.session.followed = None, None, False
                self._note("session_kept", live, seconds=self.kept.grace)
            else:
                self._cancel(live)
        self._effects += self.drafters.find_all(now)

    def _closed(self, drafter: vev.DrafterId, session: int) -> None:
        live = self.sessions.get(session) or self.kept.get(session)
        if live is not None and live.owner == drafter:  # nobody else may say so
            if live.state is ContextState.ENDED:
                self._forget(live)
            else:
                self._cancel(live)

    # --- a session ends

    def _cancel(
        self, live: SessionContext, reason: m.FinishReason = m.FinishReason.CANCELLED
    ) -> None:
        self._carry_out(live, live.session.cancel(reason))

    def _drop(self, live: SessionContext) -> None:
        """Give up a session that was kept."""
        self._forget(live)
        if live.id in self.sessions:
            self._note("session_dropped", live, tokens=live.session.generated)
            self._cancel(live)

    def _keep(self, live: SessionContext, state: ContextState, now: float) -> None:
        live.move(state)
        self.kept.add(live, now)

    def _forget(self, live: SessionContext) -> None:
        live.move(ContextState.FORGOTTEN)
        self.kept.pop(live.id, None)
        self._tell(vev.Forgotten(live.id))

    def _carry_out(self, live: SessionContext, effects: Sequence[ev.VerifierEffect]) -> None:
        """Turn what a session wants into effects: it knows neither client nor drafter, nor its sequence."""
        session = live.session
        for effect in effects:
            match effect:
                case Round():
                    draft_n, first = session.draft_length.draft_n, session.counts.rounds == 1
                    self._effects.append(
                        vev.Committed(session.id, live.client, effect, self._now, draft_n, first)
                    )
                case m.Truth() | m.Sync() | m.Nack():
                    self._effects += self.drafters.send(live, effect)
                case Scored():
                    self._tell(vev.ToClient(live.client, effect))
                case ev.Trim(length):
                    self._slots.cut(session.slot.seq, length)
                case ev.Finish(reason, error):
                    if error is not None:
                        self._tell(
                            vev.Noted(
                                "session_broke",
                                {"session": live.id, "error": str(error)},
                                "warning",
                            )
                        )
                    self._finish(live, reason, error, self._now)
                case _:
                    assert_never(effect)

    def _note(self, name: str, live: SessionContext, **fields: object) -> None:
        self._tell(vev.Noted(name, {"session": live.id, **fields}))

    def _finish(
        self, live: SessionContext, reason: m.FinishReason, error: SpecmeshError | None, now: float
    ) -> None:
        """Free a session's sequence, and tell its client and its drafters."""
        if self.sessions.pop(live.id, None) is None:
            return
        self._paused.pop(live.id, None)
        session, drafter = live.session, live.drafter
        self._slots.release(
            session.slot.seq,
            NO_CONTENTS if session.finished is m.FinishReason.ERROR else session.memory,
        )
        self._over.add(session.counts)
        self.drafters.weigh()
        no_drafts = self.drafters.verdict(live)
        report = session_report(session, self._costs, self.drafters.name(drafter), now, no_drafts)
        whole = live.prompt_ids, report, now - session.times.opened
        live.end = vev.SessionEnded(live.id, live.client, reason, error, *whole)
        self._tell(live.end)
        counts = {name: getattr(session.counts, name) for name in ("rounds", "accepted", "drafted")}
        if session.constraint is not None and session.constraint.exhausted is not None:
            counts["grammar_spent"] = (
                session.constraint.exhausted
            )  # none of its drafts was verified from then on
        if no_drafts is not None:
            counts["no_drafts"] = no_drafts
        self._note("session_finished", live, reason=reason, tokens=session.generated, **counts)
        if drafter is not None and live.announced:
            done = m.Done(
                live.id, reason, len(session.prefix), report if live.owner == drafter else {}
            )
            self._tell(vev.ToDrafter(drafter, done))
        match live.state:
            case ContextState.CONNECTED if (
                live.owner is not None and live.name and reason in SERVED
            ):
                self._keep(live, ContextState.ENDED, now)  # until it is closed: DONE may be lost
            case ContextState.CONNECTED:
                self._forget(live)
            case ContextState.KEPT:
                live.move(ContextState.ENDED)
            case ContextState.ENDED | ContextState.FORGOTTEN:
                pass  # it was given up
            case _:
                assert_never(live.state)


def _speculated(live: SessionContext, done: Round) -> bool:
    """Return True for a round with drafts that were asked for adaptively."""
    return len(done.drafts) > done.exact_drafts and live.session.draft_length.adapts
