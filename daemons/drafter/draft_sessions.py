"""The sessions with one verifier: frames become events of the core, its effects frames and what clients are sent."""

import itertools
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog

from specmesh.api.requests import EventSink, Failed
from specmesh.core import events as ev
from specmesh.core import snapshot as told
from specmesh.core.drafting.verifier_choice import PaceMeter, ReportedLoad
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.statistics import SHORT, Histogram, RecentSamples, milliseconds
from specmesh.core.vocabulary.match import VocabularyMatch
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter.client_session import ClientSession, PendingRequest, ReturnedRequest
from specmesh.daemons.link.dealer import Dealer
from specmesh.daemons.link.frames import frame_of, from_verifier, grammar_of, params_of
from specmesh.daemons.link.peers import U32, Link
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.runtime.loops import EngineLoop
from specmesh.daemons.verifier.statistics import DaemonStats, model_of
from specmesh.engines.base import EngineInfo
from specmesh.engines.grammar import Grammars
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

MAX_UNHEARD = 8 * 2**20  # bytes of frames that wait for a core in a step; those beyond are lost, as on a wire


class DrafterStats(DaemonStats):
    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.reuse = told.ReuseSection(0, 0)
        self.draft_seconds = RecentSamples()
        self.drafts = Histogram(SHORT)
        self.totals = told.DraftTotals()

    def worked(self, work: ev.Worked) -> None:
        """Count steps and their drafts, which share their time."""
        self.minute.record(work.ended, drafted=work.drafts, busy=work.seconds)
        if work.drafts:
            self.totals.drafted += work.drafts
            self.draft_seconds.record(work.draft_seconds / work.drafts)
            self.drafts.record(work.draft_seconds / work.drafts, work.drafts)

    def round(self, accepted: int, committed: int, now: float) -> None:
        """Count a TRUTH that had news."""
        self.minute.record(now, accepted=accepted, generated=committed)
        self.totals.rounds += 1
        self.totals.accepted += accepted
        self.totals.committed += committed

    def snapshot(
        self,
        info: EngineInfo,
        welcome: m.Welcome | None,
        match: VocabularyMatch | None,
        link: Link,
        asked: Sequence[int],
        traffic: Traffic,
        now: float,
        interrupted: int = 0,
        **others: Any,
    ) -> told.DrafterSnapshot:
        """Return `specmesh stats --json`; asked: draft_n of each session, the newest last; interrupted: requests that
        wait for a verifier; others: fields that are known elsewhere."""
        named = None if welcome is None else {"name": welcome.verifier, "model": welcome.model, "stuck": link.stuck}
        return told.DrafterSnapshot(
            **self.common(traffic, self.totals.accepted, now),
            **others,
            role="drafter",
            model=model_of(info),
            verifier=named,
            vocabulary={"verdict": str(match.verdict), "overlap": round(match.overlap, 4)} if match else None,
            sessions=told.SessionsSection(
                opened=self.opened, resumed=self.resumed, max=info.n_seq, live=len(asked), interrupted=interrupted
            ),
            draft_n=asked[-1] if asked else None,
            totals=replace(self.totals),
            histograms=told.HistogramsSection(round_trip_s=self.round_trips.snapshot(), draft_s=self.drafts.snapshot()),
            draft_ms=milliseconds(self.draft_seconds.percentile(0.5)),
            busy={"drafter": round(self.minute.busy(now), 3), "verifier": round(link.busy, 3)},
            round_trip_ms=link.round_trip_ms(),
            handshake_failures=dict(traffic.refused),
            wire=traffic.snapshot(),
            reuse=self.reuse,
        )


CoreLoop = EngineLoop[ev.CoreEvent, ev.CoreEffect, ev.DraftStep, ev.Guesses]


class DraftSessions:
    """All sessions with the verifier at `address`: `live` by its ids, `asked` by ref those not opened yet.

    place: its number among so many; a session's key in the core is that number modulo so many. known: the newest
    WELCOME, also once the verifier is gone. load: its newest. vocabulary: that drafts are made in. returned: requests
    that are not this verifier's any more.
    """

    def __init__(
        self, address: str, place: tuple[int, int], dealer: Dealer, stats: DrafterStats, core: CoreLoop
    ) -> None:
        self.live: dict[int, ClientSession] = {}
        self.asked: dict[int, PendingRequest] = {}
        self.returned = deque[ReturnedRequest]()
        self.known: m.Welcome | None = None
        self.load, self.meter = ReportedLoad(), PaceMeter()
        self.vocabulary: Vocabulary | None = None
        self._address, self._number, self._dealer, self._stats, self._tell = address, place[0], dealer, stats, core.put
        self._core, self._unheard = core, 0
        self._keys, self._refs = itertools.count(*place), itertools.count(1)
        self._sessions: dict[int, ClientSession] = {}  # by key; also those that are ending
        self._grammars = DraftGrammars(core)

    @property
    def own(self) -> int:
        """Number of requests of clients here that the verifier has, or was asked for."""
        return len(self.asked) + sum(live.pending is not None for live in self._sessions.values())

    def heard(self, message: m.Truth | m.Sync | m.Nack, size: int, now: float) -> None:
        live = self.live.get(message.session)
        if live is None or not self._room(size):
            return
        live.bytes_received += size
        if not isinstance(message, m.Nack):
            live.draft_n = message.draft_n
        self._tell(ev.Heard(live.key, from_verifier(message)), now)

    def _room(self, size: int) -> bool:
        """Return False for a frame that the core cannot be kept: it has been in a step for too many of them."""
        self._unheard = self._unheard + size if self._core.behind else size
        if self._unheard <= MAX_UNHEARD:
            return True
        self._dealer.traffic.rejected["backlog"] += 1
        return False

    def ask(self, pending: PendingRequest) -> SpecmeshError | None:
        """Ask the verifier, which is there, for a session; return why it cannot be."""
        ref = next(self._refs) & U32
        try:
            sent = self._dealer.send(pending.open(ref))
        except ValueError as error:
            return RequestError(f"the request does not fit the wire: {error}")
        if not sent:
            return Busy(f"the verifier at {self._address} takes no requests now: try again")
        self.asked[ref] = pending
        return None

    def take_over(self, name: str) -> bool:
        """End the sessions of this name, which another client resumes; return False where there are none."""
        had = [live for live in self.live.values() if live.pending and live.pending.request.id == name]
        for live in had:
            self._taken_over(live)
        return bool(had)

    def cancel_of(self, client: EventSink) -> None:
        for ref in [ref for ref, pending in self.asked.items() if pending.client is client]:
            del self.asked[ref]
            self._dealer.send(m.Close(0, 0, 0.0, ref))
        for live in list(self._sessions.values()):
            if live.pending is not None and live.pending.client is client:
                self._close(live)
                live.cancelled()
                self._forget(live)

    def request_failed(self, message: m.Error) -> bool:
        """Handle an ERROR about a request, or a session that DONE ends next; return False where it is about neither."""
        pending, error = self.asked.pop(message.ref, None), error_of(message)
        if pending is not None:
            self.returned.append(ReturnedRequest(pending, error, refused=True))
            if isinstance(error, Busy):
                self._recall(message.ref, error)
        broken = [live for live in self.live.values() if live.ref == message.ref]
        for live in broken:
            live.broken = error
        return pending is not None or bool(broken)

    def _recall(self, ref: int, error: Busy) -> None:
        """Take back what was asked for later: it would overtake the request that there was no room for."""
        for later in [one for one in self.asked if one > ref]:
            self._dealer.send(m.Close(0, 0, 0.0, later))
            self.returned.append(ReturnedRequest(self.asked.pop(later), error, refused=True))

    def opened(self, message: m.Opened, now: float) -> None:
        pending = self.asked.pop(message.ref, None) if message.ref else None
        if message.ref and pending is None:
            self._dealer.send(m.Close(message.session, 0, 0.0))  # its client left before it was opened
            return
        if message.session in self.live:
            self._taken_over(self.live[message.session])
        end_ids, n_vocab = (self.known.eog_ids, self.known.n_vocab) if self.known is not None else ((), 0)
        named = dict[str, str]()
        if pending is not None:
            named = {"request": pending.request.label}
            self._stats.resumed += pending.resumes
            pending = pending.opened(message)
        live = ClientSession(message.session, next(self._keys), message.prompt_tokens, end_ids, pending, message.ref)
        self.live[live.id] = self._sessions[live.key] = live
        params, grammar, cached = params_of(message), grammar_of(message), message.cache_prompt
        place = live.key, self._number, n_vocab, live.n_prompt
        self._tell(ev.DraftFor(*place, params, end_ids, grammar, cached), now)
        self._stats.opened += 1
        log.info("session_opened", session=live.id, prompt_tokens=live.n_prompt, **named)

    def add(self, message: m.Round | m.Logprobs, size: int) -> None:
        """Pass on what belongs to committed ids, unless it names an id that is none."""
        live, n_vocab = self.live.get(message.session), self.known.n_vocab if self.known else 0
        known = live is not None and all(token < n_vocab for token in getattr(message, "top_ids", ()))
        if live is not None and known and self._room(size):
            self._tell(ev.Aside(live.key, message), time.monotonic())

    def done(self, message: m.Done) -> None:
        live = self.live.get(message.session)
        if live is None:
            return  # closed from this side
        if message.finish_reason == "moved":
            self._taken_over(live)
            return
        self._end(live, message)

    def _end(self, live: ClientSession, why: m.Done | SpecmeshError) -> None:
        """End a session once all is learned that it was told before."""
        live.verifier = self.known
        del self.live[live.id]
        self._tell(ev.Aside(live.key, why), now := time.monotonic())
        self._tell(ev.Dropped(live.key), now)

    def carry_out(self, key: int, effect: ev.SessionEffect) -> bool:
        """Carry out what the core says to a session, unless that is over here; return whether it ended by that."""
        live = self._sessions.get(key)
        if live is None:
            return False
        match effect:
            case ev.Learned():
                self._learned(live, effect)
            case ev.Aside(what=m.Round() | m.Logprobs() as message):
                live.add(message)
            case ev.Aside(what=m.Done() | SpecmeshError() as why):
                self._ended(live, why)
                return True
            case Grammar():
                self._grammars.compile(self.vocabulary, effect, key)
            case ev.Noted(name, fields, level):
                getattr(log, level)(name, session=live.id, **fields)
            case ev.Aside():
                raise AssertionError(f"{effect.what} was not put aside here")
            case _:
                live.bytes_sent += self._dealer.send(frame_of(live.id, effect))
        return False

    def drafted(self, key: int, count: int, seconds: float) -> None:
        """Note how many drafts a session has got."""
        live = self._sessions.get(key)
        if live is not None:
            live.drafted, live.draft_seconds = count, seconds

    def _learned(self, live: ClientSession, news: ev.Learned) -> None:
        new = live.learned(news)
        if new:
            now = time.monotonic()
            self._stats.round(min(news.accepted, new), new, now)
            self.meter.heard(live.key, new, max(self.load.sessions, len(self._sessions)) - 1, now)

    def _ended(self, live: ClientSession, message: m.Done | SpecmeshError) -> None:
        if isinstance(message, SpecmeshError):
            self._interrupt(live, message)
        elif message.finish_reason == "shutdown":
            self._interrupt(live, DaemonUnreachable("the verifier is stopping: the text ends here"))
        elif live.n_truth < message.length:
            lost = RemoteProtocolError("the end of the text was lost on its way from the verifier: ask again")
            self._interrupt(live, lost, again=True)
        else:
            self._close(live)
            log.info("session_finished", session=live.id, reason=message.finish_reason, drafted=live.drafted)
            if message.finish_reason == "error":
                live.failed(live.broken or EngineError("the verifier's engine failed: see its log"))
            live.done(message)
            self._forget(live)

    def _close(self, live: ClientSession) -> None:
        self._dealer.send(m.Close(live.id, live.drafted, live.draft_seconds))

    def _taken_over(self, live: ClientSession) -> None:
        live.failed(RequestError("somebody else has asked for this text by its name"))
        self._forget(live)

    def _forget(self, live: ClientSession) -> None:
        self.meter.ended(live.key)
        del self._sessions[live.key]
        if self.live.get(live.id) is live:
            del self.live[live.id]
            self._tell(ev.Dropped(live.key), time.monotonic())

    def _interrupt(self, live: ClientSession, error: SpecmeshError, *, again: bool = False) -> None:
        pending = live.interrupted()
        self._forget(live)
        if pending is not None:
            log.info("session_interrupted", session=live.id, generated=len(pending.request.generated))
            began = live.verifier if pending.started or pending.request.generated else None
            self.returned.append(ReturnedRequest(replace(pending, home=self._address, began=began), error, again=again))

    def interrupt(self, error: SpecmeshError) -> None:
        for live in list(self.live.values()):
            self._end(live, error)
        asked, self.asked = list(self.asked.values()), {}
        for pending in asked:
            home = pending.home if pending.began else self._address
            self.returned.append(ReturnedRequest(replace(pending, home=home), error))

    def stop(self, error: SpecmeshError) -> None:
        """This drafter ends: its verifier keeps the texts for a while."""
        for pending in self.asked.values():
            pending.client.on_event(Failed(error))
        self.asked.clear()
        for live in self._sessions.values():
            live.failed(error)
        self._grammars.close()


class DraftGrammars:
    """Compiles grammars on a thread of its own: neither frames nor drafts wait for them."""

    def __init__(self, core: CoreLoop) -> None:
        self._core = core
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._grammars: tuple[Vocabulary, Grammars] | None = None

    def compile(self, vocabulary: Vocabulary | None, grammar: Grammar, key: int) -> None:
        """Tell the core of a session's grammar once it is compiled; an engine that knows ids only needs none."""
        if vocabulary is not None:
            self._pool.submit(self._compile, vocabulary, grammar, key)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars[1].close()

    def _compile(self, vocabulary: Vocabulary, grammar: Grammar, key: int) -> None:
        try:
            if self._grammars is None or self._grammars[0] is not vocabulary:
                if self._grammars is not None:
                    self._grammars[1].close()
                self._grammars = vocabulary, Grammars(vocabulary)
            compiled = self._grammars[1].compile(grammar)
        except Exception as error:  # noqa: BLE001  (whatever it is, drafts go on without)
            log.warning("grammar_unknown", session=key, error=str(error), meaning="its drafts go without")
        else:
            self._core.put(ev.CompiledGrammar(key, compiled), time.monotonic())


def error_of(message: m.Error) -> SpecmeshError:
    match message.code:
        case "engine":
            return EngineError(f"the verifier's engine failed: {message.message}")
        case "busy":
            return Busy(message.message)
        case "session":
            return NoSuchText(message.message)
        case "context":
            return PromptTooLong(message.message, message.param or None)
        case _:
            return RequestError(message.message, message.param or None)
