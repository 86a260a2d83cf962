"""The requests and sessions of a drafter at one of its verifiers.

Frames come as calls, in the order in which they were received; what follows is carried out at once by an `Outlet`.
"""

import itertools
from collections import deque
from dataclasses import replace
from typing import Protocol, assert_never

from specmesh.core import events as ev
from specmesh.core.client_session import ClientSession, RoundTold
from specmesh.core.drafting.verifier_choice import ReportedLoad, TokenPace
from specmesh.core.requests import EventSink, PendingRequest, ReturnedRequest, VerifierInfo
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.session_params import SessionParams
from specmesh.core.snapshot import DraftTotals
from specmesh.core.verifier_events import LogprobsTold, Over
from specmesh.errors import Busy, DaemonUnreachable, EngineError, RemoteProtocolError, RequestError, SpecmeshError

MAX_REF = 0xFFFFFFFF  # refs wrap around on the wire
FADE = 0.97  # what a round still counts after the next one, about 30 rounds
FORGOTTEN = 120.0  # seconds after which a measured pace counts no more: a slow verifier must be tried again


class Outlet(Protocol):
    """The connection to a verifier, and the core that drafts."""

    @property
    def refusal(self) -> str | None:
        """Why the verifier or our own keys keep this drafter out."""

    def ask(self, pending: PendingRequest, ref: int) -> SpecmeshError | None:
        """Ask the verifier for a session; return why that cannot be."""

    def send(self, session: int, what: ev.Drafted | ev.Nacked) -> int:
        """Return how many bytes were sent."""

    def close(self, session: int, drafted: int = 0, draft_seconds: float = 0.0, ref: int = 0) -> None:
        """Leave a session, or withdraw the request `ref`."""

    def reconnect(self) -> None:
        """Go on over a fresh connection."""

    def compile(self, grammar: Grammar, key: int) -> None:
        """Tell the core of a session's grammar once it is compiled."""

    def tell(self, event: ev.CoreEvent, at: float, /) -> None:
        """Hand an event to the core that drafts."""

    def note(self, noted: ev.Noted) -> None:
        """Log."""


class DraftCounts(Protocol):
    """Counters of a drafter."""

    opened: int
    resumed: int
    totals: DraftTotals

    def round(self, accepted: int, committed: int, now: float, /) -> None: ...
    def peer_came(self) -> None: ...
    def peer_lost(self) -> None: ...


class PaceMeter:
    def __init__(self) -> None:
        self._heard: dict[int, float] = {}
        self._tokens = self._seconds = self._others = self._weight = 0.0
        self._newest = float("-inf")

    def heard(self, session: int, tokens: int, others: int, now: float) -> None:
        """Note tokens of a session, with so many sessions beside it. The first of a session only begin it."""
        before = self._heard.get(session)
        self._heard[session] = now
        if before is None or not tokens:
            return
        self._tokens = FADE * self._tokens + tokens
        self._seconds = FADE * self._seconds + now - before
        self._others, self._weight = FADE * self._others + others, FADE * self._weight + 1
        self._newest = now

    def ended(self, session: int) -> None:
        self._heard.pop(session, None)

    def pace(self, now: float) -> TokenPace | None:
        if not self._tokens or now - self._newest > FORGOTTEN:
            return None
        return TokenPace(self._seconds / self._tokens, self._others / self._weight)


class UpstreamSessions:
    """Those at the verifier at `address`, number `place[0]` of `place[1]`: a session's key in the core is that number
    modulo so many.

    known: what the verifier said of itself, also once it is gone. load: what it told last. live: sessions by its ids.
    asked: by ref, requests that have no session yet. returned: requests that are not its any more, for `RequestRouter`.
    """

    def __init__(self, address: str, place: tuple[int, int], outlet: Outlet, counts: DraftCounts) -> None:
        self.known: VerifierInfo | None = None
        self.load, self.meter = ReportedLoad(), PaceMeter()
        self.live: dict[int, ClientSession] = {}
        self.asked: dict[int, PendingRequest] = {}
        self.returned = deque[ReturnedRequest]()
        self._address, self._number, self._out, self._counts = address, place[0], outlet, counts
        self._keys, self._refs = itertools.count(*place), itertools.count(1)
        self._sessions: dict[int, ClientSession] = {}  # by key; also those that are ending

    @property
    def own(self) -> int:
        """Number of requests of clients here that the verifier has, or was asked for."""
        return len(self.asked) + sum(live.pending is not None for live in self._sessions.values())

    # --- requests of clients here

    def ask(self, pending: PendingRequest) -> SpecmeshError | None:
        """Ask the verifier, which is there, for a session; return why it cannot be."""
        ref = next(self._refs) & MAX_REF
        error = self._out.ask(pending, ref)
        if error is None:
            self.asked[ref] = pending
        return error

    def take_over(self, name: str, now: float) -> bool:
        """End the sessions of this name, which another client resumes; return False where there are none."""
        had = [live for live in self.live.values() if live.pending and live.pending.request.id == name]
        for live in had:
            self._taken_over(live, now)
        return bool(had)

    def cancel_of(self, client: EventSink, now: float) -> None:
        for ref in [ref for ref, pending in self.asked.items() if pending.client is client]:
            del self.asked[ref]
            self._out.close(0, ref=ref)
        for live in list(self._sessions.values()):
            if live.pending is not None and live.pending.client is client:
                self._close(live)
                live.cancelled()
                self._forget(live, now)

    def request_failed(self, ref: int, error: SpecmeshError) -> bool:
        """Handle an ERROR about a request, or a session that DONE ends next; return False where it is about neither."""
        pending = self.asked.pop(ref, None)
        if pending is not None:
            self.returned.append(ReturnedRequest(pending, error, refused=True))
            # What was asked for later would overtake the request that there was no room for.
            for later in [one for one in self.asked if one > ref] if isinstance(error, Busy) else ():
                self._out.close(0, ref=later)
                self.returned.append(ReturnedRequest(self.asked.pop(later), error, refused=True))
        broken = [live for live in self.live.values() if live.ref == ref]
        for live in broken:
            live.broken = error
        return pending is not None or bool(broken)

    # --- sessions

    def opened(self, session: int, ref: int, n_prompt: int, params: SessionParams, now: float) -> None:
        """Take up a session; ref: of the request for it, or 0."""
        pending = self.asked.pop(ref, None) if ref else None
        if ref and pending is None:
            self._out.close(session)  # its client left before it was opened
            return
        if session in self.live:
            self._taken_over(self.live[session], now)
        end_ids, n_vocab = (self.known.end_ids, self.known.n_vocab) if self.known is not None else ((), 0)
        named = dict[str, str]()
        if pending is not None:
            named = {"request": pending.request.label}
            self._counts.resumed += pending.resumes
            pending = pending.opened(params)
        live = ClientSession(session, next(self._keys), n_prompt, end_ids, pending, ref)
        self.live[live.id] = self._sessions[live.key] = live
        place = live.key, self._number, n_vocab, n_prompt
        self._out.tell(ev.DraftFor(*place, params.sampling, end_ids, params.grammar, params.cache_prompt), now)
        self._counts.opened += 1
        self._note("session_opened", session=session, prompt_tokens=n_prompt, **named)

    def heard(self, session: int, what: ev.Told | ev.Nacked, size: int, now: float) -> None:
        """Pass on what the verifier says to a session, in so many bytes."""
        live = self.live.get(session)
        if live is not None:
            live.bytes_received += size
            if isinstance(what, ev.Told):
                live.draft_n = what.draft_n
            self._out.tell(ev.Heard(live.key, what), now)

    def aside(self, session: int, what: RoundTold | LogprobsTold, now: float) -> None:
        """Pass on what belongs to committed ids, unless it names an id that is none."""
        live, n_vocab = self.live.get(session), self.known.n_vocab if self.known is not None else 0
        logprobs = what.logprobs if isinstance(what, LogprobsTold) else ()
        if live is not None and all(token < n_vocab for one in logprobs if one is not None for token in one.ids):
            self._out.tell(ev.Aside(live.key, what), now)

    def done(self, session: int, over: Over, now: float) -> None:
        live = self.live.get(session)
        if live is None:
            return  # closed from this side
        if over.reason == "moved":
            self._taken_over(live, now)
        else:
            self._end(live, over, now)

    def carry_out(self, key: int, effect: ev.SessionEffect, now: float) -> bool:
        """Carry out what the core says to a session, unless that is over here; return whether it ended by that."""
        live = self._sessions.get(key)
        if live is None:
            return False
        match effect:
            case ev.Drafted() | ev.Nacked():
                live.bytes_sent += self._out.send(live.id, effect)
            case ev.Learned():
                if new := live.learned(effect):
                    self._counts.round(min(effect.accepted, new), new, now)
                    self.meter.heard(key, new, max(self.load.sessions, len(self._sessions)) - 1, now)
            case ev.Aside(what=RoundTold() | LogprobsTold() as told):
                live.add(told)
            case ev.Aside(what=Over() | SpecmeshError() as why):
                self._ended(live, why, now)
                return True
            case ev.Aside():
                raise AssertionError(f"{effect.what} was not put aside here")
            case Grammar():
                self._out.compile(effect, key)
            case ev.Noted(name, fields, level):
                self._note(name, level, session=live.id, **fields)
            case _:
                assert_never(effect)
        return False

    def drafted(self, key: int, count: int, seconds: float) -> None:
        """Note how many drafts a session has got."""
        live = self._sessions.get(key)
        if live is not None:
            live.drafted, live.draft_seconds = count, seconds

    def _end(self, live: ClientSession, why: Over | SpecmeshError, now: float) -> None:
        """End a session once all is learned that it was told before."""
        live.verifier = self.known
        del self.live[live.id]
        self._out.tell(ev.Aside(live.key, why), now)
        self._out.tell(ev.Dropped(live.key), now)

    def _ended(self, live: ClientSession, why: Over | SpecmeshError, now: float) -> None:
        if isinstance(why, SpecmeshError):
            self._interrupt(live, why, now)
        elif why.reason == "shutdown":
            self._interrupt(live, DaemonUnreachable("the verifier is stopping: the text ends here"), now)
        elif live.n_truth < why.length:
            lost = RemoteProtocolError("the end of the text was lost on its way from the verifier: ask again")
            self._interrupt(live, lost, now, again=True)
        else:
            self._close(live)
            self._note("session_finished", session=live.id, reason=why.reason, drafted=live.drafted)
            if why.reason == "error":
                live.failed(live.broken or EngineError("the verifier's engine failed: see its log"))
            live.done(why.reason, why.report)
            self._forget(live, now)

    def _interrupt(self, live: ClientSession, error: SpecmeshError, now: float, *, again: bool = False) -> None:
        pending = live.interrupted()
        self._forget(live, now)
        if pending is not None:
            self._note("session_interrupted", session=live.id, generated=len(pending.request.generated))
            began = live.verifier if pending.started or pending.request.generated else None
            self.returned.append(ReturnedRequest(replace(pending, home=self._address, began=began), error, again=again))

    def _taken_over(self, live: ClientSession, now: float) -> None:
        live.failed(RequestError("somebody else has asked for this text by its name"))
        self._forget(live, now)

    def _close(self, live: ClientSession) -> None:
        self._out.close(live.id, live.drafted, live.draft_seconds)

    def _forget(self, live: ClientSession, now: float) -> None:
        self.meter.ended(live.key)
        del self._sessions[live.key]
        if self.live.get(live.id) is live:
            del self.live[live.id]
            self._out.tell(ev.Dropped(live.key), now)

    def interrupt(self, error: SpecmeshError, now: float) -> None:
        for live in list(self.live.values()):
            self._end(live, error, now)
        asked, self.asked = self.asked, {}
        for pending in asked.values():
            home = pending.home if pending.began else self._address
            self.returned.append(ReturnedRequest(replace(pending, home=home), error))

    def stop(self, error: SpecmeshError) -> None:
        """This drafter ends: its verifier keeps the texts for a while."""
        for pending in self.asked.values():
            pending.fail(error)
        self.asked.clear()
        for live in self._sessions.values():
            live.failed(error)

    def _note(self, event: str, level: str = "info", /, **fields: object) -> None:
        self._out.note(ev.Noted(event, fields, level))
