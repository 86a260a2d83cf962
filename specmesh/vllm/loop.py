"""The thread of frames: drafters, statistics, and orders of the local socket.

It does the work of a verifier daemon's event loop, but for the engine: vLLM's worker drives the
core, by `Drafting`. Nobody gets a text here: requests are refused with the address of vLLM's API.
"""

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from specmesh import __version__
from specmesh.api.backend import (
    AskStats,
    Cancel,
    ClientOrder,
    ModelInfo,
    PauseClient,
    PingPeers,
    Submit,
)
from specmesh.core.cpu_threads import HostPeer, ThreadShare
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.liveness import Link
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.requests import Failed, Reply
from specmesh.core.session_params import TargetLimits
from specmesh.core.statistics.daemon import DaemonFacts, VerifierStats
from specmesh.core.statistics.snapshot import VerifierSnapshot
from specmesh.core.text.chat import Tokenizer
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, ClientsEffect, Encode
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.followed import TargetsOwnMemory
from specmesh.core.verifier.target import Target
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.sockets import Router
from specmesh.daemons.runtime.loops import DaemonLoop
from specmesh.daemons.verifier.core_effects import CoreEffects
from specmesh.daemons.verifier.drafters import Drafters
from specmesh.engines.base import Capabilities, EngineInfo
from specmesh.errors import EngineError, NotOffered
from specmesh.host import host_id, physical_cores
from specmesh.vllm.drafting import Drafting, TargetBounds
from specmesh.vllm.served_model import ServedModel
from specmesh.vllm.settings import ProposerSettings
from specmesh.wire import messages as m

Order = ClientOrder | list[vev.Effect]
"""Mail for the loop: of the local socket, and of the core."""

_REPORT_PATIENCE = 0.25  # seconds that a snapshot waits for the core's report
NO_CLIENTS = 0  # requests that may wait here


class ProposerLoop(DaemonLoop[Order]):
    """The event loop beside vLLM's worker. The local socket uses it like that of a daemon.

    drafting: answers the worker.
    """

    def __init__(
        self,
        name: str,
        router: Router,
        model: ServedModel,
        vocabulary: Vocabulary,
        settings: ProposerSettings,
    ) -> None:
        """Begin without drafters.

        name: of this verifier. router: bound. model: that vLLM serves.
        """
        meaning = "this verifier is a vLLM server, which generates by its own API only"
        refusal = NotOffered(meaning, remedy=f"ask it at {settings.http}")
        super().__init__(0.0, refusal)
        self.stats = VerifierStats(time.monotonic())
        self._router = router
        self._model = model
        self._vocabulary = vocabulary
        self._stats_orders = deque[tuple[float, AskStats]]()  # until when they wait
        self._info = _info_of(model, settings)
        limits = TargetLimits(
            model.n_ctx,
            len(vocabulary),
            frozenset(),  # `Drafting` ends texts: not every server heeds these ids
            max_drafts=model.guesses,
            max_copied=model.drafts,
            pieces=vocabulary.pieces,
        )
        self._clients = Clients(limits, settings.rows, NO_CLIENTS)
        self._clients.stop(refusal)
        bounds = TargetBounds(
            drafts=model.drafts,
            n_vocab=min(model.n_vocab, len(vocabulary)),
            end_ids=vocabulary.end_ids,
        )
        self.drafting = Drafting(
            _core_of(limits, settings.rows), bounds, self._deliver, patience=settings.patience
        )
        welcome = m.Welcome(
            verifier=name,
            model=model.name,
            model_hash="",
            vocab_fingerprint=vocabulary.fingerprint(),
            n_vocab=len(vocabulary),
            n_ctx=model.n_ctx,
            end_ids=sorted(vocabulary.end_ids),
            takes_ids=True,
            takes_body=True,
        )
        self._drafters = Drafters(
            info=self._info,
            vocabulary=vocabulary,
            router=router,
            clients=self._clients,
            act=self._act,
            stats=self.stats,
            core=self.drafting,
            welcome=welcome,
            cores=ServersCores(model.cpu_threads),
            link=Link,
        )
        self._effects = CoreEffects(
            core=self.drafting,
            stats=self.stats,
            clients=self._clients,
            drafters=self._drafters,
            act=self._act,
            reported=self._reported,
        )

    # --- as the local socket sees it

    @property
    def models(self) -> tuple[str, ...]:
        """Return the name of the model."""
        return (self._model.name,)

    def served(self, _: str) -> ModelInfo:
        """Return the limits and the vocabulary of the model."""
        return ModelInfo(
            model=self._model.name,
            vocabulary=self._vocabulary,
            n_ctx=self._model.n_ctx,
            max_sessions=self._info.max_sessions,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Raise NotOffered: vLLM makes ids of texts."""
        raise self._refusal

    def snapshot(self, now: float) -> VerifierSnapshot:
        """Return the content of `specmesh stats --json`."""
        unknown = {"reproducible": False, "model_hash": None, "draft_model": None}
        facts = DaemonFacts(
            version=__version__,
            pid=os.getpid(),
            model=self._info.named() | unknown,
            address=self._router.address,
            encrypted=self._router.encrypted,
            offloaded_bytes=0,
        )
        snapshot = self.stats.snapshot(
            max_sessions=self._info.max_sessions,
            core=self._effects.report,
            peers={identity: peer.describe() for identity, peer in self._drafters.peers.items()},
            traffic=self._router.traffic,
            now=now,
            live=self._clients.running,
            **facts,
        )
        if self.drafting.faults.off:
            snapshot = replace(snapshot, no_drafts=NoDrafts.FAULT)
        return snapshot

    def fault(self) -> EngineError | None:
        """Return why nothing is drafted until the server is restarted; None without a reason."""
        if not self.drafting.faults.off:
            return None
        reason = "too many unexpected errors: nothing is drafted, and vLLM goes on"
        return EngineError(reason, "its log has them; restart vLLM to draft again")

    # --- the loop

    def _begin(self) -> None:
        self._router.inlet.listen(partial(self._turn, self._drafters.receive))
        self.drafting.put(vev.Signal.REPORT_WANTED, time.monotonic())

    def _take(self, order: Order, now: float) -> None:
        match order:
            case list():
                for effect in order:
                    self._effects.carry_out(_quieter(effect), now)
            case Submit(texts):
                for _, client in texts:
                    client.on_event(Failed(self._refusal))
            case PingPeers():
                self._drafters.ping_for(order, now)
            case AskStats():
                self._stats_orders.append((now + _REPORT_PATIENCE, order))
                self.drafting.put(vev.Signal.REPORT_WANTED, now)
            case Cancel() | PauseClient():
                pass  # nobody has a text here
            case _:
                assert_never(order)
        self._due |= bool(self._router.gone)

    def _tick(self, now: float) -> None:
        self.progress += 1
        self._drafters.look(now)
        self.drafting.turn()
        self.drafting.end_if_quiet()
        if not self._clients.running:
            self.stats.throughput.idle()
        while self._stats_orders and now >= self._stats_orders[0][0]:
            self._reported(now)
        self._due |= bool(self._router.gone)

    def _reported(self, now: float) -> None:
        """Answer the oldest of those that wait for a report of the core."""
        if self._stats_orders:
            _, order = self._stats_orders.popleft()
            order.tell(self.snapshot(now))

    def _drained(self) -> bool:
        return True

    def _leave(self) -> None:
        self._router.inlet.close()
        while self._stats_orders:
            self._reported(time.monotonic())
        self._drafters.leave()

    def _close(self) -> bool:
        self._effects.close()
        return True

    # --- effects

    def _deliver(self, effects: list[vev.Effect]) -> None:
        """Hand over effects of the core; on either thread."""
        self.mailbox.put(effects)

    def _act(self, effects: Sequence[ClientsEffect]) -> None:
        """Carry out effects of requests: all are refused."""
        for effect in effects:
            match effect:
                case Reply(client, event):
                    client.on_event(event)
                case vev.ClientLeft():
                    self.drafting.put(effect, time.monotonic())
                case Encode() | vev.Opening() | vev.ClientPaused():
                    raise AssertionError("no request gets so far")
                case _:
                    assert_never(effect)


class ServersCores(ThreadShare):
    """The cores of this host that vLLM's steps take; 0 if they run on a GPU.

    vLLM gives no cores to a drafter of this host, but its steps beside one are slower all the same.
    So they are measured apart from others, as if it did. And the gate compares drafting with not
    drafting from the first text on.
    """

    def __init__(self, threads: int) -> None:
        """Begin without drafters."""
        super().__init__(threads, physical_cores(), host_id(), drafter=False, follows=threads > 0)

    def beside(self, peers: Iterable[HostPeer]) -> None:
        """Note the drafters; the log gets no line about threads, which stay as they are."""
        super().beside(peers)


def _quieter(effect: vev.Effect) -> vev.Effect:
    """Return an effect; a line of the log about a single text is only for debugging.

    vLLM's own log has lines about its requests.
    """
    if isinstance(effect, vev.Noted) and effect.level == "info" and "session" in effect.fields:
        return replace(effect, level="debug")
    return effect


def _info_of(model: ServedModel, settings: ProposerSettings) -> EngineInfo:
    """Return the server's model as daemons describe an engine."""
    return EngineInfo(
        model=model.name,
        n_ctx=model.n_ctx,
        n_batch=settings.rows * (model.drafts + 1),
        max_sessions=settings.rows,
        backend=model.backend,
        capabilities=Capabilities(),
    )


def _core_of(limits: TargetLimits, rows: int) -> VerifierCore:
    """Return a core for texts that are followed."""
    target = Target(
        limits=limits,
        costs=StepCosts(),
        slots=TargetsOwnMemory(rows),
        n_batch=rows * (limits.max_drafts + 1),
        max_sessions=rows,
    )
    # Numbers of sessions differ from those before a restart.
    return VerifierCore(target, first=time.monotonic_ns() & 0xFFFFFF)
