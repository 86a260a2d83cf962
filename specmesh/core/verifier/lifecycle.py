"""The lifecycle of a verifier's sessions: they begin, change hands, pause, are kept, and end.

A session has a client that gets its text, and perhaps a drafter that drafts for it. If the client
is a drafter's (the `owner`), that drafter drafts.

| what happens | its client gets | its drafter gets |
|---|---|---|
| a request begins a session | Began | OPENED, then SYNC |
| a request names a session | Began, with the text that it lacks | OPENED, if it is another one |
| its client before | an error | DONE (moved), if the client was that drafter's |
| the drafter goes, its client may return | nothing; the session is kept | |
| the text ends | SessionEnded | DONE |
| the client leaves | SessionEnded (cancelled) | DONE |

Everything here happens between two steps, so no session changes while its rows are decoded.
"""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.kv_contents import NO_CONTENTS
from specmesh.core.requests import PromptRead, Scored
from specmesh.core.rounds import Round
from specmesh.core.statistics.counters import SERVED, RoundCounts
from specmesh.core.statistics.session_report import session_report
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import READER_PATIENCE, KeptSessions, WaitingRequests
from specmesh.core.verifier.drafter_pool import DrafterPool
from specmesh.core.verifier.earlier_outputs import AccountOutputs
from specmesh.core.verifier.session import VerifierSession
from specmesh.core.verifier.session_cells import SessionCells
from specmesh.core.verifier.session_context import ContextEvent, ContextState, SessionContext
from specmesh.core.verifier.target import Target
from specmesh.errors import NoSuchText, RequestError, SpecmeshError
from specmesh.wire import messages as m


class SessionLifecycle:
    """Begins and ends sessions, and knows their clients and drafters.

    - A request that names a session gets it, from its client if it has one. A drafter's client
      needs the key that the session was opened with.
    - Any other request waits for a sequence (admission.py). Kept sessions give way.
    - A session is kept if it has a name and its client went with a drafter that may return.
    - The end of a named session is kept for its drafter's client until that has it.
    - A session whose client reads nothing has no steps. It is cancelled after READER_PATIENCE.
    - A session that was set back has no steps either: the target had too few cells for all
      (session_cells.py).

    running: sessions that have begun, by number, the oldest first. Others only read it.
    kept: sessions without a client, or ended. Others only read it.
    drafters: the drafters of these sessions.
    ended_counts: rounds of the sessions that have ended.
    cells: the cells that they share.
    """

    def __init__(self, target: Target, outbox: list[vev.Effect], first: int, grace: float) -> None:
        """Begin without sessions.

        outbox: gets the effects. first, grace: see `VerifierCore`.
        """
        self.running: dict[int, SessionContext] = {}
        self.drafters = DrafterPool(self.running, outbox)
        self.ended_counts = RoundCounts()
        self._outbox = outbox
        self._target = target
        self._slots = target.slots
        self._numbers = itertools.count(first)
        self._waiting = WaitingRequests(target.max_sessions, target.guests)
        self.kept = KeptSessions(grace)
        self._paused: dict[int, float] = {}  # sessions without steps, and until when
        self.cells = SessionCells(self._slots, self.running, self._paused, outbox)

    def ready(self) -> dict[int, SessionContext]:
        """Return the sessions that may have steps."""
        set_back = self.cells.set_back
        if not self._paused and not set_back:
            return self.running
        rest = self._paused.keys() | set_back.keys()
        return {number: self.running[number] for number in self.running if number not in rest}

    def next_due(self) -> float:
        """Return when `advance` has something to do; infinity for never."""
        due = list(self._paused.values())
        if self.kept:
            due.append(self.kept.next_end)
        return min(due, default=inf)

    def advance(self, now: float) -> None:
        """Do what is due: forget and end sessions, and begin others."""
        if self.kept:
            for context in self.kept.expire(now):
                self._drop(context, now)
        if self._paused:
            self._end_paused(now)
        if self.cells.set_back:
            self._let_go_on(now)
        if self._waiting.openings:
            self._admit(now)

    # --- a session begins

    def open(self, opening: vev.Opening, now: float) -> None:
        """Resume the session that a request names, else let it wait for a sequence."""
        if self._resume(opening, now):
            return
        if opening.n_prompt:
            self._waiting.openings.append(opening)
        else:
            self._refuse(opening.client, NoSuchText())

    def _admit(self, now: float) -> None:
        """Begin sessions for the requests whose turn it is.

        While it waited, a request's name may have become that of a session here.
        """
        while True:
            admitted = self._waiting.next(self.running.values(), self.cells.has_room_for)
            if admitted is None:
                return
            opening, guest = admitted
            if not self._resume(opening, now):
                self._begin(opening, now, guest=guest)

    def _let_go_on(self, now: float) -> None:
        """Let sessions go on that were set back, as far as there are cells."""
        while (found := self.cells.go_on()) is not None:
            context, effects = found
            self.carry_out(context, effects, now)

    def _begin(self, opening: vev.Opening, now: float, *, guest: bool) -> None:
        """Begin a session on valid ids; one whose text ended with them is over at once."""
        self._make_room(now, guest=guest)
        params = opening.request.params
        ids = array("i", opening.ids)
        slot = self._slots.acquire(
            ids,
            opening.n_prompt - 1,
            self.cells.memories(),
            cached=params.cache_prompt,
            claims=None if guest else self.cells.claims(),
        )
        local = self._target.local
        session = VerifierSession(
            id=next(self._numbers),
            ids=ids,
            params=params,
            limits=self._target.limits,
            costs=self._target.costs,
            speculations=self._target.speculations,
            now=now,
            n_prompt=opening.n_prompt,
            constraint=opening.constraint,
            slot=slot,
            predicted=opening.predicted,
            earlier=self._earlier_of(opening),
            local=None if local is None else local.estimates,
        )
        context = SessionContext(
            session=session,
            prompt_ids=opening.ids[: opening.n_prompt],
            client=opening.client,
            owner=opening.owner,
            name=opening.request.id,
            key=opening.key,
            account=opening.account,
            guest=guest,
        )
        self.running[context.id] = context
        sharing = self._waiting.sharing(len(self.running))
        self.drafters.share(max(sharing, opening.sharing))
        self._outbox.append(context.opened(opening.request.label))
        self._hand_over(context, opening, now)
        if session.finished is not None:
            self._finish(context, session.finished, None, now)

    def _earlier_of(self, opening: vev.Opening) -> AccountOutputs | None:
        """Return the earlier outputs that draft for a request, if there are any."""
        earlier = self._target.earlier
        if earlier is None or opening.account is None:
            return None
        if not opening.request.params.cache_prompt:
            return None  # it wants nothing of other texts
        return earlier.of(opening.account)

    def _make_room(self, now: float, *, guest: bool) -> None:
        """Drop a kept session if all places are taken, those of guests or the others."""
        taken = sum(context.guest == guest for context in self.running.values())
        places = self._target.guests if guest else self._target.max_sessions
        if taken >= places:
            kept = self.kept.running(guest=guest)
            if kept is not None:
                self._drop(kept, now)

    # --- a session changes hands

    def _resume(self, opening: vev.Opening, now: float) -> bool:
        """Give a request the session that it names, or refuse it; return False without one.

        - A drafter's client needs the key of the session, and is refused without it.
        - A session that goes on is taken from the client and the drafters that have it.
        - Of a session that has ended the client gets the ids that it lacks, and the end.
        """
        context = self._named(opening.request.id)
        if context is None:
            return False
        # A client of the verifier's own needs no key: it could read the daemon's memory as well.
        if opening.owner is not None and opening.key != context.key:
            self._refuse(opening.client, NoSuchText())
            return True
        if context.end is None:
            self._take_over(context, opening.owner)
            self.kept.pop(context.id, None)
            context.advance(ContextEvent.RESUMED)
        self._log("session_resumed", context, tokens=context.session.generated)
        self._hand_over(context, opening, now, adopted=True)
        if context.end is not None:
            self._repeat_end(context, context.end, now)
        return True

    def _named(self, name: str) -> SessionContext | None:
        """Return the session with this name; None for no name."""
        if not name:
            return None
        for context in (*self.running.values(), *self.kept.values()):
            if context.name == name:
                return context
        return None

    def _take_over(self, context: SessionContext, owner: vev.DrafterId | None) -> None:
        """Take a session from those that have it.

        - A client of the verifier's own gets an error.
        - The owner before loses it, unless it becomes the owner again.
        - The drafter that drafts for it loses it too, if another drafter becomes the owner. A
          client of the verifier's own goes on with its drafts.

        owner: the drafter whose client gets the session; None for a client of the verifier's own.
        """
        if context.owner is None and context.client is not None:
            error = RequestError("somebody else has asked for this text by its name")
            self._refuse(context.client, error)
        before = {context.owner}
        if owner is not None:
            before.add(context.drafter)
        for drafter in before:
            if drafter is None or drafter == owner:
                continue
            self.drafters.release(context, drafter)
            if context.drafter == drafter:
                self.drafters.detach(context)

    def _hand_over(
        self, context: SessionContext, opening: vev.Opening, now: float, *, adopted: bool = False
    ) -> None:
        """Give a session to the client of a request, with the text that it lacks.

        adopted: the session was there already.
        """
        self._pause(context, now, paused=False)  # the reader before has paused it
        context.connect(opening)
        began = context.began(opening.request.known, adopted=adopted)
        self._outbox.append(vev.ToClient(context.client, began))
        if opening.owner is not None:
            self.drafters.attach(context, opening.owner, now)
        elif context.session.finished is None:
            self.drafters.find(context, now)

    def _repeat_end(self, context: SessionContext, end: vev.SessionEnded, now: float) -> None:
        """Send the end of a session once more; a drafter's client may lose it again."""
        self._outbox.append(vev.ToClient(context.client, replace(end, again=True)))
        if context.owner is None:
            self._forget(context)
            return
        done = m.Done(context.id, end.reason, len(context.session.prefix), end.report)
        self._outbox.append(vev.ToDrafter(context.owner, done))
        self._keep(context, ContextEvent.END_REPEATED, now)

    # --- clients and drafters come and go

    def client_left(
        self, client: int, now: float, reason: m.FinishReason = m.FinishReason.CANCELLED
    ) -> None:
        """Forget a client's request, or end its session."""
        self._waiting.withdraw(lambda opening: opening.client == client)
        for context in self._of_client(client):
            self._cancel(context, now, reason)

    def drafter_left(self, drafter: vev.DrafterId, now: float, *, may_return: bool) -> None:
        """Give its sessions other drafters; keep or end those of its own clients."""
        self._waiting.withdraw(lambda opening: opening.owner == drafter)
        self.drafters.gone(drafter)
        for context in list(self.running.values()):
            if context.owner != drafter:
                continue
            if may_return and context.name and self.kept.grace > 0:
                self._keep(context, ContextEvent.CLIENT_LOST, now)
                self._pause(context, now, paused=False)
                context.disconnect()
                self.cells.changed()
                self._log("session_kept", context, seconds=self.kept.grace)
            else:
                self._cancel(context, now)
        self.drafters.find_all(now)

    def close(self, drafter: vev.DrafterId, number: int, now: float) -> None:
        """End a session, or forget its end, for the drafter that owns it."""
        context = self.running.get(number) or self.kept.get(number)
        if context is None or context.owner != drafter:
            return
        if context.state is ContextState.ENDED:
            self._forget(context)
        else:
            self._cancel(context, now)

    def stop(self, now: float) -> None:
        """Keep no session any more."""
        self.kept.keep_none()
        while (context := self.kept.running()) is not None:
            self._drop(context, now)

    def solved(self, event: vev.Solved) -> None:
        """Give a session its new policy, unless it has got another drafter meanwhile."""
        context = self.running.get(event.session)
        if context is not None and context.drafter == event.drafter:
            context.session.draft_length.solved(event.policy)

    def _of_client(self, client: int) -> list[SessionContext]:
        return [context for context in self.running.values() if context.client == client]

    # --- a session waits for its reader

    def client_paused(self, client: int, now: float, *, paused: bool) -> None:
        """Note that a client reads nothing, or reads again."""
        for context in self._of_client(client):
            self._pause(context, now, paused=paused)

    def session_paused(
        self, drafter: vev.DrafterId, number: int, now: float, *, paused: bool
    ) -> None:
        """Note that a drafter's client reads nothing of a session, or reads again."""
        context = self.running.get(number)
        if context is not None and context.owner == drafter:
            self._pause(context, now, paused=paused)

    def _pause(self, context: SessionContext, now: float, *, paused: bool) -> None:
        """Let a session have no steps, or have them again."""
        if paused == (context.id in self._paused):
            return
        self.cells.changed()
        if paused:
            self._paused[context.id] = now + READER_PATIENCE
        else:
            del self._paused[context.id]
            context.session.draft_length.interrupted()
        self._log("session_paused", context, "debug", paused=paused)

    def _end_paused(self, now: float) -> None:
        """End the sessions whose clients have read nothing for too long."""
        for number, until in list(self._paused.items()):
            if now >= until:
                context = self.running[number]
                self._log("session_unread", context, seconds=READER_PATIENCE)
                self._cancel(context, now)

    # --- effects of a session

    def carry_out(
        self, context: SessionContext, effects: Sequence[ev.VerifierEffect], now: float
    ) -> None:
        """Address the effects of a session, which knows neither client, drafter nor sequence."""
        for effect in effects:
            match effect:
                case Round() | Scored() | PromptRead():
                    self._outbox.append(vev.ToClient(context.client, effect))
                case m.Truth() | m.Sync() | m.Nack():
                    self.drafters.send(context, effect)
                case ev.Rollback(length):
                    self._slots.cut(context.session.slot.seq, length)
                case ev.Finish(reason, error):
                    self._finish(context, reason, error, now)
                case _:
                    assert_never(effect)

    # --- a session ends

    def fail(self, seqs: set[int], error: SpecmeshError, now: float) -> None:
        """End the sessions that have these sequences, whose contents are in doubt."""
        self._slots.doubt(seqs)
        for context in list(self.running.values()):
            if context.session.slot.seq not in seqs:
                continue
            if context.client is not None:
                self._refuse(context.client, error)
            self._cancel(context, now, m.FinishReason.ERROR)

    def abandon(self, now: float) -> None:
        """End all sessions by an error of which nothing is known."""
        for context in list(self.running.values()):
            self._cancel(context, now, m.FinishReason.ERROR)

    def _cancel(
        self,
        context: SessionContext,
        now: float,
        reason: m.FinishReason = m.FinishReason.CANCELLED,
    ) -> None:
        """End a session before its text has ended; one that is over already stays as it is."""
        self.carry_out(context, context.session.cancel(reason), now)

    def _finish(
        self,
        context: SessionContext,
        reason: m.FinishReason,
        error: SpecmeshError | None,
        now: float,
    ) -> None:
        """Free a session's sequence, and send client and drafter the end.

        Nothing is sent for a session that is not running: its end was sent before.
        """
        if error is not None:
            self._log("session_broke", context, "warning", error=str(error))
        if self.running.pop(context.id, None) is None:
            return
        self._paused.pop(context.id, None)
        self.cells.changed()
        session = context.session
        if self.cells.set_back.pop(context.id, None) is None:
            # A step that failed may have changed the sequence in part.
            contents = NO_CONTENTS if reason is m.FinishReason.ERROR else session.memory
            self._slots.release(session.slot.seq, contents)
        self._keep_output(context, reason)
        self.ended_counts.add(session.counts)
        # The others on its drafter get their drafts sooner now.
        self.drafters.weigh()
        no_drafts = self.drafters.verdict(context)
        drafter = self.drafters.name(context)
        report = session_report(session, self._target.costs, drafter, now, no_drafts)
        end = vev.SessionEnded(
            session=context.id,
            reason=reason,
            error=error,
            prompt_ids=context.prompt_ids,
            report=report,
            seconds=now - session.times.opened,
        )
        context.ended(end)
        self._outbox.append(vev.ToClient(context.client, end))
        self._outbox.append(context.finished(reason, no_drafts))
        for done in context.done(end):
            self._outbox.append(done)
        self._after_end(context, reason, now)

    def _keep_output(self, context: SessionContext, reason: m.FinishReason) -> None:
        """Keep the text of a session for drafts of its account's later ones."""
        earlier = self._target.earlier
        session = context.session
        if earlier is None or context.account is None or reason is m.FinishReason.ERROR:
            return
        if session.params.cache_prompt:
            earlier.add(context.account, session.prefix.ids[session.n_prompt :])

    def _after_end(self, context: SessionContext, reason: m.FinishReason, now: float) -> None:
        """Keep the end of a session for its client, or forget the session."""
        match context.state:
            case ContextState.CONNECTED:
                if context.owner is not None and context.name and reason in SERVED:
                    # DONE may be lost.
                    self._keep(context, ContextEvent.OVER, now)
                else:
                    self._forget(context)
            case ContextState.KEPT:
                context.advance(ContextEvent.OVER)
            case ContextState.ENDED | ContextState.FORGOTTEN:
                pass  # it was given up
            case _:
                assert_never(context.state)

    def _drop(self, context: SessionContext, now: float) -> None:
        """Give up a kept session."""
        self._forget(context)
        if context.id in self.running:
            self._log("session_dropped", context, tokens=context.session.generated)
            self._cancel(context, now)

    def _keep(self, context: SessionContext, event: ContextEvent, now: float) -> None:
        """Keep a session, or its end, so that it can be asked for by its name."""
        context.advance(event)
        self.kept.add(context, now)

    def _forget(self, context: SessionContext) -> None:
        """Let nobody ask for a session any more; the shell drops its traffic."""
        context.advance(ContextEvent.DROPPED)
        self.kept.pop(context.id, None)
        self._outbox.append(vev.Forgotten(context.id))

    # --- effects

    def _refuse(self, client: int, error: SpecmeshError) -> None:
        self._outbox.append(vev.RequestRefused(client, error))

    def _log(
        self, name: str, context: SessionContext, level: str = "info", **fields: object
    ) -> None:
        """Have a line about a session written to the log."""
        self._outbox.append(vev.Noted(name, {"session": context.id, **fields}, level))
