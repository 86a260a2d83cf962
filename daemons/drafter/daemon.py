"""The drafter's I/O: frames and requests become events of its core, what the core says becomes frames and answers."""

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
    PingPeers,
    Submit,
)
from specmesh.config import DrafterSettings
from specmesh.core import events as ev
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.request_router import RequestRouter
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Failed, RequestState, target_of
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.statistics.snapshot import DrafterSnapshot, WireSection
from specmesh.core.text.chat import Tokenizer
from specmesh.daemons.drafter.upstream_link import CoreLoop, UpstreamLink
from specmesh.daemons.link.dealer import Route
from specmesh.daemons.link.names import LookedUp, NameLookups
from specmesh.daemons.runtime.loops import CLOSING, DaemonLoop, ModelThread
from specmesh.daemons.runtime.process import facts, note, thread_share
from specmesh.engines.base import DraftEngine
from specmesh.engines.steps import run_draft_step
from specmesh.errors import NotOffered, WentAway

DraftOrder = ClientOrder | list[ev.CoreEffect] | LookedUp | BaseException


class DrafterLoop(DaemonLoop[DraftOrder]):
    """A drafter of the verifiers at `routes`, the preferred first. Its core and the draft model run on `thread`."""

    def __init__(
        self,
        name: str,
        routes: Sequence[Route],
        engine: DraftEngine,
        settings: DrafterSettings,
        thread: ModelThread | None = None,
    ) -> None:
        super().__init__(settings.drain, WentAway("the drafter is stopping"))
        self._engine = engine
        self._cores = thread_share(
            engine, drafter=True, explicit=settings.model.threads is not None
        )
        self._traffic = WireSection()
        self.stats = DrafterStats(time.monotonic())
        info = engine.info
        capabilities = info.capabilities
        room = info.n_ctx
        if capabilities.reuse == "copied":
            room *= info.max_sessions
        if len(routes) > 1:
            room = 0  # verifiers may mean other tokens by the same ids
        slots = KVSlots(
            info.max_sessions,
            "whole" if capabilities.reuse == "whole" else "cut",
            room,
            offloads=capabilities.offloads,
        )
        core = DrafterCore(DraftLimits(info.n_ctx, info.n_batch, capabilities.batches), slots)
        speaking = dict[int, DraftEngine]()
        run = partial(run_draft_step, engine, speaking)
        self._core = CoreLoop(core, run, None, self.mailbox.put, thread or ModelThread())
        lookups = NameLookups(self.mailbox.put)
        shared = engine, self._cores, self.stats, self._traffic, speaking, self._core, lookups
        self._links = tuple(
            UpstreamLink(name, one, (n, len(routes)), *shared) for n, one in enumerate(routes)
        )
        self._router = RequestRouter([one.upstream for one in self._links], time.monotonic())

    @property
    def models(self) -> tuple[str, ...]:
        return self._router.models

    def served(self, name: str) -> ModelInfo:
        info, vocabulary = self._router.serving(name, time.monotonic())
        return ModelInfo(
            info.model, vocabulary, target_of(info) if len(self._links) > 1 else "", info.n_ctx
        )

    @property
    def tokenizer(self) -> Tokenizer:
        where = ", ".join(one.upstream.address for one in self._links)
        whose = "the tokenizer and the chat template are the verifier's"
        raise NotOffered(f"{whose}: ask it over HTTP, not here ({where})")

    # --- the loop

    def _begin(self) -> None:
        self._core.start()
        for one in self._links:
            one.dealer.listen(partial(self._turn, partial(self._receive, one)))

    def _receive(self, one: UpstreamLink) -> None:
        self._due |= one.receive()

    def _settle(self) -> None:
        for one in self._links:
            one.dealer.inlet.check()

    def _take(self, order: DraftOrder, now: float) -> None:
        match order:
            case list():
                for effect in order:
                    if isinstance(effect, tuple):  # a session's key tells its verifier
                        self._due |= self._links[effect[0] % len(self._links)].from_core(
                            *effect, now
                        )
                    else:
                        self.stats.worked(effect)
                return
            case LookedUp():
                for one in self._links:
                    one.looked_up(order, now)
            case BaseException():
                raise order
            case Submit(request, client, tenant) if self._stopping is None:
                self._router.ask(request, client, now, tenant)
            case Submit(_, client):
                client.on_event(Failed(self._refusal))
            case Cancel(client):
                self._router.cancel_of(client)
            case PauseClient(client, paused):
                self._router.pause(client, paused=paused)
            case PingPeers():
                there = [(one, peer) for one in self._links if (peer := one.peer) is not None]
                order.sent(peer for _, peer in there)
                for one, peer in there:
                    one.ping_for(order, peer, now)
            case AskStats(tell):
                tell(self.snapshot(now))
            case _:
                assert_never(order)
        self._carry_out(now)
        self._due = True

    def _tick(self, now: float) -> None:
        self.progress += not self._core.stuck
        for one in self._links:
            one.tick(now)
        self._router.look(now)
        while self._carry_out(now):
            self._router.look(now)
        before = self._cores.threads
        note(
            self._cores.beside(
                info for one in self._router.upstreams if (info := one.info) is not None
            )
        )
        if self._cores.threads != before:
            self._core.put(ev.UseThreads(self._cores.threads), now)

    def _drained(self) -> bool:
        return not any(one.upstream.own for one in self._links)

    def _leave(self) -> None:
        self._router.stop(self._refusal)
        self._carry_out(time.monotonic())
        for one in self._links:
            one.stop()

    def _close(self) -> bool:
        return self._core.close(CLOSING, self._engine.close)

    def _carry_out(self, now: float) -> bool:
        """Do what was decided about requests; return whether one could not be sent, and is to be placed anew."""
        for reply in self._router.take_effects():
            reply.client.on_event(reply.event)
        return sum(one.carry_out(now) for one in self._links) > 0

    def snapshot(self, now: float) -> DrafterSnapshot:
        first, info = self._links[self._router.first.number], self._engine.info
        return self.stats.snapshot(
            max_sessions=info.max_sessions,
            draft_ns=[live.draft_n for one in self._router.upstreams for live in one.live.values()],
            traffic=self._traffic,
            now=now,
            verifiers=[one.describe() for one in self._links],
            interrupted=len(self._router.in_state(RequestState.WAITING)),
            no_drafts=first.upstream.no_drafts,
            **facts(
                self._engine, info.named(), first.upstream.address, encrypted=first.dealer.encrypted
            ),
        )
