"""A verifier of a drafter: what it has said of itself, and the requests and sessions that it has.

Frames come as calls, in the order in which they were received; what follows from each waits in `take_effects`.
"""

import itertools
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.drafter.client_session import ClientSession
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.requests import DrafterRequest, Reply, RequestState, open_of
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import (
    DaemonUnreachable,
    EndLost,
    EngineError,
    RemoteProtocolError,
    RequestError,
    SpecmeshError,
)
from specmesh.wire import messages as m

ANY_LENGTH = 2**32  # no text has so many
MAX_REF = 0xFFFFFFFF  # refs wrap around on the wire
UNKNOWN_STEP = 0.05  # seconds of a step where the verifier does not tell


UpstreamEffect = (
    m.Open
    | m.Close
    | m.Pause
    | ev.DraftFor
    | ev.FollowUp
    | ev.Dropped
    | ev.UpstreamChanged
    | Reply
    | ev.Noted
)
"""An OPEN that cannot be sent comes back as `request_failed`, and the request is placed anew."""


class Upstream:
    """The verifier at `address`, number `place[0]` of `place[1]`: a session's key in the core is
    that number modulo so many. info: what it says of itself, None while it is away; known: the
    same, also once it is gone. vocabulary: its own, once known. kept_out: why it or our own keys
    keep this drafter out. unknown: why the name of its host is not known; unusable: why its
    vocabulary cannot be used; foreign: why nothing can be drafted in it; each empty where it is
    not so. n_ctx: ids that the draft model can hold of a text. live: sessions by its ids;
    sessions: by key, also those that are ending. opening: by ref, requests that have no session
    yet."""

    def __init__(
        self,
        address: str,
        place: tuple[int, int],
        stats: DrafterStats,
        n_ctx: int = ANY_LENGTH,
    ) -> None:
        self.address, self.number = address, place[0]
        self._n_ctx = n_ctx
        self.info: m.Welcome | None = None
        self.known: m.Welcome | None = None
        self.vocabulary: Vocabulary | None = None
        self.kept_out: str | None = None
        self.unknown = self.unusable = self.foreign = ""
        self.round_trip = 0.0
        self.load: m.Ping | m.Pong = m.Pong(0)
        self.live: dict[int, ClientSession] = {}
        self.sessions: dict[int, ClientSession] = {}
        self.opening: dict[int, DrafterRequest] = {}
        self._effects, self._stats = list[UpstreamEffect](), stats
        self._keys, self._refs = itertools.count(*place), itertools.count(1)
        self._spoken = ev.UpstreamChanged(self.number, 0.0, speaks=False)

    def take_effects(self) -> list[UpstreamEffect]:
        """Return what is to be done, in this order."""
        effects, self._effects = self._effects, []
        return effects

    # --- what it is

    @property
    def refusal(self) -> str | None:
        """Return why it serves no client here, although it may answer."""
        return self.kept_out or self.unusable or None

    @property
    def no_drafts(self) -> str | None:
        """Return why nothing is drafted for it now, if so; for people."""
        if self.info is None:
            return self.trouble
        newest = next(reversed(self.live.values()), None)
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

    # --- whether it is there

    def welcomed(self, info: m.Welcome, now: float) -> bool:
        """Begin with a verifier; return False where it is the one that was there: it got more than one HELLO."""
        before, known = self.info, self.known
        if before is not None and before.verifier == info.verifier:
            self.info = self.known = info
            return False
        self._interrupt_all(
            DaemonUnreachable("the verifier started anew and has forgotten this session"), now
        )
        self.info = self.known = info
        self._stats.reconnects += known is not None
        self._note("verifier_found", verifier=info.verifier, model=info.model)
        if info.n_ctx > self._n_ctx:
            meaning = (
                f"texts of more tokens than {self._n_ctx} get no drafts: give --ctx {info.n_ctx}"
            )
            self._note("context_is_smaller", "warning", verifier=info.n_ctx, meaning=meaning)
        return True

    def speaks(self, vocabulary: Vocabulary | None, *, ready: bool) -> None:
        """Note what is known of its vocabulary; ready: the draft model speaks its ids. The core hears of it."""
        self.vocabulary = vocabulary
        changed = ev.UpstreamChanged(self.number, self.round_trip, ready)
        if changed != self._spoken:
            self._spoken = changed
            self._effects.append(changed)

    def lost(self, reason: str, now: float) -> None:
        self._note("verifier_lost", "warning", reason=reason)
        self.info, self.load = None, m.Pong(0)
        what = f"the verifier at {self.address} went away"
        self._interrupt_all(DaemonUnreachable(what, address=self.address), now)

    @property
    def own(self) -> int:
        """Number of requests of clients here that the verifier has, or was asked for."""
        return len(self.opening) + sum(live.pending is not None for live in self.sessions.values())

    @property
    def token_seconds(self) -> float:
        """Seconds per token that one more text can expect: a step's, more the more sessions are taken or waited for."""
        load = self.load
        others = max(
            load.sessions + load.queued, self.own
        )  # own requests may be newer than the load
        return (max(load.step_ms, 0.0) / 1e3 or UNKNOWN_STEP) * (
            1 + others / (load.max_sessions or 1)
        )

    # --- requests of clients here

    def ask(self, pending: DrafterRequest) -> None:
        """Ask the verifier, which is there, for a session."""
        if pending.began is not None and pending.home != self.address:
            self._note(
                "session_goes_elsewhere", request=pending.request.label, verifier=self.address
            )
        ref = next(self._refs) & MAX_REF
        pending.move(RequestState.OPENING)
        self.opening[ref] = pending
        self._effects.append(open_of(pending, ref))

    def take_over(self, pending: DrafterRequest) -> None:
        """End the session of a request, whose text another client resumes."""
        for live in [one for one in self.live.values() if one.pending is pending]:
            self._taken_over(live)

    def cancel(self, pending: DrafterRequest) -> None:
        for ref in [ref for ref, one in self.opening.items() if one is pending]:
            del self.opening[ref]
            self._effects.append(m.Close(0, ref))
            pending.move(RequestState.OVER)
        for live in [one for one in self.sessions.values() if one.pending is pending]:
            self._effects += [m.Close(live.id), *live.cancelled()]
            self._forget(live)

    def pause(self, pending: DrafterRequest) -> None:
        """Tell the verifier whether the session of a request is to wait for its reader."""
        for live in self.live.values():
            if live.pending is pending:
                self._effects.append(m.Pause(live.id, pending.paused))

    def request_failed(self, ref: int, error: SpecmeshError) -> bool:
        """Handle an ERROR about a request, or a session that DONE ends next; return False where it is about neither."""
        pending = self.opening.pop(ref, None)
        if pending is not None:
            pending.refused(self.address, error)
            pending.move(RequestState.UNPLACED)
            return True
        broken = [live for live in self.live.values() if ref and live.ref == ref]
        for live in broken:
            live.broken = error
        return bool(broken)

    # --- sessions

    def opened(self, session: int, ref: int, n_prompt: int, params: SessionParams) -> None:
        """Take up a session; ref: of the request for it, or 0."""
        pending = self.opening.get(ref) if ref else None
        if ref and pending is None:
            self._effects.append(m.Close(session))  # its client left before it was opened
            return
        if (
            pending is not None
            and pending.request.generated
            and n_prompt != len(pending.request.prompt_ids or ())
        ):
            self._effects.append(m.Close(session))
            self.request_failed(
                ref, RemoteProtocolError("the verifier took a text to resume for a prompt")
            )
            return
        self.opening.pop(ref, None)
        if session in self.live:
            self._taken_over(self.live[session])
        end_ids, n_vocab = (
            (self.known.end_ids, self.known.n_vocab) if self.known is not None else ((), 0)
        )
        named = dict[str, str]()
        if pending is not None:
            named = {"request": pending.request.label}
            self._stats.resumed += (
                pending.started or bool(pending.request.generated) or pending.request.named_only
            )
            pending.opened(params, self.known, self.address)
        live = ClientSession(session, next(self._keys), n_prompt, end_ids, pending, ref)
        self.live[live.id] = self.sessions[live.key] = live
        place, learns = (live.key, self.number, session, n_vocab, n_prompt), pending is not None
        self._effects.append(
            ev.DraftFor(
                *place, params.sampling, end_ids, params.grammar, params.cache_prompt, learns
            )
        )
        if pending is not None and pending.paused:
            self.pause(pending)
        self._stats.opened += 1
        self._note("session_opened", session=session, prompt_tokens=n_prompt, **named)

    def heard(self, said: m.Truth | m.Sync | m.Nack, size: int) -> ev.Heard:
        """Return, for the core, what the verifier says to a live session, in so many bytes: each round has one."""
        live = self.live[said.session]
        live.bytes_received += size
        if not isinstance(said, m.Nack):
            live.draft_n = said.draft_n
        return ev.Heard(live.key, said)

    def logprobs(self, logprobs: m.Logprobs) -> None:
        """Pass on those of committed ids, unless they name an id that is none."""
        live, n_vocab = (
            self.live.get(logprobs.session),
            self.known.n_vocab if self.known is not None else 0,
        )
        if live is not None and all(token < n_vocab for token in logprobs.top_ids):
            self._effects.append(ev.FollowUp(live.key, logprobs))

    def done(self, done: m.Done) -> None:
        live = self.live.get(done.session)
        if live is None:
            return  # closed from this side
        if done.finish_reason == m.FinishReason.MOVED:
            self._taken_over(live)
        else:
            self._end(live, done)

    def from_core(
        self, live: ClientSession, said: ev.Learned | ev.FollowUp | ev.Noted, now: float
    ) -> bool:
        """Take what the core says of a session; return whether it ended by that."""
        match said:
            case ev.Learned():
                self._effects += live.learned(said)
            case ev.FollowUp(_, what, draft_tokens, seconds):
                if isinstance(what, m.Logprobs):
                    self._effects += live.add(what)
                else:
                    live.draft_tokens, live.draft_seconds = draft_tokens, seconds
                    self._ended(live, what, now)
                    return True
            case ev.Noted(name, fields, level):
                self._note(name, level, session=live.id, **fields)
            case _:
                assert_never(said)
        return False

    def _end(self, live: ClientSession, why: m.Done | SpecmeshError) -> None:
        """End a session once all is learned that it was sent before."""
        del self.live[live.id]
        self._effects += [ev.FollowUp(live.key, why), ev.Dropped(live.key)]

    def _ended(self, live: ClientSession, why: m.Done | SpecmeshError, now: float) -> None:
        if isinstance(why, SpecmeshError):
            self._interrupt(live, why, now)
        elif why.finish_reason == m.FinishReason.SHUTDOWN:
            stopping = DaemonUnreachable("the verifier is stopping: the text ends here")
            self._interrupt(live, stopping, now, tried=(self.address,))
        elif live.pending is not None and live.n_truth < why.length:
            self._interrupt(live, EndLost.of(live.n_truth, why.length), now)
        else:
            self._effects.append(m.Close(live.id))
            self._note(
                "session_finished",
                session=live.id,
                reason=why.finish_reason,
                draft_tokens=live.draft_tokens,
            )
            if why.finish_reason == m.FinishReason.ERROR:
                self._effects += live.failed(
                    live.broken or EngineError("the verifier's engine failed: see its log")
                )
            self._effects += live.done(why.finish_reason, why.report)
            self._forget(live)

    def _interrupt(
        self, live: ClientSession, error: SpecmeshError, now: float, tried: tuple[str, ...] = ()
    ) -> None:
        pending = live.interrupted()
        self._forget(live)
        if pending is not None:
            self._note(
                "session_interrupted", session=live.id, generated=len(pending.request.generated)
            )
            pending.lost(error, now)
            pending.tried = tried
            pending.move(RequestState.UNPLACED)

    def _taken_over(self, live: ClientSession) -> None:
        self._effects += live.failed(
            RequestError("somebody else has asked for this text by its name")
        )
        self._forget(live)

    def _forget(self, live: ClientSession) -> None:
        del self.sessions[live.key]
        if self.live.get(live.id) is live:
            del self.live[live.id]
            self._effects.append(ev.Dropped(live.key))

    def _interrupt_all(self, error: SpecmeshError, now: float) -> None:
        for live in list(self.live.values()):
            self._end(live, error)
        for pending in self.opening.values():
            if pending.began is None:
                pending.home = self.address
            pending.lost(error, now)
            pending.move(RequestState.UNPLACED)
        self.opening.clear()

    def _note(self, event: str, level: str = "info", /, **fields: object) -> None:
        self._effects.append(ev.Noted(event, fields, level))
