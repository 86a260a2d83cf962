"""A verifier of a drafter: what is known of it, and the requests and sessions that it has.

`handle` takes an event and returns the effects. Frames come as events in the order in which they
were received. What becomes of a request is an effect for the router, which keeps it.

A session here has two halves. This one, on the I/O thread, knows the verifier's number of it and
the client's request. The other one, in the drafter's core, has its text and its drafts. So an end
takes two turns:

1. DONE comes, or the verifier is lost. The number is free at once: the verifier may use it again.
   CloseSession goes to the core, behind all frames of the session that came before.
2. The core has learned the ids of those frames. Its last effect is DraftingEnded. Only now are all
   ids here, so that the client can get the end, or the request be placed at another verifier after
   exactly the ids that its client has.

A request before its session is one of the `OpeningRequests`.
"""

import itertools
from collections.abc import Iterable
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.drafter import upstream_events as uev
from specmesh.core.drafter.client_session import ClientSession
from specmesh.core.drafter.opening_requests import OpeningRequests
from specmesh.core.drafter.placement import (
    Placement,
    PlacementLost,
    PlacementOpened,
    PlacementRefused,
)
from specmesh.core.drafter.upstream_facts import UpstreamFacts
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.request_frames import WriteOpen
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.errors import (
    DaemonUnreachable,
    EndLost,
    EngineError,
    RemoteProtocolError,
    RequestError,
    SpecmeshError,
)
from specmesh.wire import messages as m

MAX_BACKLOG = 16 * 2**20
"""Bytes of frames that wait for a core in a step; those beyond are lost, as on a wire. A text of
262,144 ids has 1 MiB.
"""


class Upstream:
    """The verifier at `address`.

    number: its place in the settings.
    facts: what is known of it.
    """

    def __init__(
        self,
        address: str,
        number: int,
        stats: DrafterStats,
        write: WriteOpen,
        n_ctx: int = ANY_LENGTH,
    ) -> None:
        """Begin without a verifier; n_ctx: ids that the draft model can hold of a text."""
        self.number = number
        self.facts = UpstreamFacts(address)
        self._running: dict[int, ClientSession] = {}  # by the verifier's numbers
        self._sessions: dict[ev.SessionKey, ClientSession] = {}  # also those that are ending
        self._opening = OpeningRequests(number, write)
        self._n_ctx = n_ctx
        self._stats = stats
        self._numbers = itertools.count()
        self._effects = list[uev.UpstreamEffect]()  # of the event that is handled
        self._backlog = 0  # bytes that the core has not taken
        self._reported = ev.UpstreamChanged(number, 0.0, speaks=False)  # to the core

    def handle(self, event: uev.UpstreamEvent, now: float) -> list[uev.UpstreamEffect]:
        """Take an event that happened at `now`."""
        match event:
            case uev.SessionFrame():
                self._take_frame(event)
            case uev.FromDraftCore():
                self._take_from_core(event)
            case uev.LogprobsCame():
                self._take_logprobs(event)
            case m.Ping() | m.Pong():
                self.facts.load = event
            case uev.UpstreamMeasured(round_trip):
                self.facts.round_trip = round_trip
            case uev.UpstreamBarred(kept_out, unknown):
                self.facts.kept_out = kept_out
                self.facts.unknown = unknown
            case uev.VocabularyCompared():
                self._compare(event)
            case m.Progress():
                session = self._running.get(event.session)
                if session is not None:
                    self._effects += session.progress(event)
            case uev.SessionOpened():
                self._open(event)
            case m.Done():
                self._take_done(event)
            case m.Welcome():
                self._welcome(event)
            case uev.ErrorCame():
                self._take_error(event)
            case uev.VerifierLost(reason):
                self._lose(reason)
            case uev.AskFor(placement):
                self._effects += self._opening.place(placement, self.facts, now)
            case uev.Withdraw(number):
                self._withdraw(number)
            case uev.TakeOver(number):
                for session in _of_request(number, self._running.values()):
                    self._taken_over(session)
            case uev.PausePlacement(number, paused):
                for session in _of_request(number, self._running.values()):
                    self._effects.append(m.Pause(session.id, paused))
            case _:
                assert_never(event)
        if not self._effects:
            return []
        effects = self._effects
        self._effects = []
        return effects

    # --- for its link, its router and `stats`

    def has(self, key: ev.SessionKey) -> bool:
        """Return True if a session is not over here."""
        return key in self._sessions

    @property
    def draft_ns(self) -> list[int]:
        """Return the drafts wanted for each session that runs, the newest last."""
        return [session.draft_n for session in self._running.values()]

    @property
    def opening(self) -> list[Placement]:
        """Return the requests that have no session yet."""
        return self._opening.placements

    @property
    def own(self) -> int:
        """Return the number of requests of clients here that the verifier has, or was sent."""
        count = len(self.opening)
        for session in self._sessions.values():
            if session.placement is not None:
                count += 1
        return count

    @property
    def no_drafts(self) -> str | None:
        """Return why nothing is drafted for it now, if so; for people."""
        facts = self.facts
        if facts.info is None:
            return facts.trouble
        # The newest session is the one that somebody who asks for a reason is looking at.
        newest = next(reversed(self._running.values()), None)
        if newest is not None and newest.n_prompt >= self._n_ctx:
            return NoDrafts.CONTEXT
        return facts.refusal or facts.foreign or None

    def has_room(self, now: float) -> bool:
        """Return True if the verifier takes the frames of another long request now."""
        return self._opening.has_room(now)

    # --- its connection

    def _welcome(self, info: m.Welcome) -> None:
        """Take a WELCOME, which may answer another HELLO of the same connection.

        Another verifier, or the same one started anew, has none of the sessions: their requests
        are placed anew.
        """
        facts = self.facts
        first = facts.known is None
        # The same process answers again: it has all its sessions, and nothing begins anew.
        if facts.info is not None and facts.info.verifier == info.verifier:
            facts.welcomed(info)
            return
        self._interrupt_all(
            DaemonUnreachable("the verifier started anew and has forgotten this session")
        )
        facts.welcomed(info)
        if not first:
            # The first verifier at an address is no return.
            self._stats.reconnects += 1
        self._note("verifier_found", verifier=info.verifier, model=info.model)
        # Otherwise nobody would know before drafts stop, in the middle of a long text.
        if info.n_ctx > self._n_ctx:
            meaning = (
                f"texts of more tokens than {self._n_ctx} get no drafts: give --window auto, or "
                f"--ctx {info.n_ctx}"
            )
            self._note("context_is_smaller", "warning", verifier=info.n_ctx, meaning=meaning)
        self._effects.append(uev.VerifierFound(info))

    def _compare(self, compared: uev.VocabularyCompared) -> None:
        """Note how far its vocabulary is known, and whether the draft model can draft in it."""
        facts = self.facts
        if (compared.foreign, compared.unusable) != (facts.foreign, facts.unusable):
            self._effects.append(uev.ReasonChanged())
        facts.foreign = compared.foreign
        facts.unusable = compared.unusable
        facts.vocabulary = compared.vocabulary
        changed = ev.UpstreamChanged(self.number, facts.round_trip, compared.ready)
        if changed != self._reported:
            self._reported = changed
            self._effects.append(changed)

    def _lose(self, reason: str) -> None:
        """Note that the verifier went away."""
        self._note("verifier_lost", "warning", reason=reason)
        self.facts.lost()
        meaning = f"the verifier at {self.facts.address} went away"
        self._interrupt_all(DaemonUnreachable(meaning))

    # --- requests of clients here

    def _withdraw(self, number: int) -> None:
        """Withdraw a request, or close its session."""
        self._effects += self._opening.withdraw(number)
        for session in _of_request(number, self._sessions.values()):
            self._effects.append(m.Close(session.id))
            self._effects += session.cancelled()
            self._forget(session)

    def _take_error(self, came: uev.ErrorCame) -> None:
        """Take an ERROR about a request, or about a session that DONE ends next.

        One that is about neither is about the connection, and goes back to the link.
        """
        placement = self._opening.take(came.ref)
        if placement is not None:
            self._effects.append(PlacementRefused(placement.number, self.number, came.error))
            return
        found = False
        for session in self._running.values():
            if came.ref and session.ref == came.ref:
                session.note_failure(came.error)
                found = True
        if not found:
            self._effects.append(came)

    # --- sessions

    def _open(self, opened: uev.SessionOpened) -> None:
        """Begin a session.

        - It is closed if the request's client has left, or if the verifier took a text to resume
          for a prompt. That counts as an ERROR about the request.
        - A session that runs with the same number is over: another client resumes its text.
        """
        number = opened.session
        placement = self._opening.take(opened.ref)
        if opened.ref and placement is None:
            self._effects.append(m.Close(number))  # its client left before it was opened
            return
        if placement is not None and placement.is_wrong_prompt(opened.n_prompt):
            self._effects.append(m.Close(number))
            wrong = RemoteProtocolError("the verifier took a text to resume for a prompt")
            self._effects.append(PlacementRefused(placement.number, self.number, wrong))
            return
        before = self._running.get(number)
        if before is not None:
            self._taken_over(before)
        known = self.facts.known
        fields: dict[str, object] = {"session": number, "prompt_tokens": opened.n_prompt}
        if placement is not None:
            fields["request"] = placement.request.label
            if placement.resumes:
                self._stats.resumed += 1
            placement = placement.opened(opened.params)
        session = ClientSession(
            id=number,
            key=ev.SessionKey(self.number, next(self._numbers)),
            n_prompt=opened.n_prompt,
            end_ids=known.end_ids if known is not None else (),
            placement=placement,
            ref=opened.ref,
        )
        self._running[number] = session
        self._sessions[session.key] = session
        self._effects.append(
            ev.OpenSession(
                key=session.key,
                session=number,
                n_vocab=self.facts.n_vocab,
                n_prompt=opened.n_prompt,
                params=opened.params.sampling,
                end_ids=session.end_ids,
                grammar=opened.params.grammar,
                cached=opened.params.cache_prompt,
                learns=placement is not None,
            )
        )
        self._stats.opened += 1
        self._note("session_opened", **fields)
        if placement is not None:
            self._effects.append(
                PlacementOpened(placement.number, self.number, placement.request, known)
            )

    def _take_frame(self, came: uev.SessionFrame) -> None:
        """Hand a frame of ids to the core; one of no session that runs is dropped."""
        frame = came.frame
        session = self._running.get(frame.session)
        if session is None:
            return
        session.bytes_received += came.size
        if not isinstance(frame, m.Nack):
            session.draft_n = frame.draft_n
        if came.idle:
            self._backlog = 0
        self._backlog += came.size
        if self._backlog > MAX_BACKLOG:
            self._effects.append(uev.FrameRejected("backlog"))
        else:
            self._effects.append(ev.FrameReceived(session.key, frame))

    def _take_logprobs(self, came: uev.LogprobsCame) -> None:
        """Take a LOGPROBS. One that names an id beyond the vocabulary is dropped."""
        frame = came.frame
        session = self._running.get(frame.session)
        if session is None or any(token >= self.facts.n_vocab for token in frame.top_ids):
            return
        replies = session.logprobs(frame, came.size)
        if replies is None:
            self._effects.append(uev.FrameRejected("backlog"))
        else:
            self._effects += replies

    def _take_done(self, done: m.Done) -> None:
        session = self._running.get(done.session)
        if session is None:
            return  # closed from this side
        if done.finish_reason == m.FinishReason.MOVED:
            self._taken_over(session)
        else:
            self._end(session, done)

    def _take_from_core(self, came: uev.FromDraftCore) -> None:
        """Take an effect of the core for a session, unless that is over here."""
        session = self._sessions.get(came.key)
        if session is None:
            return
        effect = came.effect
        match effect:
            case ev.Learned():
                self._effects += session.learned(effect)
            case ev.DraftingEnded():
                session.bytes_sent = came.bytes_sent
                self._close(session, effect)
            case ev.Noted(name, fields, level):
                self._note(name, level, session=session.id, **fields)
            case _:
                assert_never(effect)

    def _end(self, session: ClientSession, end: m.Done | SpecmeshError) -> None:
        """End a session once the core has learned all frames before its end."""
        del self._running[session.id]
        session.end_with(end)
        self._effects.append(ev.CloseSession(session.key))

    def _close(self, session: ClientSession, closed: ev.DraftingEnded) -> None:
        """End a session that the core has closed.

        - Its request is placed anew if the verifier was lost or stops, or if ids are missing before
          its end.
        - Otherwise the client gets the end.
        """
        end = session.end
        assert end is not None, "the core closes only sessions that end"
        if isinstance(end, SpecmeshError):
            self._interrupt(session, end)
            return
        if end.finish_reason == m.FinishReason.SHUTDOWN:
            stopping = DaemonUnreachable("the verifier is stopping: the text ends here")
            self._interrupt(session, stopping, tried=True)
            return
        if session.placement is not None and session.n_truth < end.length:
            self._interrupt(session, EndLost.of(session.n_truth, end.length))
            return
        self._effects.append(m.Close(session.id))
        self._note(
            "session_finished",
            session=session.id,
            reason=end.finish_reason,
            draft_tokens=closed.draft_tokens,
        )
        if end.finish_reason == m.FinishReason.ERROR:
            unknown = EngineError("the verifier's engine failed: see its log")
            self._effects += session.failed(session.failure or unknown)
        self._effects += session.done(end.finish_reason, end.report, closed)
        self._forget(session)

    def _interrupt(
        self, session: ClientSession, error: SpecmeshError, *, tried: bool = False
    ) -> None:
        """Have the request of a session placed anew; tried: not at this verifier next."""
        placement = session.interrupted()
        self._forget(session)
        if placement is None:
            return
        generated = len(placement.request.generated)
        self._note("session_interrupted", session=session.id, generated=generated)
        self._give_back(placement, error, tried=tried)

    def _give_back(
        self, placement: Placement, error: SpecmeshError, *, tried: bool = False
    ) -> None:
        lost = PlacementLost(upstream=self.number, placement=placement, error=error, tried=tried)
        self._effects.append(lost)

    def _taken_over(self, session: ClientSession) -> None:
        """End a session whose text another client has asked for."""
        error = RequestError("somebody else has asked for this text by its name")
        self._effects += session.failed(error)
        self._forget(session)

    def _forget(self, session: ClientSession) -> None:
        """Drop a session, and have the core close it unless that was asked before."""
        del self._sessions[session.key]
        if self._running.get(session.id) is session:
            del self._running[session.id]
            self._effects.append(ev.CloseSession(session.key))

    def _interrupt_all(self, error: SpecmeshError) -> None:
        """End all sessions, and have all requests placed anew."""
        for session in list(self._running.values()):
            self._end(session, error)
        for placement in self._opening.take_all():
            self._give_back(placement, error)

    def _note(self, event: str, level: str = "info", /, **fields: object) -> None:
        self._effects.append(ev.Noted(event, fields, level))


def _of_request(number: int, sessions: Iterable[ClientSession]) -> list[ClientSession]:
    """Return the sessions that answer a request."""
    found = list[ClientSession]()
    for session in sessions:
        if session.placement is not None and session.placement.number == number:
            found.append(session)
    return found
