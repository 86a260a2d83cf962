"""A drafter's sessions with one verifier: what specmesh.core plans for them is drafted, a unit at a time, and sent."""

import itertools
import time
from dataclasses import replace
from typing import Protocol, assert_never

import structlog

from specmesh.api.requests import EventSink, Failed
from specmesh.core import events as ev
from specmesh.core.draft_session import DrafterSession
from specmesh.core.drafting.verifier_choice import PaceMeter, ReportedLoad
from specmesh.core.sampling.proposal import ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.scheduling.kv_slots import NO_CONTENTS, KVContents, KVSlots
from specmesh.daemons.drafter.draft_session import DraftGrammars, DraftSession
from specmesh.daemons.drafter.retry_queue import PendingRequest, error_of, same_model
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.daemons.link.dealer import Dealer
from specmesh.daemons.link.frames import frame_of, grammar_of, params_of
from specmesh.daemons.link.peers import U32
from specmesh.engines.base import Ask, DraftEngine, predict_all
from specmesh.errors import Busy, DaemonUnreachable, EngineError, RemoteProtocolError, RequestError, SpecmeshError
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")

_Work = tuple[DraftSession, ev.Predict]


class RequestOwner(Protocol):
    """Takes back requests; `by` is the address of a verifier, `again`: the one that had it may be asked at once."""

    def refused(self, pending: PendingRequest, error: SpecmeshError, now: float, by: str) -> None: ...
    def lost(self, pending: PendingRequest, error: SpecmeshError, now: float, *, again: bool) -> None: ...
    def found(self, welcome: m.Welcome, by: str) -> None: ...


class DraftSessions:
    """All sessions with one verifier: `live` by id, `asked` by ref those not opened yet.

    address: the verifier's; load: its newest; meter: its pace. slots: KV slots of the draft model, perhaps shared with
    other verifiers. temperature: of drafts for sampled texts; None for the text's own.
    """

    def __init__(
        self,
        dealer: Dealer,
        engine: DraftEngine,
        stats: DrafterStats,
        address: str,
        owner: RequestOwner,
        slots: KVSlots,
        temperature: float | None = None,
    ) -> None:
        self.live: dict[int, DraftSession] = {}
        self.asked: dict[int, PendingRequest] = {}
        self.load, self.meter, self.slots = ReportedLoad(), PaceMeter(), slots
        self._dealer, self._engine, self._stats, self._address = dealer, engine, stats, address
        self._owner, self._temperature = owner, temperature
        self._welcome: m.Welcome | None = None  # the newest verifier's, also once it is gone
        self._grammars = DraftGrammars()
        self._refs = itertools.count(1)
        self._together = engine.info.batches

    @property
    def own(self) -> int:
        """Number of requests of clients here that the verifier has, or was asked for."""
        return len(self.asked) + sum(live.pending is not None for live in self.live.values())

    # --- drafting

    def work(self, engine: DraftEngine, round_trip: float) -> bool:
        """Do one unit of work: first for sessions that drafts are asked for. Return False where there was none.

        `engine` speaks the verifier's ids.
        """
        turns = sorted(self.live.values(), key=lambda live: live.machine.draft_n == 0)
        for live in turns:
            plan = self._plan(live, round_trip)
            if plan is not None:
                self._predict(engine, [(live, plan), *self._beside(live, plan, turns, round_trip)])
                return True
        return False

    def shadow(self, engine: DraftEngine) -> bool:
        """Shadow sessions, which is for when no session has drafting to do. Return False where none is due."""
        most = self._engine.info.n_batch if self._together else 1
        plans = ((live, live.machine.plan_shadow()) for live in self.live.values() if live.seq is not None)
        due = [(live, plan) for live, plan in plans if plan is not None][:most]
        if due:
            self._predict(engine, due)
        return bool(due)

    def _plan(self, live: DraftSession, round_trip: float) -> ev.Predict | None:
        seated = live.seq is not None or self._seat(live)
        return live.machine.plan(round_trip) if seated else None

    def _beside(
        self, first: DraftSession, plan: ev.Predict, turns: list[DraftSession], round_trip: float
    ) -> list[_Work]:
        found, room = list[_Work](), self._engine.info.n_batch - len(plan.ids)
        if not self._together or not plan.guess:
            return found
        for live in turns:
            other = self._plan(live, round_trip) if live is not first and live.machine.draft_n else None
            if other is not None and other.guess and len(other.ids) <= room:
                found.append((live, other))
                room -= len(other.ids)
        return found

    def _predict(self, engine: DraftEngine, work: list[_Work]) -> None:
        for live, _ in work:
            if live.id in self.live:
                self.live[live.id] = self.live.pop(live.id)  # the others come first next time
            self._grammars.update(live, engine.vocabulary)
        started = time.monotonic()
        asks = [(live, plan, ask) for live, plan in work if (ask := self._ask(live, plan)) is not None]
        try:
            tokens = predict_all(engine, [ask for _, _, ask in asks])
        except SpecmeshError as error:
            if len(asks) > 1:
                self._one_at_a_time([live for live, _, _ in asks], error)
            else:
                self._drafting_failed(asks[0][0], error)
            return
        ended = time.monotonic()
        guesses = 0
        for (live, plan, ask), token in zip(asks, tokens, strict=True):
            drafted = live.machine.drafted
            proposal = ask.sampler.proposal if isinstance(ask.sampler, ProposalSampler) else None
            effects = live.machine.handle(ev.Predicted(len(plan.ids), token, started, proposal), ended)
            guesses += live.machine.drafted - drafted
            self._carry_out(live, effects)
        self._stats.worked(started, ended, guesses)

    def _ask(self, live: DraftSession, plan: ev.Predict) -> Ask | None:
        try:
            return Ask(live.seq or 0, plan.ids, live.sampler_for(plan))
        except SpecmeshError as error:  # the grammar's
            self._drafting_failed(live, error)
            return None

    def _drafting_failed(self, live: DraftSession, error: SpecmeshError) -> None:
        log.error("drafting_failed", session=live.id, error=str(error))
        self._release(live, broken=True)
        live.undraftable = True
        self._together = self._engine.info.batches

    def _one_at_a_time(self, lives: list[DraftSession], error: SpecmeshError) -> None:
        """Decode one sequence at a time after a failed batch, until it shows which one is to blame."""
        log.warning("drafting_together_failed", error=str(error), meaning="sessions are drafted for in turn")
        self._together = False
        for live in lives:
            if live.seq is not None:
                live.machine.relocated(self._engine.trim(live.seq, self._engine.info.n_ctx))

    def flush(self) -> None:
        for live in list(self.live.values()):
            self._carry_out(live, live.machine.flush())

    def on_frame(self, session: int, event: ev.DrafterEvent, size: int, now: float) -> None:
        live = self.live.get(session)
        if live is not None:
            live.bytes_received += size
            self._carry_out(live, live.machine.handle(event, now))

    def _carry_out(self, live: DraftSession, effects: list[ev.DrafterEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.Drafted() | ev.Shadowed() | ev.Nacked():
                    live.bytes_sent += self._dealer.send(frame_of(live.id, effect))
                case ev.Trim(length):
                    if live.seq is not None:
                        live.machine.relocated(self._engine.trim(live.seq, length))
                case ev.Learned():
                    new = live.learned(effect)
                    if new:
                        now = time.monotonic()
                        self._stats.round(min(effect.accepted, new), new, now)
                        self.meter.heard(live.id, new, max(self.load.sessions, self.own, 1) - 1, now)
                case _:
                    assert_never(effect)

    # --- KV slots of the draft model

    def _seat(self, live: DraftSession) -> bool:
        """Give a session a slot, if need be that of one that no drafts are asked for. Return False where it has none.

        A session without work for the draft model gets none: it would displace another's prompt.
        """
        machine = live.machine
        if live.undraftable or not machine.active or machine.n_truth < max(live.n_prompt, 1):
            return False
        if not self.slots and machine.draft_n:
            idle = (one for one in self.live.values() if one.seq is not None and not one.machine.draft_n)
            if (spare := next(idle, None)) is not None:
                self._release(spare)
        if not self.slots:
            return False
        live.seq, held = self.slots.acquire(machine.truth, live.n_prompt, cached=live.cache_prompt)
        self._trim_slots()
        machine.relocated(self._engine.trim(live.seq, held))
        return True

    def _release(self, live: DraftSession, *, broken: bool = False) -> None:
        """Give a session's slot back, with the committed ids that it holds."""
        if live.seq is None:
            return
        machine = live.machine
        keeps = live.cache_prompt and not broken
        held = self._engine.trim(live.seq, min(machine.held, machine.n_truth) if keeps else 0)
        self.slots.release(live.seq, KVContents(machine.truth[:held], live.n_prompt) if held else NO_CONTENTS)
        self._trim_slots()
        live.seq = None

    def _trim_slots(self) -> None:
        for order in self.slots.orders():
            self._engine.trim(order.seq, order.length)

    # --- sessions

    def take_over(self, name: str) -> bool:
        """End the sessions of this name, which another client resumes; return False where there are none."""
        had = [live for live in self.live.values() if live.pending and live.pending.request.id == name]
        for live in had:
            self._taken_over(live)
        return bool(had)

    def ask(self, pending: PendingRequest, now: float) -> None:
        """Ask the verifier, which is there, for a session."""
        ref = next(self._refs) & U32
        try:
            sent = self._dealer.send(pending.open(ref))
        except ValueError as error:
            pending.client.on_event(Failed(RequestError(f"the request does not fit the wire: {error}")))
            return
        if sent:
            self.asked[ref] = pending
        else:
            busy = Busy(f"the verifier at {self._address} takes no requests now: try again")
            self._owner.refused(pending, busy, now, self._address)

    def on_error(self, message: m.Error, now: float) -> bool:
        """Handle an ERROR about a request, or a session that DONE ends next; return False where it is about neither."""
        pending = self.asked.pop(message.ref, None) if message.ref else None
        if pending is not None:
            self._owner.refused(pending, error_of(message), now, self._address)
        broken = [live for live in self.live.values() if message.ref and live.ref == message.ref]
        for live in broken:
            live.broken = error_of(message)
        return pending is not None or bool(broken)

    def opened(self, message: m.Opened) -> None:
        pending = self.asked.pop(message.ref, None) if message.ref else None
        if message.ref and pending is None:
            self._dealer.send(m.Close(message.session, 0, 0.0))  # its client left before it was opened
            return
        if message.session in self.live:
            self._taken_over(self.live[message.session])
        info, welcome, params = self._engine.info, self._welcome, params_of(message)
        if self._temperature is not None and params.temperature > 0:
            params = replace(params, temperature=self._temperature)
        shadows = pending is None or pending.request.params.drafts is None
        live = DraftSession(
            message.session,
            DrafterSession(welcome.n_vocab if welcome else 0, info.n_ctx, info.n_batch, shadows=shadows),
            Sampler(params),
            message.prompt_tokens,
            welcome.eog_ids if welcome else (),
            pending.opened(message) if pending is not None else None,
            grammar_of(message),
            message.ref,
            message.cache_prompt,
        )
        self.live[live.id] = live
        self._stats.opened += 1
        self._stats.resumed += pending is not None and pending.resumes
        named = {"request": pending.request.label} if pending is not None else {}
        log.info("session_opened", session=live.id, prompt_tokens=live.n_prompt, **named)

    def done(self, message: m.Done, now: float) -> None:
        live = self.live.get(message.session)
        if live is None:
            return  # closed from this side
        if message.finish_reason == "moved":
            self._taken_over(live)
            return
        if message.finish_reason == "shutdown":
            stopping = DaemonUnreachable("the verifier is stopping: the text ends here")
            self._interrupt(live, stopping, now, again=False)
            return
        if live.machine.n_truth < message.length:
            lost = RemoteProtocolError("the end of the text was lost on its way from the verifier: ask again")
            self._interrupt(live, lost, now, again=True)
            return
        self._close(live)
        log.info("session_finished", session=live.id, reason=message.finish_reason, drafted=live.machine.drafted)
        if message.finish_reason == "error":
            live.failed(live.broken or EngineError("the verifier's engine failed: see its log"))
        live.done(message)
        self._forget(live)

    def add(self, message: m.Round | m.Logprobs) -> None:
        """Pass on what belongs to committed ids, unless it names an id that is none."""
        live, n_vocab = self.live.get(message.session), self._welcome.n_vocab if self._welcome else 0
        if live is not None and all(token < n_vocab for token in getattr(message, "top_ids", ())):
            live.add(message)

    def cancel_of(self, client: EventSink) -> None:
        for ref in [ref for ref, pending in self.asked.items() if pending.client is client]:
            del self.asked[ref]
            self._dealer.send(m.Close(0, 0, 0.0, ref))
        for live in list(self.live.values()):
            if live.pending is not None and live.pending.client is client:
                self._close(live)
                live.cancelled()
                self._forget(live)

    def _close(self, live: DraftSession) -> None:
        self._dealer.send(m.Close(live.id, live.machine.drafted, live.machine.draft_seconds))

    def _taken_over(self, live: DraftSession) -> None:
        live.failed(RequestError("somebody else has asked for this text by its name"))
        self._forget(live)

    def _forget(self, live: DraftSession) -> None:
        self._release(live)
        if live.compiling is not None:
            live.compiling.cancel()
        self._stats.unpublished = True
        self.meter.ended(live.id)
        self.live.pop(live.id, None)

    # --- a verifier that goes and comes

    def lost(self, error: SpecmeshError, now: float) -> None:
        for live in list(self.live.values()):
            self._interrupt(live, error, now, again=False)
        asked, self.asked = list(self.asked.values()), {}
        for pending in asked:
            home = pending.home if pending.began else self._address
            self._owner.lost(replace(pending, home=home), error, now, again=False)

    def _interrupt(self, live: DraftSession, error: SpecmeshError, now: float, *, again: bool) -> None:
        pending = live.interrupted()
        self._forget(live)
        if pending is not None:
            log.info("session_interrupted", session=live.id, generated=len(pending.request.generated))
            began = self._welcome if pending.started or pending.request.generated else None
            self._owner.lost(replace(pending, home=self._address, began=began), error, now, again=again)

    def found(self, welcome: m.Welcome) -> None:
        before, self._welcome = self._welcome, welcome
        if before is not None and not same_model(before, welcome):
            self.slots.clear()  # the same ids may mean other tokens
            self._trim_slots()

    def stop(self, error: SpecmeshError) -> None:
        """This drafter ends: its verifier keeps the texts for a while."""
        for pending in self.asked.values():
            pending.client.on_event(Failed(error))
        self.asked.clear()
        for live in list(self.live.values()):
            live.failed(error)
            self._forget(live)
        self._grammars.close()
