"""The drafter's loop: frames and orders in, one unit of drafting at a time, frames and client events out."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

import structlog

from specmesh.api.requests import Cancel, ClientOrder, Failed, ModelInfo, Peer, PingPeers, Submit, refuse
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.snapshot import DrafterSnapshot
from specmesh.core.vocabulary.match import LEAST_OVERLAP
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter.request_router import RequestRouter
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.daemons.drafter.upstream import Upstream
from specmesh.daemons.link.transport import Route, Traffic, wait_for_any
from specmesh.daemons.link.vocabulary_handshake import VocabularyCache, VocabularyHandshake
from specmesh.daemons.runtime.mailbox import Mailbox
from specmesh.daemons.runtime.request_queue import MAX_QUEUE
from specmesh.daemons.runtime.shared_cores import SharedCores
from specmesh.engines.base import CpuEngine, DraftEngine
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

SNAPSHOT_INTERVAL = 0.1
CONNECTING = 1.0  # seconds after the start in which the verifier counts as not found yet

_FETCHING = "the vocabulary is still being fetched from the verifier: try again in a moment"


class DrafterLoop:
    """A drafter of the verifiers at `routes`, the preferred first. Everything runs on the thread that calls `run`.

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
    ) -> None:
        self._engine, self._mailbox = engine, mailbox
        self._cores = SharedCores(engine, drafts=True, explicit=explicit_threads)
        self._next_snapshot = 0.0
        self.progress, self._begun = 0, time.monotonic()  # progress: changes while the loop gets on
        self._stopping: float | None = None
        self._drain = drain
        self._traffic = Traffic()
        self.stats = DrafterStats(time.monotonic())
        self._router = RequestRouter(max_queue)
        info = engine.info
        room = info.n_ctx * (info.n_seq if info.reuse == "copied" else 1)
        # With several verifiers nothing is kept: the same ids may mean other tokens.
        self._slots = KVSlots(info.n_seq, "whole" if info.reuse == "whole" else "cut", room if len(routes) == 1 else 0)
        self._upstreams = tuple(
            Upstream(
                name,
                route,
                engine,
                VocabularyHandshake(engine, route.address, least_overlap, cache, mailbox.wake, self._cores),
                self.stats,
                self._traffic,
                self._router,
                self._slots,
                lambda: self.progress,
                temperature,
            )
            for route in routes
        )
        self._router.upstreams = self._upstreams
        self._active = deque(self._upstreams)  # the one that drafted longest ago in front

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

    def run(self) -> None:
        """Draft until stopped; raise ConfigError where no verifier will ever accept this drafter."""
        try:
            self._draft()
        finally:
            self._mailbox.end(lambda order: refuse(order, _stopping()))
            self._router.stop(_stopping())
            for one in self._active:
                one.dealer.send(m.Bye())

    def _draft(self) -> None:
        while not self._drained():
            self.progress += 1
            self._each(Upstream.receive)
            if not self._work():
                for one in self._active:
                    one.sessions.flush()
                inlets = [one.dealer.inlet for one in self._active]
                wait_for_any(inlets, self._mailbox, self._timeout(time.monotonic()))
            for order in self._mailbox.drain():
                self._order(order)
            self._tick(time.monotonic())

    def _drained(self) -> bool:
        if self._stopping is None:
            return False
        self._router.refuse(_stopping())
        texts = any(one.sessions.own for one in self._active)
        return not texts or time.monotonic() >= self._stopping + self._drain

    def _work(self) -> bool:
        """Do one unit of drafting for the next verifier with work, else of shadowing; return False without any."""
        for one in self._active:
            if one.work():
                self._active.remove(one)
                self._active.append(one)
                return True
        return any(one.shadow() for one in self._active)

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
        for one in self._active:
            one.dealer.close()

    def _timeout(self, now: float) -> float:
        due = min(one.next_due() for one in self._active)
        if self._stopping is not None:
            due = min(due, self._stopping + self._drain)
        due = min(due, self._router.next_due(now) or due)
        if self.stats.unpublished:
            due = min(due, self._next_snapshot)
        return max(due - now, 0.0)

    def _tick(self, now: float) -> None:
        self._each(lambda one: one.tick(now))
        self._router.expire(now)
        self._router.reopen(now)
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_INTERVAL
            self._share_cores()
            self.stats.unpublished = any(one.sessions.live for one in self._upstreams)
            self.stats.latest = self.snapshot(now)

    def _share_cores(self) -> None:
        threads = self._cores.beside(one.welcome for one in self._upstreams if one.welcome is not None)
        if threads is not None and isinstance(self._engine, CpuEngine):
            self._engine.use_threads(threads)

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
            [live.machine for one in self._upstreams for live in one.sessions.live.values()],
            self._traffic,
            now,
            len(self._router.retries),
            address=first.address,
            encrypted=first.dealer.encrypted,
            refusal=first.refusal,
            verifiers=[one.describe(now) for one in self._upstreams],
            reuse=self._slots.snapshot(),
        )


def _stopping() -> WentAway:
    return WentAway("the drafter is stopping")
