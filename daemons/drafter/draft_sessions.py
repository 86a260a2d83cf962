"""The sessions that a drafter follows: drafted for, one unit at a time, and told to its own clients.

What to draft, how far ahead and when to send is decided by the machines (specmesh.core). What this drafter's clients
asked for and the verifier does not serve to its end goes back to where it came from: another may have it.
"""

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
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.daemons.drafter.draft_session import DraftSession, PendingRequest
from specmesh.daemons.drafter.grammars import DraftGrammars
from specmesh.daemons.drafter.retry_queue import same_model
from specmesh.daemons.drafter.sequences import DraftSlots
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.daemons.link.dealer import Dealer
from specmesh.daemons.link.frames import frame_of, grammar_of, params_of
from specmesh.daemons.link.peers import U32
from specmesh.engines.base import Ask, DraftEngine, predict_all
from specmesh.errors import (
    Busy,
    DaemonUnreachable,
    EngineError,
    NoSuchText,
    PromptTooLong,
    RemoteProtocolError,
    RequestError,
    SpecmeshError,
)
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")

_REFUSALS: dict[str, type[SpecmeshError]] = {"busy": Busy, "session": NoSuchText}

_Work = tuple[DraftSession, ev.Predict]
"""A session, and what it wants of the draft model."""


class RequestOwner(Protocol):
    """Where the requests of this drafter's clients come from; `by` is a verifier's address."""

    def refused(self, asked: PendingRequest, error: SpecmeshError, now: float, by: str) -> None:
        """The verifier does not take it."""

    def lost(self, asked: PendingRequest, error: SpecmeshError, now: float, *, again: bool) -> None:
        """The verifier had it, and has it no more; `again`: it may be asked for it again at once."""

    def found(self, welcome: m.Welcome, by: str) -> None:
        """The verifier is there."""


class DraftSessions:
    """All sessions of one drafter with one verifier, `live` by number, and those `asked` for and not begun.

    `address` is the verifier's, `load` what it told last, `meter` its pace; places: those in the draft model, which
    several of these may share; temperature: of what is drafted for sampled texts, None for their own.
    """

    def __init__(
        self,
        dealer: Dealer,
        engine: DraftEngine,
        stats: DrafterStats,
        address: str,
        desk: RequestOwner,
        places: KVSlots,
        temperature: float | None = None,
    ) -> None:
        self.live: dict[int, DraftSession] = {}
        self._temperature = temperature
        self._dealer, self._engine, self._stats, self._address = dealer, engine, stats, address
        self._desk, self.places = desk, places
        self.load, self.meter = ReportedLoad(), PaceMeter()
        self._seats = DraftSlots(engine, places)
        self._welcome: m.Welcome | None = None  # the newest verifier's, also once it is gone
        self.asked: dict[int, PendingRequest] = {}
        self._guides = DraftGrammars()
        self._refs = itertools.count(1)
        self._together = engine.info.batches

    @property
    def own(self) -> int:
        """How many texts of this drafter's own clients the verifier has, or was asked for."""
        return len(self.asked) + sum(live.asked is not None for live in self.live.values())

    # --- drafting

    def work(self, engine: DraftEngine, round_trip: float) -> bool:
        """One unit of drafting: for the next session that drafts are asked for; else one that only follows takes ids
        in, and where there is none, one is shadowed. Whether there was any. `engine` speaks the verifier's ids."""
        turns = sorted(self.live.values(), key=lambda live: live.machine.draft_n == 0)
        for live in turns:
            plan = self._plan(live, round_trip)
            if plan is not None:
                self._predict(engine, [(live, plan), *self._beside(live, plan, turns, round_trip)])
                return True
        return False

    def shadow(self, engine: DraftEngine) -> bool:
        """The same of shadowing, which is for when nobody has drafting to do: for all that can be done in one go."""
        found, most = list[_Work](), self._engine.info.n_batch if self._together else 1
        for live in self.live.values():
            plan = live.machine.plan_shadow() if live.seq is not None else None
            if plan is not None:
                found.append((live, plan))
                if len(found) == most:
                    break
        if found:
            self._predict(engine, found)
        return bool(found)

    def _plan(self, live: DraftSession, round_trip: float) -> ev.Predict | None:
        """What a session wants of the draft model, which must have a place for it."""
        seated = live.seq is not None or self._seats.take(live, self.live.values())
        return live.machine.plan(round_trip) if seated else None

    def _beside(
        self, first: DraftSession, plan: ev.Predict, turns: list[DraftSession], round_trip: float
    ) -> list[_Work]:
        """Guesses of other sessions that the engine can make in the same go."""
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
        """Have it done, several at once only where the engine can."""
        for live, _ in work:
            if live.id in self.live:
                self.live[live.id] = self.live.pop(live.id)  # the others come first next time
            self._guides.look(live, engine.vocabulary)
        started = time.monotonic()
        asks = [(live, plan, ask) for live, plan in work if (ask := self._ask(live, plan)) is not None]
        try:
            tokens = predict_all(engine, [ask for _, _, ask in asks])
        except SpecmeshError as error:
            if len(asks) > 1:
                self._one_at_a_time([live for live, _, _ in asks], error)
            else:
                self._give_back(asks[0][0], error)
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
        """What to ask the engine for; None where the session's grammar fails over it."""
        try:
            return Ask(live.seq or 0, plan.ids, live.sampler_for(plan))
        except SpecmeshError as error:
            self._give_back(live, error)
            return None

    def _give_back(self, live: DraftSession, error: SpecmeshError) -> None:
        """Drafting for a session has failed: it loses its place, and gets no other."""
        log.error("drafting_failed", session=live.id, error=str(error))
        self._seats.release(live, broken=True)
        live.undraftable = True
        self._together = self._engine.info.batches

    def _one_at_a_time(self, lives: list[DraftSession], error: SpecmeshError) -> None:
        """The engine has failed over several sequences: it gets one at a time, until it shows who is to blame."""
        log.warning("drafting_together_failed", error=str(error), meaning="sessions are drafted for in turn")
        self._together = False
        for live in lives:
            if live.seq is not None:
                live.machine.relocated(self._engine.trim(live.seq, self._engine.info.n_ctx))

    def flush(self) -> None:
        for live in list(self.live.values()):
            self._carry_out(live, live.machine.flush())

    def heard(self, session: int, event: ev.DrafterEvent, size: int, now: float) -> None:
        live = self.live.get(session)
        if live is not None:
            live.bytes_received += size
            self._carry_out(live, live.machine.handle(event, now))

    def _carry_out(self, live: DraftSession, effects: list[ev.DrafterEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.Drafted():
                    live.bytes_sent += self._dealer.send(frame_of(live.id, effect))
                case ev.Shadowed(base, crc, ids):
                    live.bytes_sent += self._dealer.send(m.Shadow(live.id, base, crc, ids))
                case ev.Nacked(base, crc):
                    live.bytes_sent += self._dealer.send(m.Nack(live.id, base, crc))
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

    # --- sessions

    def moved(self, name: str) -> bool:
        """Who had the text of that name here has it no more; whether anybody had."""
        had = [live for live in self.live.values() if live.asked is not None and live.asked.request.id == name]
        for live in had:
            self._moved(live)
        return bool(had)

    def ask(self, asked: PendingRequest, now: float) -> None:
        """Ask the verifier, which is there, for a session."""
        ref = next(self._refs) & U32
        try:
            sent = self._dealer.send(asked.order(ref))
        except ValueError as error:
            asked.client.on_event(Failed(RequestError(f"the request does not fit the wire: {error}")))
            return
        if sent:
            self.asked[ref] = asked
        else:
            busy = Busy(f"the verifier at {self._address} takes no requests now: try again")
            self._desk.refused(asked, busy, now, self._address)

    def refused(self, error: m.Error, now: float) -> bool:
        """ERROR to what was asked for, or why a session ends, which DONE says next; False where it is about something
        else."""
        told = _told(error)
        asked = self.asked.pop(error.ref, None) if error.ref else None
        if asked is not None:
            self._desk.refused(asked, told, now, self._address)
        broken = [live for live in self.live.values() if error.ref and live.ref == error.ref]
        for live in broken:
            live.broken = told
        return asked is not None or bool(broken)

    def opened(self, message: m.Opened, now: float) -> None:
        asked = self.asked.pop(message.ref, None) if message.ref else None
        if message.ref and asked is None:
            self._dealer.send(m.Close(message.session, 0, 0.0))  # its client left before it was opened
            return
        if message.session in self.live:
            self._moved(self.live[message.session])
        if asked is not None and (lacking := asked.lacking(message)) is not None:
            self._dealer.send(m.Close(message.session, 0, 0.0))
            old = DaemonUnreachable(f"the verifier is of a version that {lacking}")
            self._desk.refused(asked, old, now, self._address)
            return
        info, welcome = self._engine.info, self._welcome
        shadows = asked is None or asked.request.params.drafts is None
        live = DraftSession(
            message.session,
            DrafterSession(welcome.n_vocab if welcome else 0, info.n_ctx, info.n_batch, shadows=shadows),
            Sampler(self._drafting(params_of(message))),
            None,
            message.prompt_tokens,
            welcome.eog_ids if welcome else (),
            asked.given(message) if asked is not None else None,
            grammar=grammar_of(message),
            ref=message.ref,
            cache_prompt=message.cache_prompt,
        )
        self.live[live.id] = live
        self._stats.opened += 1
        self._stats.resumed += asked is not None and asked.resumes
        named = {"request": asked.request.label} if asked is not None else {}
        log.info("session_opened", session=live.id, prompt_tokens=live.n_prompt, **named)

    def _drafting(self, params: SamplingParams) -> SamplingParams:
        """How drafts are chosen for a text that is sampled so."""
        own = self._temperature if params.temperature > 0 else None
        return params if own is None else replace(params, temperature=own)

    def done(self, message: m.Done, now: float) -> None:
        live = self.live[message.session]
        if message.finish_reason == "moved":
            self._moved(live)
            return
        if message.finish_reason == "shutdown":
            stopping = DaemonUnreachable("the verifier is stopping: the text ends here")
            self._interrupt(live, stopping, now, again=False)
            return
        machine = live.machine
        if machine.n_truth < message.length:
            lost = RemoteProtocolError("the end of the text was lost on its way from the verifier: ask again")
            self._interrupt(live, lost, now, again=True)
            return
        self._dealer.send(m.Close(live.id, machine.drafted, machine.draft_seconds))
        log.info("session_finished", session=live.id, reason=message.finish_reason, drafted=machine.drafted)
        if message.finish_reason == "error":
            live.failed(live.broken or EngineError("the verifier's engine failed: see its log"))
        live.done(message)
        self._forget(live)

    def round(self, message: m.Round) -> None:
        live = self.live.get(message.session)
        if live is not None:
            live.round(message)

    def logprobs(self, message: m.Logprobs) -> None:
        """Log-probabilities of a session's ids; dropped where they name an id that is none."""
        live, n_vocab = self.live.get(message.session), self._welcome.n_vocab if self._welcome else 0
        if live is not None and all(token < n_vocab for token in message.top_ids):
            live.logprobs(message)

    def cancel_of(self, client: EventSink) -> None:
        for ref in [ref for ref, asked in self.asked.items() if asked.client is client]:
            del self.asked[ref]
            self._dealer.send(m.Close(0, 0, 0.0, ref))
        for live in list(self.live.values()):
            if live.asked is not None and live.asked.client is client:
                self._dealer.send(m.Close(live.id, live.machine.drafted, live.machine.draft_seconds))
                live.cancelled()
                self._forget(live)

    def _moved(self, live: DraftSession) -> None:
        """Somebody else has the text now, or the same client anew."""
        live.failed(RequestError("somebody else has asked for this text by its name"))
        self._forget(live)

    def _forget(self, live: DraftSession) -> None:
        self._seats.release(live)
        self._guides.forget(live.id)
        self._stats.unpublished = True
        self.meter.ended(live.id)
        self.live.pop(live.id, None)

    # --- a verifier that goes and comes

    def lost(self, error: SpecmeshError, now: float) -> None:
        """The verifier is gone, or has forgotten everything."""
        for live in list(self.live.values()):
            self._interrupt(live, error, now, again=False)
        asked, self.asked = list(self.asked.values()), {}
        for one in asked:
            self._desk.lost(one if one.began else replace(one, home=self._address), error, now, again=False)

    def _interrupt(self, live: DraftSession, error: SpecmeshError, now: float, *, again: bool) -> None:
        asked = live.interrupted()
        self._forget(live)
        if asked is not None:
            log.info("session_interrupted", session=live.id, generated=len(asked.request.generated))
            began = self._welcome if asked.started or asked.request.generated else None
            self._desk.lost(replace(asked, home=self._address, began=began), error, now, again=again)

    def found(self, welcome: m.Welcome) -> None:
        """A verifier is there, or says more of itself."""
        before, self._welcome = self._welcome, welcome
        if before is not None and not same_model(before, welcome):
            self._seats.clear()  # the same ids may mean other tokens

    def stop(self, error: SpecmeshError) -> None:
        """This drafter ends: its verifier keeps the texts for a while."""
        for asked in self.asked.values():
            asked.client.on_event(Failed(error))
        self.asked.clear()
        for live in list(self.live.values()):
            live.failed(error)
            self._forget(live)
        self._guides.close()


def _told(error: m.Error) -> SpecmeshError:
    """What a verifier said as an error of its client's."""
    if error.code == "engine":
        return EngineError(f"the verifier's engine failed: {error.message}")
    if error.code in _REFUSALS:
        return _REFUSALS[error.code](error.message)
    return (PromptTooLong if error.code == "context" else RequestError)(error.message, error.param or None)
