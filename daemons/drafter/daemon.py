"""The drafter's I/O: frames and requests become events of its core, what the core says becomes frames and answers."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import assert_never

import structlog

from specmesh.api.requests import AskStats, Cancel, ClientOrder, Failed, ModelInfo, Peer, PingPeers, Submit
from specmesh.core import events as ev
from specmesh.core.admission import MAX_QUEUE
from specmesh.core.drafter import DrafterCore, DraftLimits
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.snapshot import DrafterSnapshot, ReuseSection
from specmesh.core.vocabulary.match import LEAST_OVERLAP
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter.draft_sessions import CoreLoop, DrafterStats
from specmesh.daemons.drafter.request_router import RequestRouter
from specmesh.daemons.drafter.upstream import Upstream
from specmesh.daemons.link.transport import Route, Traffic
from specmesh.daemons.link.vocabulary_handshake import VocabularyCache, VocabularyHandshake
from specmesh.daemons.runtime.loops import (
    FLUSH_INTERVAL,
    LOOK_INTERVAL,
    CoreSays,
    Crashed,
    DaemonLoop,
    Mailbox,
    ModelThread,
)
from specmesh.daemons.runtime.shared_cores import SharedCores
from specmesh.engines.base import Ask, CpuEngine, DraftEngine
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
        tokens = self.speaking[step.upstream].predict(asks) if asks else []
        if len(asks) < len(step.rows):
            guessed = {ask.seq: token for ask, token in zip(asks, tokens, strict=True)}
            tokens = [guessed.get(row.seq) for row in step.rows]
        return ev.Guesses(held, tokens)


DraftOrder = ClientOrder | CoreSays[ev.CoreEffect] | Crashed


class DrafterLoop(DaemonLoop[DraftOrder]):
    """A drafter of the verifiers at `routes`, the preferred first. Its core and the draft model run on `thread`.

    least_overlap: share of tokens that must have a counterpart in a verifier's vocabulary. temperature: of drafts for
    sampled texts; None for the text's own. max_queue: see `RequestRouter`.
    """

    def __init__(
        self,
        name: str,
        routes: Sequence[Route],
        engine: DraftEngine,
        mailbox: Mailbox[DraftOrder],
        least_overlap: float = LEAST_OVERLAP,
        cache: VocabularyCache | None = None,
        temperature: float | None = None,
        drain: float = 10.0,
        max_queue: int = MAX_QUEUE,
        *,
        explicit_threads: bool = False,
        thread: ModelThread | None = None,
    ) -> None:
        super().__init__(mailbox, drain, WentAway("the drafter is stopping"))
        self._engine = engine
        self._cores = SharedCores(engine, drafts=True, explicit=explicit_threads)
        self._thread = thread or ModelThread()
        self._begun = time.monotonic()
        self._traffic = Traffic()
        self.stats = DrafterStats(self._begun)
        info = engine.info
        room = info.n_ctx * (info.n_seq if info.reuse == "copied" else 1)
        # With several verifiers nothing is kept: the same ids may mean other tokens.
        slots = KVSlots(info.n_seq, "whole" if info.reuse == "whole" else "cut", room if len(routes) == 1 else 0)
        core = DrafterCore(DraftLimits(info.n_ctx, info.n_batch, info.batches), slots, temperature)
        self._model = DraftModel(engine)
        self._core = CoreLoop(core, self._model.step, None, mailbox.put, self._thread)
        self._upstreams = tuple(
            Upstream(
                name,
                route,
                (number, len(routes)),
                VocabularyHandshake(engine, route.address, least_overlap, cache, mailbox.wake, self._cores),
                self.stats,
                self._traffic,
                self._model.speaking,
                self._core,
                lambda: self.progress,
            )
            for number, route in enumerate(routes)
        )
        self._router = RequestRouter(self._upstreams, max_queue)
        self._active = list(self._upstreams)
        self._welcomes: list[m.Welcome] = []  # that the threads follow

    @property
    def verifier(self) -> m.Welcome | None:
        """WELCOME of the first verifier that is there."""
        return self._first.welcome

    @property
    def trouble(self) -> str:
        return "; ".join(one.trouble for one in self._upstreams)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Vocabulary of the default model, once it is known and fits."""
        found = (served.vocabulary for one in self._upstreams if (served := one.served) is not None)
        return next(found, None)

    def not_ready(self) -> SpecmeshError | None:
        if self.verifier is None:
            refused = all(one.refusal for one in self._upstreams)
            if not refused and time.monotonic() < self._begun + CONNECTING:
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
        away = [one.trouble for one in self._upstreams if one.sessions.known and one.sessions.known.model == name]
        raise DaemonUnreachable("; ".join(away)) if away else NoSuchModel(name)

    # --- the loop

    def _begin(self) -> None:
        self._core.start()
        for one in self._upstreams:
            one.dealer.listen(partial(self._turn, partial(self._receive, one)))

    def _settle(self) -> None:
        for one in self._active:
            one.dealer.inlet.check()

    def _receive(self, one: Upstream) -> None:
        self._due |= self._attempt(one, one.receive)

    def _take(self, order: DraftOrder, now: float) -> None:
        match order:
            case CoreSays(effects):
                self._carry_out(effects)
                return
            case Crashed(error):
                raise error
            case Submit(request, client) if self._stopping is None:
                if self._first.welcome is None:
                    client.on_event(Failed(DaemonUnreachable(self.trouble)))
                else:
                    self._router.ask(request, client, now)
            case Submit(_, client):
                client.on_event(Failed(self._refusal))
            case Cancel(client):
                self._router.cancel_of(client)
            case PingPeers():
                there = [(one, Peer(one.welcome.verifier, one.address)) for one in self._upstreams if one.welcome]
                order.sent(peer for _, peer in there)
                for one, peer in there:
                    one.probe(order, peer, now)
            case AskStats(tell):
                tell(self.snapshot(now))
            case _:
                assert_never(order)
        self._due = True

    def _carry_out(self, effects: list[ev.CoreEffect]) -> None:
        """Carry out what the core says; each session's key tells its verifier."""
        for effect in effects:
            match effect:
                case (key, what):
                    self._due |= self._upstreams[key % len(self._upstreams)].sessions.carry_out(key, what)
                case ev.Worked():
                    self.stats.worked(effect)
                    for key, drafted in effect.sessions.items():
                        self._upstreams[key % len(self._upstreams)].sessions.drafted(key, *drafted)
                case ReuseSection():
                    self.stats.reuse = effect
                case ev.Noted(name, fields, level):
                    getattr(log, level)(name, **fields)
                case _:
                    assert_never(effect)

    def _tick(self, now: float) -> float:
        self.progress += not self._core.stuck
        for one in list(self._active):
            self._attempt(one, partial(one.tick, now))
        self._router.look(now)
        welcomes = [one.welcome for one in self._upstreams if one.welcome is not None]
        if welcomes != self._welcomes:
            self._welcomes = welcomes
            if (threads := self._cores.beside(welcomes)) is not None:
                self._core.put(ev.UseThreads(threads), now)
        return FLUSH_INTERVAL if any(one.dealer.behind for one in self._active) else LOOK_INTERVAL

    def _drained(self, now: float) -> bool:
        assert self._stopping is not None, "asked only once it is to end"
        self._router.refuse(self._refusal)
        return not any(one.sessions.own for one in self._active) or now >= self._stopping + self._drain

    def _leave(self) -> None:
        self._router.stop(self._refusal)
        for one in self._upstreams:
            one.stop(self._refusal)

    def _close(self) -> bool:
        """Free the model too, on its thread, where it is idle."""
        idle = self._core.close(CLOSING)
        freed = self._thread.do(self._engine.close)
        self._thread.end()
        wait([freed], CLOSING if idle else 0.0)
        return idle

    def _attempt(self, one: Upstream, act: Callable[[], bool]) -> bool:
        """Let a verifier act; give up an unusable one, and raise its error where it was the last."""
        try:
            return act()
        except (ConfigError, RemoteProtocolError) as error:
            if len(self._active) == 1:
                raise
            log.error("verifier_given_up", connect=one.address, error=str(error))
            self._active.remove(one)
            one.leave(error)
            return True

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
            len(self._router.retries.waiting),
            address=first.address,
            encrypted=first.dealer.encrypted,
            refusal=first.refusal,
            verifiers=[one.describe(now) for one in self._upstreams],
        )
