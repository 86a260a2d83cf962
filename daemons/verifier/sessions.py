"""The verifier's sessions, from beginning to end; specmesh.core decides, this carries its effects out."""

import time
from typing import assert_never

import structlog

from specmesh.api.requests import EventSink, Failed, Finished, Started, Tokens
from specmesh.core import events as ev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import common_length
from specmesh.core.report import session_report
from specmesh.core.sampling.constraint import SIMPLER
from specmesh.core.session_params import may_adopt
from specmesh.core.verifier import VerifierCore
from specmesh.daemons.link.peers import DrafterPeer
from specmesh.daemons.link.router import Router
from specmesh.daemons.runtime.prompts import EncodedPrompt, Opening
from specmesh.daemons.verifier.detached_sessions import DetachedSession, DetachedSessions
from specmesh.daemons.verifier.drafters import Drafters
from specmesh.daemons.verifier.drafting import DrafterAssignment, PolicySolver
from specmesh.daemons.verifier.session_context import PendingReports, SessionContext
from specmesh.daemons.verifier.statistics import SERVED, VerifierStats
from specmesh.errors import NoSuchText, RequestError, SpecmeshError
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")


class Sessions:
    """All sessions of one verifier; `live` by id those that have a sequence in the engine."""

    def __init__(
        self,
        costs: StepCosts,
        router: Router,
        drafters: Drafters,
        core: VerifierCore,
        policies: PolicySolver,
        stats: VerifierStats,
        grace: float,
    ) -> None:
        self.live: dict[int, SessionContext] = {}
        self._costs = costs
        self._router, self._drafters, self._core = router, drafters, core
        self._stats = stats
        changes = stats.drafter_changes
        self.drafting = DrafterAssignment(self.live, router, drafters, policies, changes, self.carry_out)
        self.closing, self.kept = PendingReports(), DetachedSessions(grace)

    def __bool__(self) -> bool:
        return bool(self.live or self.closing)

    def expire(self, now: float) -> None:
        self.closing.expire(now)
        for live in self.kept.expire(now):
            self._drop(live, now)

    # --- beginning

    def owners(self) -> list[bytes | None]:
        """Return who asked for the live sessions, without those kept, which give way."""
        return [live.owner for live in self.live.values() if not isinstance(live.client, DetachedSession)]

    def begin(self, prompt: EncodedPrompt, now: float) -> None:
        """Resume the session that an opening names, else begin one on its ids, which must be valid; there is room."""
        opening = prompt.opening
        try:
            if self.adopted(opening, now):
                return
        except SpecmeshError as error:
            opening.client.on_event(Failed(error))
            return
        live = self._new(prompt, now)
        self.live[live.id] = live
        machine = live.machine
        self._stats.begun(machine)
        log.info(
            "session_opened",
            session=live.id,
            prompt_tokens=machine.n_prompt,
            **({"cached_tokens": machine.cached} if machine.cached else {}),
            **({"resumed_tokens": machine.resumed} if machine.resumed else {}),
            **({"request": opening.request.label} if live.owner is None else {"remote": True}),
        )
        self._hand_over(live, opening)
        if machine.finished is not None:
            self._finish(live, machine.finished, now)

    def _new(self, prompt: EncodedPrompt, now: float) -> SessionContext:
        request, owner, ids = prompt.opening.request, prompt.opening.owner, prompt.ids
        known = (*ids, *request.generated)
        kept = self.kept.running()
        if not self._core.slots and kept is not None:
            self._drop(kept, now)
        number, machine = self._core.open(known, request.params, now, len(ids), prompt.constraint)
        key = self._router.gate.key_of(owner) if owner is not None else ""
        return SessionContext(number, machine, prompt.opening.client, owner, name=request.id, key=key)

    def adopted(self, opening: Opening, now: float) -> bool:
        """Give an opening the session that it names, if any; raise NoSuchText where it must not have it."""
        request, owner = opening.request, opening.owner
        live, end = self._named(request.id)
        if live is None:
            if request.named_only:
                raise NoSuchText
            return False
        if not may_adopt(live.key, self._router.gate.key_of(owner) if owner is not None else None):
            raise NoSuchText
        said = live.machine.said()
        if common_length(request.generated, said) < min(len(request.generated), len(said)):
            log.warning("resumed_text_differs", session=live.id, meaning="it goes on as the verifier has it")
        if end is None:
            self._take_over(live, owner)
            self.kept.forget(live.id)
        self._stats.resumed += 1
        log.info("session_resumed", session=live.id, tokens=live.machine.generated)
        self._hand_over(live, opening)
        if end is not None:
            self._end_again(live, end, now)
        return True

    def _named(self, name: str) -> tuple[SessionContext | None, Finished | None]:
        if not name:
            return None, None
        for live in self.live.values():
            if live.name == name:
                return live, None
        return self.kept.ended(name) or (None, None)

    def _take_over(self, live: SessionContext, owner: bytes | None) -> None:
        """Take a session from its client and drafter for `owner`, the drafter that gets it, if one does."""
        if live.owner is None:
            live.client.on_event(Failed(RequestError("somebody else has asked for this text by its name")))
        had = {live.owner} if owner is None else {live.owner, live.drafter}
        for identity in had - {None, owner}:
            self._router.send(identity or b"", m.Done(live.id, "moved", len(live.machine.prefix)))
            if live.drafter == identity:
                self.drafting.detach(live, time.monotonic())
        if owner is not None:
            self.drafting.dismiss(live, heir=owner)

    def _hand_over(self, live: SessionContext, opening: Opening) -> None:
        """Give a session to the opening's client, with what that does not know of the text."""
        machine = live.machine
        live.client, live.owner = opening.client, opening.owner
        machine.followed = opening.owner is not None
        live.client.on_event(Started(live.id, machine.n_prompt, live.prompt_ids, machine.params))
        if opening.owner is not None:
            self.drafting.attach(live, opening.owner, live.casting.why, time.monotonic())
            return
        known = machine.said(opening.request.known)
        if known:
            begin = machine.n_prompt + opening.request.known
            live.client.on_event(Tokens(known, 0, None, machine.logprobs.between(begin, begin + len(known))))
        if machine.finished is None and live.drafter is None and machine.may_draft:
            self.drafting.find(live, time.monotonic())

    def _end_again(self, live: SessionContext, end: Finished, now: float) -> None:
        if live.owner is None:
            live.client.on_event(end)
            self.kept.forget(live.id)
            return
        self._router.send(live.owner, m.Done(live.id, end.reason, len(live.machine.prefix), end.report))
        self.kept.add(live, now, end)

    # --- drafters

    def left(self, identity: bytes, now: float, *, may_return: bool) -> None:
        """A drafter is gone: keep its own sessions where it may return, give the others another drafter."""
        self.drafting.gone(identity, now)
        for live in list(self.live.values()):
            if live.owner == identity:
                self._keep_or_end(live, now, may_return=may_return)
        self.drafting.find_all(now, "gone")

    def _keep_or_end(self, live: SessionContext, now: float, *, may_return: bool) -> None:
        if not (may_return and live.name and self.kept.grace > 0):
            self.cancel(live, now)
            return
        live.client, live.owner = self.kept.add(live, now), None
        live.machine.followed = False
        log.info("session_kept", session=live.id, seconds=self.kept.grace)

    # --- what happens to them

    def on_frame(self, peer: DrafterPeer, session: int, event: ev.VerifierEvent, size: int, now: float) -> None:
        live = self.live.get(session)
        if live is not None and live.casting.standby == peer.identity:
            self.drafting.on_frame(live, peer, event, size, now)
            return
        if live is None or live.drafter != peer.identity:
            self._stats.stray_frames += 1
            return
        live.bytes_received += size
        self.carry_out(live, self._core.handle(live.id, event, now))

    def closed(self, peer: DrafterPeer, close: m.Close, now: float) -> None:
        self.closing.closed(close.session, peer.identity, close.drafted, close.draft_s, now)
        self.kept.closed(close.session, peer.identity)
        live = self.live.get(close.session)
        if live is not None and live.owner == peer.identity:
            self.cancel(live, now)

    def cancel_of(self, client: EventSink, now: float) -> None:
        for live in [live for live in self.live.values() if live.client is client]:
            self.cancel(live, now)

    def cancel(self, live: SessionContext, now: float, reason: str = "cancelled") -> None:
        self.carry_out(live, self._core.handle(live.id, ev.Cancelled(reason), now))

    def fail(self, live: SessionContext, error: SpecmeshError, now: float, reason: str) -> None:
        live.client.on_event(Failed(error))
        self.cancel(live, now, reason)

    def stop(self, now: float) -> None:
        self.kept.grace = 0.0
        while (live := self.kept.running()) is not None:
            self._drop(live, now)

    def _drop(self, live: SessionContext, now: float) -> None:
        self.kept.forget(live.id)
        log.info("session_dropped", session=live.id, tokens=live.machine.generated)
        self.cancel(live, now)

    def carry_out(self, live: SessionContext, effects: list[ev.VerifierEffect]) -> None:
        for effect in effects:
            match effect:
                case ev.Told():
                    for frame in live.frames(effect):
                        self._send(live, frame)
                    self._send_logprobs(live, effect.base, len(effect.ids))
                case ev.Nacked(base, crc):
                    self._send(live, m.Nack(live.id, base, crc))
                case ev.Trim():
                    pass  # the engine has it already
                case ev.Emit(ids, accepted, drafts):
                    self._stats.emitted(live, effect)
                    live.client.on_event(Tokens(ids, min(accepted, len(ids)), drafts, effect.logprobs))
                    self._note_unguided(live)
                case ev.Finish(reason, error):
                    if error is not None:
                        log.warning("session_broke", session=live.id, error=str(error))
                        live.client.on_event(Failed(error))
                    self._finish(live, reason, time.monotonic())
                case _:
                    assert_never(effect)

    def _note_unguided(self, live: SessionContext) -> None:
        why = None if live.unguided else live.machine.constraint.exhausted
        if why is not None:
            live.unguided = True
            meaning = "none of its drafts is verified"
            log.warning("grammar_spent", session=live.id, error=why, meaning=meaning, hint=SIMPLER)

    def _send(self, live: SessionContext, message: m.TokenMessage | m.Logprobs) -> None:
        if live.drafter is not None:
            live.bytes_sent += self._router.send(live.drafter, message)

    def _send_logprobs(self, live: SessionContext, base: int, count: int) -> None:
        for frame in live.logprob_frames(base, count) if live.machine.logprobs and live.owner is not None else ():
            self._send(live, frame)

    def _finish(self, live: SessionContext, reason: str, now: float) -> None:
        """Free a session's sequence; its report waits a moment for the drafter's CLOSE."""
        if self.live.pop(live.id, None) is None:
            return
        machine = live.machine
        self.drafting.finished(live, reason, now)
        self._stats.ended(machine, reason, now)
        report = session_report(machine, self._costs, now)
        report["drafter"] = self._drafters.name(live.drafter)
        finished = Finished(reason, live.prompt_ids, report)
        counts = {name: getattr(machine.counts, name) for name in ("rounds", "accepted", "drafted")}
        log.info("session_finished", session=live.id, reason=reason, tokens=machine.generated, **counts)
        self.closing.add(live, finished, now)
        drafter = live.drafter
        if drafter is not None:
            done = m.Done(live.id, reason, len(machine.prefix), report if live.owner == drafter else {})
            live.bytes_sent += self._router.send(drafter, done)
        if live.owner is not None and live.name and reason in SERVED:
            self.kept.add(live, now, finished)  # until it is closed: DONE may be lost
        if (
            drafter is None
            or live.owner is not None
            or reason == "cancelled"
            or isinstance(live.client, DetachedSession)
        ):
            self.closing.deliver(live.id, 0, 0.0)
