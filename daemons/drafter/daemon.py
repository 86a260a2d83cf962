"""The drafter's loop: frames and orders in, frames and clients' events out; the draft model has a thread of its own."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import assert_never

import structlog

from specmesh.api.requests import AskStats, Cancel, ClientOrder, Failed, ModelInfo, Peer, PingPeers, Submit, refuse
from specmesh.core import events as ev
from specmesh.core.drafter import DrafterCore, DraftLimits
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.snapshot import DrafterSnapshot, ReuseSection
from specmesh.core.vocabulary.match import LEAST_OVERLAP
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter.draft_sessions import DrafterStats
from specmesh.daemons.drafter.request_router import RequestRouter
from specmesh.daemons.drafter.upstream import Upstream
from specmesh.daemons.link.transport import Route, Traffic, wait_for_any
from specmesh.daemons.link.vocabulary_handshake import VocabularyCache, VocabularyHandshake
from specmesh.daemons.runtime.engine_loop import EngineLoop, ModelThread
from specmesh.daemons.runtime.mailbox import Mailbox
from specmesh.daemons.runtime.request_queue import MAX_QUEUE
from specmesh.daemons.runtime.shared_cores import SharedCores
from specmesh.engines.base import Ask, CpuEngine, DraftEngine, predict_all
from specmesh.errors import (
    ConfigError,
    DaemonUnreachable,
    NoSuchModel,
    RemoteProtocolError,
    SpecmeshError,
    Starting,
    WentAway,
)
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")

CONNECTING = 1.0  # seconds after the start in which the verifier counts as not found yet
LONGEST_STEP = 180.0  # seconds of a step after which the loop, which turns on, no longer counts as getting on
CLOSING = 2.0  # seconds that a step may take after the end

_FETCHING = "the vocabulary is still being fetched from the verifier: try again in a moment"


class DraftModel:
    """Takes steps on the engine's thread. speaking: the engine as each verifier's ids have it."""

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine
        self.speaking: dict[int, DraftEngine] = {}

    def step(self, step: ev.DraftStep) -> ev.Guesses:
        if step.threads is not None and isinstance(self._engine, CpuEngine):
            self._engine.use_threads(step.threads)
        held, asks = dict[int, int](), list[Ask]()
        for cut in step.cuts:
            held[cut.seq] = self._engine.trim(cut.seq, cut.length)
        for row in step.rows:
            if held.get(row.seq, row.position) == row.position:
                asks.append(Ask(row.seq, row.ids, row.sampler))
        tokens = predict_all(self.speaking[step.upstream], asks) if asks else []
        if len(asks) < len(step.rows):
            guessed = {ask.seq: token for ask, token in zip(asks, tokens, strict=True)}
            tokens = [guessed.get(row.seq) for row in step.rows]
        return ev.Guesses(held, tokens)


class DrafterLoop:
    """A drafter of the verifiers at `routes`, the preferred first.

    Sockets and clients belong to the thread that calls `run`; the core and the draft model to `thread`.

    least_overlap: share of tokens that must have a counterpart in a verifier's vocabulary. temperature: of drafts for
    sampled texts; None for the text's own. drain: seconds for the texts of its own clients after `stop`. max_queue: see
    `RequestRouter`.
    """

    def __init__(
        self,
        name: str,
        routes: Sequence[Route],
        engine: DraftEngine,
        mailbox: Mailbox[ClientOrder],
        least_overlap: float = LEAST_OVERLAP,
        cache: VocabularyCache | None = None,
        temperature: float | None = None,
        drain: float = 10.0,
        max_queue: int = MAX_QUEUE,
        *,
        explicit_threads: bool = False,
        thread: ModelThread | None = None,
    ) -> None:
        self._engine, self._mailbox = engine, mailbox
        self._cores = SharedCores(engine, drafts=True, explicit=explicit_threads)
        self._thread = thread or ModelThread()
        self._begun, self._due = time.monotonic(), 0.0
        self._stopping: float | None = None
        self._drain, self._incoming = drain, True
        self._traffic = Traffic()
        self.stats = DrafterStats(self._begun)
        info = engine.info
        room = info.n_ctx * (info.n_seq if info.reuse == "copied" else 1)
        # With several verifiers nothing is kept: the same ids may mean other tokens.
        slots = KVSlots(info.n_seq, "whole" if info.reuse == "whole" else "cut", room if len(routes) == 1 else 0)
        core = DrafterCore(DraftLimits(info.n_ctx, info.n_batch, info.batches), slots, temperature)
        self._model = DraftModel(engine)
        self._outbox = deque[ev.CoreEffect]()
        self._crash: BaseException | None = None
        self._loop = EngineLoop(core, self._model.step, None, self._deliver, self._crashed, self._thread)
        self._upstreams = tuple(
            Upstream(
                name,
                route,
                (number, len(routes)),
                VocabularyHandshake(engine, route.address, least_overlap, cache, mailbox.wake, self._cores),
                self.stats,
                self._traffic,
                self._model.speaking,
                self._loop,
            )
            for number, route in enumerate(routes)
        )
        self._router = RequestRouter(self._upstreams, max_queue)
        self._active = list(self._upstreams)

    @property
    def progress(self) -> int:
        """What changes while the loop gets on, and no step is endless."""
        return self.stats.turns

    @property
    def verifier(self) -> m.Welcome | None:
        """WELCOME of the first verifier that is there."""
        return self._first.welcome

    @property
    def trouble(self) -> str:
        return "; ".join(one.trouble for one in self._upstreams)

    @property
    def refusal(self) -> str | None:
        """Why every verifier, or our own keys, keep this drafter out."""
        refusals = [one.refusal for one in self._upstreams]
        return "; ".join(why for why in refusals if why) if all(refusals) else None

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Vocabulary of the default model, once it is known and fits."""
        found = (served.vocabulary for one in self._upstreams if (served := one.served) is not None)
        return next(found, None)

    def not_ready(self) -> SpecmeshError | None:
        if self.verifier is None:
            if self.refusal is None and time.monotonic() < self._begun + CONNECTING:
                addresses = ", ".join(one.address for one in self._upstreams)
                return Starting(f"the drafter is connecting to {addresses}: try again in a moment")
            return DaemonUnreachable(self.trouble)
        return Starting(_FETCHING) if self.vocabulary is None else None

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.welcome.model for one in self._upstreams if one.welcome is not None))

    def served(self, name: str) -> ModelInfo:
        found = [served for one in self._upstreams if (served := one.served) is not None]
        if not found:
            raise DaemonUnreachable(self.trouble)
        if len(self._upstreams) == 1:
            return replace(found[0], target="")
        for served in found:
            if name in ("", served.model):
                return served
        if name in self.models:
            raise Starting(_FETCHING)
        away = [one.trouble for one in self._upstreams if one.last_model == name]
        raise DaemonUnreachable("; ".join(away)) if away else NoSuchModel(name)

    def stop(self) -> None:
        """Refuse new requests and end after those of its own clients; safe in a signal handler."""
        if self._stopping is None:
            self._stopping = time.monotonic()
            self._due = 0.0

    def run(self) -> bool:
        """Draft until stopped; return False if a step of the draft model still runs. Raises ConfigError where no
        verifier will ever accept this drafter."""
        self._loop.start()
        try:
            while self._stopping is None or not self._drained():
                self._turn()
        finally:
            self._mailbox.end(self._late)
            self._router.stop(_stopping())
            for one in self._upstreams:
                one.stop(_stopping())
            idle = self._loop.close(CLOSING)
        return idle

    def _late(self, order: ClientOrder) -> None:
        refuse(order, _stopping())
        if isinstance(order, AskStats):
            order.tell(self.snapshot(time.monotonic()))

    def _turn(self) -> None:
        if self._crash is not None:
            raise self._crash
        since = self._loop.step_since
        if since is None or time.monotonic() - since < LONGEST_STEP:
            self.stats.turns += 1
        if self._incoming or time.monotonic() >= self._due:
            self._each(self._receive)
        if self._outbox:
            self._carry_out()
        for order in self._mailbox.drain():
            self._due = 0.0
            self._order(order)
        now = time.monotonic()
        if now >= self._due:
            self._tick(now)
        inlets = [one.dealer.inlet for one in self._active]
        self._incoming = wait_for_any(inlets, self._mailbox, max(self._due - now, 0.0))

    def _receive(self, one: Upstream) -> None:
        if one.receive():
            self._due = 0.0

    def _carry_out(self) -> None:
        """Carry out what the core has said; each session's key tells its verifier."""
        while self._outbox:
            match self._outbox.popleft():
                case (key, effect):
                    if self._upstreams[key % len(self._upstreams)].sessions.carry_out(key, effect):
                        self._due = 0.0
                case ev.Worked() as work:
                    self.stats.worked(work)
                    for key, drafted in work.sessions.items():
                        self._upstreams[key % len(self._upstreams)].sessions.drafted(key, *drafted)
                case ReuseSection() as reuse:
                    self.stats.reuse = reuse
                case ev.Noted(name, fields, level):
                    getattr(log, level)(name, **fields)
                case odd:
                    assert_never(odd)

    def _deliver(self, effects: list[ev.CoreEffect]) -> None:
        self._outbox.extend(effects)
        self._mailbox.wake()

    def _crashed(self, error: BaseException) -> None:
        self._crash = error
        self._mailbox.wake()

    def _drained(self) -> bool:
        assert self._stopping is not None, "asked only once it is to end"
        self._router.refuse(_stopping())
        texts = any(one.sessions.own for one in self._active)
        return not texts or time.monotonic() >= self._stopping + self._drain

    def _each(self, act: Callable[[Upstream], None]) -> None:
        """Call `act` for each verifier; give up an unusable one, raise its error where it was the last."""
        for one in list(self._active):
            try:
                act(one)
            except (ConfigError, RemoteProtocolError) as error:
                if len(self._active) == 1:
                    raise
                log.error("verifier_given_up", connect=one.address, error=str(error))
                self._active.remove(one)
                one.leave(error)

    def close(self) -> None:
        """Free the model, on its thread, and the connections."""
        freed = self._thread.do(self._engine.close)
        self._thread.end()
        wait([freed], CLOSING if self._loop.step_since is None else 0.0)
        for one in self._active:
            one.dealer.close()

    def _tick(self, now: float) -> None:
        """Do what is due, and find out when that is again."""
        self._each(lambda one: one.tick(now))
        for one in self._upstreams:
            if one.sessions.returned:
                self._router.take_back(one, now)
        self._router.expire(now)
        self._router.reopen(now)
        threads = self._cores.beside(one.welcome for one in self._upstreams if one.welcome is not None)
        if threads is not None:
            self._loop.put(ev.UseThreads(threads), now)
        due = [one.next_due() for one in self._active]
        due += [self._stopping + self._drain] if self._stopping is not None else []
        self._due = min([*due, self._router.next_due(now) or due[0]])

    def _order(self, order: ClientOrder) -> None:
        match order:
            case Submit() if self._stopping is not None:
                refuse(order, _stopping())
            case Submit(request, client):
                if self._first.welcome is None:
                    client.on_event(Failed(DaemonUnreachable(self.trouble)))
                else:
                    self._router.ask(request, client, time.monotonic())
            case Cancel(client):
                self._router.cancel_of(client)
            case PingPeers():
                there = [(one, Peer(one.welcome.verifier, one.address)) for one in self._upstreams if one.welcome]
                order.sent(peer for _, peer in there)
                for one, peer in there:
                    one.probe(order, peer, time.monotonic())
            case AskStats(tell):
                tell(self.snapshot(time.monotonic()))
            case _:
                assert_never(order)

    @property
    def _first(self) -> Upstream:
        """The first verifier that is there, else the first that was not given up."""
        there = (one for one in self._upstreams if one.welcome is not None)
        return next(there, None) or next(one for one in self._upstreams if one.given_up is None)

    def snapshot(self, now: float) -> DrafterSnapshot:
        first = self._first
        return self.stats.snapshot(
            self._engine.info,
            first.welcome,
            first.introduction.comparison,
            first.link,
            [live.draft_n for one in self._upstreams for live in one.sessions.live.values()],
            self._traffic,
            now,
            len(self._router.retries),
            address=first.address,
            encrypted=first.dealer.encrypted,
            refusal=first.refusal,
            verifiers=[one.describe(now) for one in self._upstreams],
        )


def _stopping() -> WentAway:
    return WentAway("the drafter is stopping")
