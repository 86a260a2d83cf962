"""A verifier of a drafter: what is known of it, and the requests and sessions that it has.

Frames come as calls, in the order in which they were received. The effects wait in `take_effects`.

A session here has two halves. This one, on the I/O thread, knows the verifier's number of it and
the client's request. The other one, in the drafter's core, has its text and its drafts. So an end
takes two turns:

1. DONE comes, or the verifier is lost. The number is free at once: the verifier may use it again.
   CloseSession goes to the core, behind all frames of the session that came before.
2. The core has learned the ids of those frames. Its last effect is DraftingEnded. Only now are all
   ids here, so that the client can get the end, or the request be placed at another verifier after
   exactly the ids that its client has.

A request that is `opening` has sent its OPEN and waits for OPENED or ERROR, which name it by `ref`.
"""

import itertools
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.drafter.client_session import ClientSession
from specmesh.core.drafter.pending_request import DrafterRequest, RequestEvent
from specmesh.core.kv_slots import ANY_LENGTH
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.request_frames import (
    BODY_BYTES_PER_S,
    TEXT_IDS_PER_S,
    Before,
    WriteOpen,
    frames_of,
    open_of,
)
from specmesh.core.requests import Reply
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import (
    DaemonUnreachable,
    EndLost,
    EngineError,
    NotPassedOn,
    RemoteProtocolError,
    RequestError,
    SpecmeshError,
    UnfitMessage,
)
from specmesh.wire import messages as m

MAX_REF = 0xFFFFFFFF  # refs wrap around on the wire
UNKNOWN_STEP = 0.05  # seconds of a step if the verifier has sent no load

UpstreamEffect = (
    Before
    | m.Open
    | m.Close
    | m.Pause
    | ev.OpenSession
    | ev.CloseSession
    | ev.UpstreamChanged
    | Reply
    | ev.Noted
)
"""Frames to send, events for the core, events for clients, lines for the log.

If an OPEN cannot be sent, `request_failed` is called, and the request is placed anew.
"""


class Upstream:
    """The verifier at `address`.

    number: its place in the settings.
    info: its WELCOME; None while it is away.
    known: its last WELCOME; None before the first.
    vocabulary: its own, once known.
    load: its last PING or PONG.
    round_trip: to it, in seconds.
    running: sessions by its numbers.
    sessions: by key, also those that are ending.
    opening: requests that have no session yet, by ref.

    Reasons for people, each None or empty if it does not apply:

    kept_out: why it, or the keys here, keep this drafter out.
    unknown: why the name of its host is not known.
    unusable: why its vocabulary cannot be used.
    foreign: why nothing can be drafted in its vocabulary.
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
        self.address = address
        self.number = number
        self.info: m.Welcome | None = None
        self.known: m.Welcome | None = None
        self.vocabulary: Vocabulary | None = None
        self.kept_out: str | None = None
        self.unknown = ""
        self.unusable = ""
        self.foreign = ""
        self.load: m.Ping | m.Pong = m.Pong(0)
        self.round_trip = 0.0
        self.running: dict[int, ClientSession] = {}
        self.sessions: dict[ev.SessionKey, ClientSession] = {}
        self.opening: dict[int, DrafterRequest] = {}
        self._write = write
        self._n_ctx = n_ctx
        self._stats = stats
        self._numbers = itertools.count()
        self._refs = itertools.count(1)
        self._effects = list[UpstreamEffect]()
        self._next_text_at = 0.0  # the verifier bounds the ids and bytes that it takes
        self._reported = ev.UpstreamChanged(number, 0.0, speaks=False)  # to the core

    def take_effects(self) -> list[UpstreamEffect]:
        """Return the effects since the last call, in order."""
        effects = self._effects
        self._effects = []
        return effects

    # --- the state of the verifier

    @property
    def refusal(self) -> str | None:
        """Return why it serves no client here, although it may answer."""
        return self.kept_out or self.unusable or None

    @property
    def no_drafts(self) -> str | None:
        """Return why nothing is drafted for it now, if so; for people."""
        if self.info is None:
            return self.trouble
        newest = next(reversed(self.running.values()), None)
        if newest is not None and newest.n_prompt >= self._n_ctx:
            return NoDrafts.CONTEXT
        return self.refusal or self.foreign or None

    @property
    def trouble(self) -> str:
        """Return why it is away."""
        why = "is it running, and reachable from here?"
        if self.unknown:
            why = f"the name of its host is not known here ({self.unknown})."
        return self.refusal or f"the verifier at {self.address} does not answer: {why}"

    @property
    def own(self) -> int:
        """Return the number of requests of clients here that the verifier has, or was sent."""
        count = len(self.opening)
        for session in self.sessions.values():
            if session.pending is not None:
                count += 1
        return count

    @property
    def token_seconds(self) -> float:
        """Return the seconds per token that one more text can expect.

        They are those of a step, times the sessions that the verifier has or queues for each of its
        places.
        """
        load = self.load
        step = max(load.step_ms, 0.0) / 1e3 or UNKNOWN_STEP
        # Own requests may be newer than the load.
        others = max(load.sessions + load.queued, self.own)
        return step * (1 + others / (load.max_sessions or 1))

    # --- what its link finds

    def loaded(self, load: m.Ping | m.Pong) -> None:
        """Note the load that a PING or a PONG has."""
        self.load = load

    def measured(self, round_trip: float) -> None:
        """Note the seconds of a round trip."""
        self.round_trip = round_trip

    def barred(self, kept_out: str | None, unknown: str) -> None:
        """Note why no connection can be made: see `kept_out` and `unknown`."""
        self.kept_out = kept_out
        self.unknown = unknown

    def compared(self, foreign: str, unusable: str) -> bool:
        """Note why its vocabulary does not suit: see `foreign` and `unusable`.

        Return True if one of them has changed.
        """
        changed = (foreign, unusable) != (self.foreign, self.unusable)
        self.foreign = foreign
        self.unusable = unusable
        return changed

    # --- its connection

    def welcomed(self, info: m.Welcome, now: float) -> bool:
        """Take a WELCOME; return False if it answers another HELLO of the same connection.

        Another verifier, or the same one started anew, has none of the sessions: their requests
        are placed anew.
        """
        before = self.info
        first = self.known is None
        if before is not None and before.verifier == info.verifier:
            self.info = info
            self.known = info
            return False
        self._interrupt_all(
            DaemonUnreachable("the verifier started anew and has forgotten this session"), now
        )
        self.info = info
        self.known = info
        if not first:
            self._stats.reconnects += 1
        self._note("verifier_found", verifier=info.verifier, model=info.model)
        if info.n_ctx > self._n_ctx:
            meaning = (
                f"texts of more tokens than {self._n_ctx} get no drafts: give --window auto, or "
                f"--ctx {info.n_ctx}"
            )
            self._note("context_is_smaller", "warning", verifier=info.n_ctx, meaning=meaning)
        return True

    def speaks(self, vocabulary: Vocabulary | None, *, ready: bool) -> None:
        """Note its vocabulary, if known; ready: the draft model can draft in it."""
        self.vocabulary = vocabulary
        changed = ev.UpstreamChanged(self.number, self.round_trip, ready)
        if changed != self._reported:
            self._reported = changed
            self._effects.append(changed)

    def lost(self, reason: str, now: float) -> None:
        """Note that the verifier went away."""
        self._note("verifier_lost", "warning", reason=reason)
        self.info = None
        self.load = m.Pong(0)
        meaning = f"the verifier at {self.address} went away"
        self._interrupt_all(DaemonUnreachable(meaning), now)

    # --- requests of clients here

    def has_room(self, now: float) -> bool:
        """Return True if the verifier takes the frames of another long request now."""
        return now >= self._next_text_at

    def ask(self, pending: DrafterRequest, now: float) -> None:
        """Ask the verifier, which is there, for a session.

        A request that its frames do not hold is refused at once.
        """
        if pending.began is not None and pending.home != self.address:
            label = pending.request.label
            self._note("session_goes_elsewhere", request=label, verifier=self.address)
        # A ref names the OPEN in its answers, and in a CLOSE before these have come.
        ref = next(self._refs) & MAX_REF
        pending.advance(RequestEvent.ASKED)
        self.opening[ref] = pending
        takes_ids = self.info is not None and self.info.takes_ids
        takes_body = self.info is not None and self.info.takes_body
        try:
            order = open_of(pending.request, ref)
            frames = frames_of(order, self._write, takes_ids=takes_ids, takes_body=takes_body)
        except UnfitMessage as wrong:
            what = f"the request is longer than what a drafter can pass on ({wrong})"
            self.request_failed(ref, NotPassedOn(what, remedy="ask the verifier"))
            return
        if len(frames) > 1:
            # A verifier drops what comes faster, and with it the whole request.
            self._next_text_at = now + _seconds_of(frames)
        self._effects += frames

    def take_over(self, pending: DrafterRequest) -> None:
        """End the session of a request, whose text another client resumes."""
        for session in list(self.running.values()):
            if session.pending is pending:
                self._taken_over(session)

    def cancel(self, pending: DrafterRequest) -> None:
        """Withdraw a request, or close its session."""
        for ref, opening in list(self.opening.items()):
            if opening is pending:
                del self.opening[ref]
                self._effects.append(m.Close(0, ref))
                pending.advance(RequestEvent.CLOSED)
        for session in list(self.sessions.values()):
            if session.pending is pending:
                self._effects.append(m.Close(session.id))
                self._effects += session.cancelled()
                self._forget(session)

    def pause(self, pending: DrafterRequest) -> None:
        """Send whether the session of a request is to wait for its reader."""
        for session in self.running.values():
            if session.pending is pending:
                self._effects.append(m.Pause(session.id, pending.paused))

    def request_failed(self, ref: int, error: SpecmeshError) -> bool:
        """Take an ERROR about a request, or about a session that DONE ends next.

        Return False if it is about neither.
        """
        pending = self.opening.pop(ref, None)
        if pending is not None:
            pending.refused(self.address, error)
            return True
        found = False
        for session in self.running.values():
            if ref and session.ref == ref:
                session.note_failure(error)
                found = True
        return found

    # --- sessions

    def opened(self, number: int, ref: int, n_prompt: int, params: SessionParams) -> None:
        """Begin a session.

        - It is closed if the request's client has left, or if the verifier took a text to resume
          for a prompt. That counts as an ERROR about the request.
        - A session that runs with the same number is over: another client resumes its text.

        number: the verifier's, of the session.
        ref: of the request that it answers, or 0.
        """
        pending = self.opening.get(ref) if ref else None
        if ref and pending is None:
            self._effects.append(m.Close(number))  # its client left before it was opened
            return
        if pending is not None and _prompt_is_wrong(pending, n_prompt):
            self._effects.append(m.Close(number))
            wrong = "the verifier took a text to resume for a prompt"
            self.request_failed(ref, RemoteProtocolError(wrong))
            return
        self.opening.pop(ref, None)
        before = self.running.get(number)
        if before is not None:
            self._taken_over(before)
        facts: dict[str, object] = {"session": number, "prompt_tokens": n_prompt}
        if pending is not None:
            facts["request"] = pending.request.label
            if _resumes(pending):
                self._stats.resumed += 1
            pending.opened(params, self.known, self.address)
        session = ClientSession(
            id=number,
            key=ev.SessionKey(self.number, next(self._numbers)),
            n_prompt=n_prompt,
            end_ids=self.known.end_ids if self.known is not None else (),
            pending=pending,
            ref=ref,
        )
        self.running[number] = session
        self.sessions[session.key] = session
        self._effects.append(
            ev.OpenSession(
                key=session.key,
                session=number,
                n_vocab=self._n_vocab,
                n_prompt=n_prompt,
                params=params.sampling,
                end_ids=session.end_ids,
                grammar=params.grammar,
                cached=params.cache_prompt,
                learns=pending is not None,
            )
        )
        if pending is not None and pending.paused:
            self.pause(pending)
        self._stats.opened += 1
        self._note("session_opened", **facts)

    @property
    def _n_vocab(self) -> int:
        """Return the size of its vocabulary, by its last WELCOME."""
        return self.known.n_vocab if self.known is not None else 0

    def received(self, frame: m.Truth | m.Sync | m.Nack, size: int) -> ev.FrameReceived | None:
        """Return the core's event for a frame of so many bytes; None if no such session runs."""
        session = self.running.get(frame.session)
        if session is None:
            return None
        session.bytes_received += size
        if not isinstance(frame, m.Nack):
            session.draft_n = frame.draft_n
        return ev.FrameReceived(session.key, frame)

    def logprobs(self, logprobs: m.Logprobs, size: int) -> bool:
        """Take a LOGPROBS of so many bytes; return False if there is no room for it.

        One that names an id beyond the vocabulary is dropped.
        """
        session = self.running.get(logprobs.session)
        if session is None or any(token >= self._n_vocab for token in logprobs.top_ids):
            return True
        replies = session.logprobs(logprobs, size)
        self._effects += replies or ()
        return replies is not None

    def progress(self, progress: m.Progress) -> None:
        """Take a PROGRESS."""
        session = self.running.get(progress.session)
        if session is not None:
            self._effects += session.progress(progress)

    def done(self, done: m.Done) -> None:
        """Take a DONE."""
        session = self.running.get(done.session)
        if session is None:
            return  # closed from this side
        if done.finish_reason == m.FinishReason.MOVED:
            self._taken_over(session)
        else:
            self._end(session, done)

    def from_core(
        self,
        session: ClientSession,
        effect: ev.Learned | ev.DraftingEnded | ev.Noted,
        now: float,
    ) -> bool:
        """Take an effect of the core for a session; return whether that is over now."""
        match effect:
            case ev.Learned():
                self._effects += session.learned(effect)
            case ev.DraftingEnded():
                self._closed(session, effect, now)
                return True
            case ev.Noted(name, fields, level):
                self._note(name, level, session=session.id, **fields)
            case _:
                assert_never(effect)
        return False

    def _end(self, session: ClientSession, end: m.Done | SpecmeshError) -> None:
        """End a session once the core has learned all frames before its end."""
        del self.running[session.id]
        session.end_with(end)
        self._effects.append(ev.CloseSession(session.key))

    def _closed(self, session: ClientSession, closed: ev.DraftingEnded, now: float) -> None:
        """End a session that the core has closed.

        - Its request is placed anew if the verifier was lost or stops, or if ids are missing before
          its end.
        - Otherwise the client gets the end.
        """
        end = session.end
        assert end is not None, "the core closes only sessions that end"
        if isinstance(end, SpecmeshError):
            self._interrupt(session, end, now)
            return
        if end.finish_reason == m.FinishReason.SHUTDOWN:
            stopping = DaemonUnreachable("the verifier is stopping: the text ends here")
            self._interrupt(session, stopping, now, tried=(self.address,))
            return
        if session.pending is not None and session.n_truth < end.length:
            self._interrupt(session, EndLost.of(session.n_truth, end.length), now)
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
        self, session: ClientSession, error: SpecmeshError, now: float, tried: tuple[str, ...] = ()
    ) -> None:
        """Have the request of a session placed anew; tried: verifiers that cannot have it."""
        pending = session.interrupted()
        self._forget(session)
        if pending is None:
            return
        generated = len(pending.request.generated)
        self._note("session_interrupted", session=session.id, generated=generated)
        pending.lost(self.address, error, now, tried=tried)

    def _taken_over(self, session: ClientSession) -> None:
        """End a session whose text another client has asked for."""
        error = RequestError("somebody else has asked for this text by its name")
        self._effects += session.failed(error)
        self._forget(session)

    def _forget(self, session: ClientSession) -> None:
        """Drop a session, and have the core close it unless that was asked before."""
        del self.sessions[session.key]
        if self.running.get(session.id) is session:
            del self.running[session.id]
            self._effects.append(ev.CloseSession(session.key))

    def _interrupt_all(self, error: SpecmeshError, now: float) -> None:
        """End all sessions, and have all requests placed anew."""
        for session in list(self.running.values()):
            self._end(session, error)
        for pending in self.opening.values():
            pending.lost(self.address, error, now)
        self.opening.clear()

    def _note(self, event: str, level: str = "info", /, **fields: object) -> None:
        self._effects.append(ev.Noted(event, fields, level))


def _resumes(pending: DrafterRequest) -> bool:
    """Return True if a request goes on with a text that has begun, here or elsewhere."""
    request = pending.request
    return pending.started or request.named_only or bool(request.generated)


def _seconds_of(frames: list[Before | m.Open]) -> float:
    """Return the time that the verifier has to be given for the frames of a long request."""
    seconds = 0.0
    for frame in frames:
        match frame:
            case m.Ids():
                seconds += len(frame.ids) / TEXT_IDS_PER_S
            case m.Open():
                seconds += frame.n_body / BODY_BYTES_PER_S
            case m.Body():
                pass  # the OPEN has the bytes of all of them
            case _:
                assert_never(frame)
    return seconds


def _prompt_is_wrong(pending: DrafterRequest, n_prompt: int) -> bool:
    """Return True if a verifier counts ids of a text to resume as its prompt."""
    request = pending.request
    return bool(request.generated) and n_prompt != len(request.prompt_ids or ())
