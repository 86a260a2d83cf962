"""The drafter's I/O: frames and requests become events of its core, effects frames and answers."""

import time
from collections.abc import Sequence
from functools import partial
from typing import assert_never

from specmesh.api.backend import (
    AskStats,
    Cancel,
    ClientOrder,
    ModelInfo,
    PauseClient,
    Peer,
    PingPeers,
    Submit,
)
from specmesh.config import DrafterSettings
from specmesh.core import events as ev
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.pending_request import RequestState
from specmesh.core.drafter.placement import PlacementEffect
from specmesh.core.drafter.request_router import RequestRouter
from specmesh.core.drafter.router_events import (
    AtUpstream,
    DrafterStops,
    PlacingDue,
    ReaderLeft,
    ReaderPaused,
    RouterEvent,
    TextsWanted,
)
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.drafter.window import WINDOW_IDS, Windows
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.kv_reuse import KVReuse
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Failed, Reply, target_of
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.statistics.snapshot import DrafterSnapshot, WireSection
from specmesh.core.text.chat import Tokenizer
from specmesh.daemons.drafter.upstream_link import CoreLoop, SharedParts, UpstreamLink
from specmesh.daemons.link.dealer import Route
from specmesh.daemons.link.names import LookedUp, NameLookups
from specmesh.daemons.runtime.facts import facts, note, thread_share
from specmesh.daemons.runtime.loops import CLOSING, DaemonLoop
from specmesh.daemons.runtime.model_thread import ModelThread
from specmesh.engines.base import DraftEngine
from specmesh.engines.steps import run_draft_step
from specmesh.errors import NotOffered, WentAway
from specmesh.wire import messages as m

DraftOrder = ClientOrder | list[ev.CoreEffect] | LookedUp | BaseException


class DrafterLoop(DaemonLoop[DraftOrder]):
    """A drafter."""

    def __init__(
        self,
        name: str,
        routes: Sequence[Route],
        engine: DraftEngine,
        settings: DrafterSettings,
        thread: ModelThread | None = None,
    ) -> None:
        """Begin to connect to verifiers.

        routes: of the verifiers, the preferred first.
        thread: runs the core and the draft model.
        """
        super().__init__(settings.drain, WentAway("the drafter is stopping"))
        self._engine = engine
        explicit = settings.model.threads is not None
        self._cores = thread_share(engine, drafter=True, explicit=explicit)
        self._traffic = WireSection()
        self.stats = DrafterStats(time.monotonic())
        info = engine.info
        windows = _windows(engine, settings.model.window)
        limits = DraftLimits(windows, info.n_batch, info.capabilities.batches)
        core = DrafterCore(limits, _slots(engine, upstreams=len(routes)))
        speaking = dict[int, DraftEngine]()
        run = partial(run_draft_step, engine, speaking)
        self._core = CoreLoop(core, run, None, self.mailbox.put, thread or ModelThread())
        shared = SharedParts(
            name=name,
            engine=engine,
            cores=self._cores,
            stats=self.stats,
            traffic=self._traffic,
            speaking=speaking,
            core=self._core,
            lookups=NameLookups(self.mailbox.put),
            windows=windows,
            give_back=self._returned,
        )
        self._links = [UpstreamLink(route, number, shared) for number, route in enumerate(routes)]
        upstreams = [link.upstream for link in self._links]
        self._router = RequestRouter(upstreams, time.monotonic())
        self._verifiers: list[m.Welcome | None] = []  # at the last look

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the verifiers' models."""
        return self._router.models

    def served(self, name: str) -> ModelInfo:
        """Return the model of this name; raise SpecmeshError as `RequestRouter.serving` does."""
        info, vocabulary = self._router.serving(name, time.monotonic())
        several = len(self._links) > 1
        return ModelInfo(
            model=info.model,
            vocabulary=vocabulary,
            target=target_of(info) if several else "",
            n_ctx=info.n_ctx,
            model_hash="" if several else info.model_hash,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Raise NotOffered: only a verifier has it."""
        addresses = ", ".join([link.upstream.facts.address for link in self._links])
        owner = "the tokenizer and the chat template are the verifier's"
        raise NotOffered(f"{owner}: ask it over HTTP, not here ({addresses})")

    # --- the loop

    def _begin(self) -> None:
        self._core.start()
        for link in self._links:
            link.dealer.listen(partial(self._turn, link.receive))

    def _take(self, order: DraftOrder, now: float) -> None:
        match order:
            case list():
                for effect in order:
                    if isinstance(effect, ev.WorkReport):
                        self.stats.worked(effect)
                        continue
                    key, wanted = effect
                    self._links[key.upstream].from_core(key, wanted, now)
                return
            case LookedUp():
                for link in self._links:
                    link.looked_up(order, now)
            case BaseException():
                raise order
            case Submit(texts, tenant) if self._stopping is None:
                self._route(TextsWanted(texts, tenant), now)
            case Submit(texts):
                for _, client in texts:
                    client.on_event(Failed(self._refusal))
            case Cancel(client):
                self._route(ReaderLeft(client), now)
            case PauseClient(client, paused):
                self._route(ReaderPaused(client, paused), now)
            case PingPeers():
                self._ping(order, now)
            case AskStats(answer):
                answer(self.snapshot(now))
            case _:
                assert_never(order)
        self._due = True

    def _ping(self, order: PingPeers, now: float) -> None:
        """Ping the verifiers that are there."""
        peers = list[tuple[UpstreamLink, Peer]]()
        for link in self._links:
            peer = link.peer
            if peer is not None:
                peers.append((link, peer))
        order.sent([peer for _, peer in peers])
        for link, peer in peers:
            link.ping_for(order, peer, now)

    def _tick(self, now: float) -> None:
        if not self._core.stuck:
            self.progress += 1
        for link in self._links:
            link.tick(now)
        self._route(PlacingDue(), now)
        verifiers = [link.upstream.facts.info for link in self._links]
        if verifiers != self._verifiers:
            self._verifiers = verifiers
            self._share_cores(now)

    def _share_cores(self, now: float) -> None:
        """Take the threads that fit the verifiers that are there."""
        before = self._cores.threads
        note(self._cores.beside([info for info in self._verifiers if info is not None]))
        if self._cores.threads != before:
            self._core.put(ev.UseThreads(self._cores.threads), now)

    def _drained(self) -> bool:
        return not any(link.upstream.own for link in self._links)

    def _leave(self) -> None:
        self._route(DrafterStops(self._refusal), time.monotonic())
        for link in self._links:
            link.stop()

    def _close(self) -> bool:
        return self._core.close(CLOSING, self._engine.close)

    def _route(self, event: RouterEvent, now: float) -> None:
        """Have the router take an event about requests, and carry out what follows."""
        for effect in self._router.handle(event, now):
            match effect:
                case Reply(client, event_of_client):
                    client.on_event(event_of_client)
                case AtUpstream(number, at_upstream):
                    self._links[number].carry_out((at_upstream,), now)
                case _:
                    assert_never(effect)

    def _returned(self, effect: PlacementEffect, now: float) -> None:
        """Take what has become of a request at a verifier; it may have to be placed anew."""
        self._route(effect, now)
        self._due = True

    def snapshot(self, now: float) -> DrafterSnapshot:
        """Return the content of `specmesh stats --json`."""
        first = self._links[self._router.first.number]
        info = self._engine.info
        draft_ns = list[int]()
        for link in self._links:
            draft_ns += link.upstream.draft_ns
        return self.stats.snapshot(
            max_sessions=info.max_sessions,
            draft_ns=draft_ns,
            traffic=self._traffic,
            now=now,
            verifiers=[link.describe() for link in self._links],
            interrupted=len(self._router.in_state(RequestState.WAITING)),
            no_drafts=first.upstream.no_drafts,
            **facts(
                self._engine,
                info.named(),
                first.upstream.facts.address,
                encrypted=first.dealer.encrypted,
            ),
        )


def _slots(engine: DraftEngine, *, upstreams: int) -> KVSlots:
    """Return the KV slots of a draft model.

    With several upstreams no ids are kept for later sessions: they may mean other tokens.
    """
    info = engine.info
    capabilities = info.capabilities
    room = 0
    if upstreams == 1 and capabilities.endless:
        room = ANY_LENGTH
    elif upstreams == 1:
        keeps_all = capabilities.reuse == "copied" or capabilities.checkpoints > 0
        room = info.n_ctx * (info.max_sessions if keeps_all else 1)
    reuse: KVReuse = "whole" if capabilities.reuse == "whole" else "cut"
    return KVSlots(
        info.max_sessions,
        reuse,
        room,
        offloads=capabilities.offloads,
        guests=info.guests,
        n_ctx=info.n_ctx,
        checkpoints=capabilities.checkpoints,
        copies=False,
    )


def _windows(engine: DraftEngine, size: int | None) -> Windows:
    """Return the windows that a draft model reads.

    size: of the settings. A model that reads texts at no cost has none.
    """
    info = engine.info
    capabilities = info.capabilities
    if size is None:
        size = WINDOW_IDS
    if capabilities.endless and capabilities.trimming == "removal":
        size = 0
    return Windows(
        n_ctx=info.n_ctx,
        size=min(size, info.n_ctx),
        bos=0 if info.bos is None else 1,
        endless=capabilities.endless,
        spares=info.guests,
    )
