"""The verifier's I/O: frames and requests become events of its core, its effects become frames and
answers.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from math import inf
from typing import assert_never
from weakref import WeakValueDictionary

import structlog
import zmq

from specmesh.api.backend import (
    AskStats,
    Cancel,
    ClientOrder,
    ModelInfo,
    PauseClient,
    PingPeers,
    Submit,
)
from specmesh.api.fair_workers import FairWorker
from specmesh.config import VerifierSettings
from specmesh.core.draft_length.local_estimates import LocalEstimates
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import DraftedRows, DraftStep, Rows, Step
from specmesh.core.fair_queue import Tenant
from specmesh.core.kv_pool import KVPool
from specmesh.core.kv_slots import KVSlots
from specmesh.core.liveness import Link
from specmesh.core.requests import Reply, Request
from specmesh.core.rounds import Round
from specmesh.core.session_params import TargetLimits, check_resumed
from specmesh.core.statistics.daemon import VerifierStats
from specmesh.core.statistics.snapshot import VerifierSnapshot
from specmesh.core.text.chat import Tokenizer, predicted_ids, prompt_of
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.calibration import Calibration
from specmesh.core.verifier.clients import Clients, ClientsEffect, Encode
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.earlier_outputs import EarlierOutputs
from specmesh.core.verifier.local_drafting import LocalDrafting, LocalLimits
from specmesh.core.verifier.peer_limits import PeerAccounts
from specmesh.core.verifier.predicted_text import PredictedText
from specmesh.core.verifier.scheduler import PREFILL_ROWS
from specmesh.core.verifier.target import Target
from specmesh.daemons.link.sockets import Router
from specmesh.daemons.runtime.facts import facts, thread_share
from specmesh.daemons.runtime.loops import CLOSING, FAST, FAST_ON_CPU, DaemonLoop, EngineLoop
from specmesh.daemons.runtime.model_thread import ModelThread
from specmesh.daemons.verifier.core_effects import CoreEffects
from specmesh.daemons.verifier.drafters import Drafters
from specmesh.engines.base import LocalDrafter, VerifyEngine
from specmesh.engines.grammar_compiler import grammar_compiler
from specmesh.engines.load import LoadedTarget
from specmesh.engines.steps import limits_of, run_either
from specmesh.errors import Busy, ChildLate, EngineError, PromptTooLong, SpecmeshError, WentAway
from specmesh.free_memory import MIB
from specmesh.security.curve import ZapGuard
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")

REPORT_PATIENCE = 0.25  # seconds that a snapshot waits for the core, which is busy during a step

PREPARE_AFTER = 3.0
"""Seconds without a request after which the first grammar is prepared for.

Neither the first texts after a start nor the first measured steps wait for that.
"""

PROMPT_SIZES = (2**14, 2**18)
"""Bytes of requests that do not wait for longer ones: each size has a thread of its own."""

CoreLoop = EngineLoop[vev.Happened, vev.Effect, Step | DraftStep, Sequence[Rows] | DraftedRows]
Encoded = vev.Opening | vev.RequestRefused
Order = ClientOrder | Encoded | list[vev.Effect] | BaseException
"""Mail for the event loop: of the API, of the prompt encoder, and of the core."""


class VerifierLoop(DaemonLoop[Order]):
    """A verifier's event loop: all of it but the core and the engine, which have a thread."""

    def __init__(
        self,
        name: str,
        socket: "zmq.Socket[bytes]",
        engine: VerifyEngine,
        costs: StepCosts,
        settings: VerifierSettings,
        guard: ZapGuard | None = None,
        thread: ModelThread | None = None,
        model_hash: str = "",
        accounts: PeerAccounts | None = None,
        link: Callable[[float], Link] = Link,
        closing: float = CLOSING,
        calibration: Calibration | None = None,
        drafter: LocalDrafter | None = None,
    ) -> None:
        stopping = Busy("the verifier is stopping", "try again when it is back")
        fast = FAST_ON_CPU if engine.info.threads else FAST
        super().__init__(settings.drain, stopping, fast)
        self.stats = VerifierStats(time.monotonic())
        self._router = Router(socket, guard, accounts)
        self._engine = engine
        self._drafter = drafter
        self._model_hash = model_hash
        self._closing = closing
        self._quiet_since: float | None = None
        self._stats_orders: list[tuple[float, AskStats]] = []  # until when they wait
        limits = limits_of(engine)
        self._clients = Clients(limits, engine.info.max_sessions, settings.max_queue)
        self._prompts = PromptEncoder(
            engine.tokenizer,
            limits,
            lambda client: client in self._clients.requests,
            self.mailbox.put,
        )
        earlier = None
        if settings.suffix_cache:
            earlier = EarlierOutputs(settings.suffix_cache * MIB)
        core = core_of(
            engine,
            limits,
            costs,
            settings.grace,
            calibration=calibration,
            earlier=earlier,
            drafter=drafter,
        )
        run = partial(run_either, engine, drafter)
        self._core = CoreLoop(core, run, vev.Signal.TIME_UP, self._deliver, thread or ModelThread())
        cores = thread_share(engine, drafter=False, explicit=settings.model.threads is not None)
        welcome = m.Welcome(
            verifier=name,
            model=engine.info.model,
            model_hash=model_hash,
            vocab_fingerprint=engine.tokenizer.vocabulary.fingerprint(),
            n_vocab=limits.n_vocab,
            n_ctx=limits.n_ctx,
            end_ids=sorted(limits.end_ids),
            takes_ids=True,
            takes_body=True,
        )
        self._drafters = Drafters(
            info=engine.info,
            vocabulary=engine.tokenizer.vocabulary,
            router=self._router,
            clients=self._clients,
            act=self._act,
            stats=self.stats,
            core=self._core,
            welcome=welcome,
            cores=cores,
            link=link,
        )
        self._effects = CoreEffects(
            core=self._core,
            stats=self.stats,
            clients=self._clients,
            drafters=self._drafters,
            act=self._act,
            reported=self._reported,
        )

    # --- the loop

    def _begin(self) -> None:
        self._router.inlet.listen(partial(self._turn, self._drafters.receive))
        self._core.start()
        # Drafters and snapshots have this report until there is another.
        self._put(vev.Signal.REPORT_WANTED)

    def _leave(self) -> None:
        self._router.inlet.close()
        error = WentAway("the verifier is stopping: the text ends here")
        self._act(self._clients.end(error))
        for _, order in self._stats_orders:
            self._late(order)
        self._drafters.leave()

    def _close(self) -> bool:
        self._effects.close()
        encoded = self._prompts.close(self._closing)
        free = LoadedTarget(self._engine, self._drafter).close if encoded else lambda: None
        return self._core.close(self._closing, free) and encoded

    def _put(self, event: vev.Happened) -> None:
        """Hand the core an event that happens now; from any thread."""
        self._core.put(event, time.monotonic())

    @property
    def models(self) -> tuple[str, ...]:
        """Return the name of the model."""
        return (self._engine.info.model,)

    def served(self, _: str) -> ModelInfo:
        """Return the limits and the vocabulary of the model."""
        info = self._engine.info
        return ModelInfo(
            model=info.model,
            vocabulary=self.tokenizer.vocabulary,
            n_ctx=info.n_ctx,
            max_sessions=info.max_sessions,
            texts=self.tokenizer.texts,
            model_hash=self._model_hash,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer."""
        return self._engine.tokenizer

    def _drained(self) -> bool:
        self._act(self._clients.stop(self._refusal))
        self._put(vev.Signal.STOPPING)
        return not self._clients.requests

    def _take(self, order: Order, now: float) -> None:
        match order:
            case list():
                for effect in order:
                    self._effects.carry_out(effect, now)
            case Submit(texts, tenant, account):
                self._act(self._clients.submit(texts, tenant, account))
            case vev.Opening():
                self._act(self._clients.encoded(order))
            case vev.RequestRefused(client, error):
                self._act(self._clients.refuse(client, error))
            case Cancel(client):
                self._act(self._clients.cancel(lambda entry: entry.client is client))
            case PauseClient(client, paused):
                self._act(self._clients.pause(client, paused=paused))
            case PingPeers():
                self._drafters.ping_for(order, now)
            case AskStats():
                self._stats_orders.append((now + REPORT_PATIENCE, order))
                self._core.put(vev.Signal.REPORT_WANTED, now)
            case BaseException():
                raise order
            case _:
                assert_never(order)
        self._due |= bool(self._router.gone)

    def _tick(self, now: float) -> None:
        self.progress += self._router.guarded and not self._core.stuck
        self._drafters.look(now)
        if self._clients.reading:
            self._act(self._clients.repeat(now))
        if not self._clients.running:
            self.stats.throughput.idle()
        self._prepare_if_quiet(now)
        while self._stats_orders and now >= self._stats_orders[0][0]:
            self._answer_stats(now)
        self._due |= bool(self._router.gone)

    def _prepare_if_quiet(self, now: float) -> None:
        """Prepare for the first grammar once there has been no request for a while."""
        if self._clients.requests:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now >= self._quiet_since + PREPARE_AFTER:
            self._prompts.prepare()

    def _reported(self, now: float) -> None:
        """Answer the oldest of those that wait for a report of the core."""
        if self._stats_orders:
            self._answer_stats(now)

    def _answer_stats(self, now: float) -> None:
        _, order = self._stats_orders.pop(0)
        order.tell(self.snapshot(now))

    def snapshot(self, now: float) -> VerifierSnapshot:
        """Return the content of `specmesh stats --json`."""
        info = self._engine.info
        model = info.named() | {
            "reproducible": info.capabilities.width is not None,
            "model_hash": self._model_hash or None,
            "draft_model": self._drafter.engine.info.model if self._drafter else None,
        }
        encrypted = self._router.encrypted
        return self.stats.snapshot(
            max_sessions=info.max_sessions,
            core=self._effects.report,
            peers={identity: peer.describe() for identity, peer in self._drafters.peers.items()},
            traffic=self._router.traffic,
            now=now,
            live=self._clients.running,
            queued=len(self._clients.waiting),
            **facts(self._engine, model, self._router.address, encrypted=encrypted),
        )

    # --- effects of the core

    def _deliver(self, effects: list[vev.Effect] | BaseException) -> None:
        """Hand over effects of the core, or the error that ended it, on its thread."""
        may_wait = isinstance(effects, list) and all(map(_may_wait, effects))
        self.mailbox.put(effects, urgent=not may_wait)

    def _act(self, effects: Sequence[ClientsEffect]) -> None:
        """Carry out effects of requests."""
        for effect in effects:
            match effect:
                case Reply(client, event):
                    client.on_event(event)
                case Encode(opening):
                    self._prompts.add(opening)
                case vev.Opening() | vev.ClientLeft() | vev.ClientPaused():
                    self._put(effect)
                case _:
                    assert_never(effect)


def _may_wait(effect: vev.Effect) -> bool:
    """Return True for tokens, which may wait for more of them; but not for a text's first."""
    if isinstance(effect, vev.ToClient):
        return isinstance(effect.what, Round) and not effect.what.first
    return isinstance(effect, vev.Ran)


def core_of(
    engine: VerifyEngine,
    limits: TargetLimits,
    costs: StepCosts,
    grace: float,
    *,
    calibration: Calibration | None = None,
    earlier: EarlierOutputs | None = None,
    drafter: LocalDrafter | None = None,
) -> VerifierCore:
    """Return the core of a verifier with this engine; drafter: in the same process."""
    info = engine.info
    capabilities = info.capabilities
    pool = None
    if info.cells is not None:
        pool = KVPool(info.cells, info.host_ids)
    slots = KVSlots(
        info.max_sessions,
        capabilities.reuse,
        room=info.n_ctx * info.max_sessions,
        part=None if capabilities.width is None else PREFILL_ROWS,
        offloads=capabilities.offloads,
        guests=info.guests,
        n_ctx=info.n_ctx,
        pool=pool,
        offload_after=capabilities.offload_after,
        checkpoints=capabilities.checkpoints,
        windows=capabilities.windows,
        shares=capabilities.shares,
    )
    # Numbers of sessions differ from those before a restart.
    first = time.monotonic_ns() & 0xFFFFFF
    speculations = Speculations()
    target = Target(
        limits=limits,
        costs=costs,
        slots=slots,
        n_batch=info.n_batch,
        max_sessions=info.max_sessions,
        guests=info.guests,
        earlier=earlier,
        calibration=calibration,
        speculations=speculations,
        local=None if drafter is None else local_drafting(drafter, costs, speculations),
    )
    return VerifierCore(target, first=first, grace=grace)


def local_drafting(
    drafter: LocalDrafter, costs: StepCosts, speculations: Speculations
) -> LocalDrafting:
    """Return the drafting of a drafter in this process.

    costs: of the target's steps. speculations: of its sessions.
    """
    info = drafter.engine.info
    capabilities = info.capabilities
    limits = LocalLimits(
        n_ctx=info.n_ctx,
        n_batch=info.n_batch,
        batches=capabilities.batches,
        follows=capabilities.follows,
        kept_rows=capabilities.kept_rows,
        bos=0 if info.bos is None else 1,
        endless=capabilities.endless,
    )
    estimates = LocalEstimates(drafter.source, batches=capabilities.batches)
    return LocalDrafting(limits, estimates, costs, speculations)


def _log_ignored(tool: str, ignored: Sequence[str]) -> None:
    log.info("tool_schema_ignored", tool=tool, ignored=list(ignored))


class PromptEncoder:
    """Encodes prompts and compiles grammars, on threads of its own.

    - Tenants take turns.
    - A prompt waits for none that is much longer, and a grammar for none that takes long.
    - A prediction is encoded once for all choices of a request.
    - Each result goes to `deliver`, on the thread that made it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: TargetLimits,
        wanted: Callable[[int], bool],
        deliver: Callable[[Encoded], None],
    ) -> None:
        """Begin with no work.

        limits: the target's. wanted: returns True if a client still waits; from any thread.
        """
        self._tokenizer = tokenizer
        self._limits = limits
        self._wanted = wanted
        self._deliver = deliver
        self._grammars = grammar_compiler(tokenizer.vocabulary, _log_ignored)
        self._predictions = WeakValueDictionary[tuple[Tenant, str], PredictedText]()
        self._prompts = {most: FairWorker("prompts") for most in (*PROMPT_SIZES, inf)}
        self._quick = FairWorker("grammars")
        self._patient = FairWorker("slow grammars")
        self._prepared = False

    def prepare(self) -> None:
        """Make what the first grammar would wait for, and all other texts with it; once."""
        if self._prepared:
            return
        self._prepared = True
        self._quick.submit(("",), 0, self._grammars.prepare)

    def add(self, opening: vev.Opening) -> None:
        """Encode a prompt that is still wanted when its turn comes."""
        size = opening.request.size
        worker = next(worker for most, worker in self._prompts.items() if size <= most)
        self._assign(worker, opening, self._encoded)

    def close(self, timeout: float) -> bool:
        """Encode no more; return True if the work that was begun ended within `timeout` seconds."""
        self._grammars.close()
        workers = (*self._prompts.values(), self._quick, self._patient)
        closing = [worker.close() for worker in workers]
        return not wait(closing, timeout).not_done

    def _assign(
        self,
        worker: FairWorker,
        opening: vev.Opening,
        work: Callable[[vev.Opening], Encoded | None],
    ) -> None:
        """Have a worker do `work` if the client still waits then, and deliver any result."""

        def if_wanted() -> Encoded | None:
            return work(opening) if self._wanted(opening.client) else None

        done = worker.submit(opening.tenant, opening.request.size, if_wanted)
        done.add_done_callback(partial(self._settle, opening))

    def _settle(self, opening: vev.Opening, done: "Future[Encoded | None]") -> None:
        if done.cancelled():
            return
        encoded: Encoded | None
        match done.exception():
            case None:
                encoded = done.result()
            case SpecmeshError() as error:
                encoded = vev.RequestRefused(opening.client, error)
            case error:
                reason = f"the prompt could not be encoded ({type(error).__name__}: {error})"
                encoded = vev.RequestRefused(opening.client, EngineError(reason))
        if encoded is not None:
            self._deliver(encoded)

    def _encoded(self, opening: vev.Opening) -> vev.Opening | None:
        """Return the request with its prompt's ids; None if its grammar is to be compiled next."""
        ids, params = prompt_of(opening.request, self._tokenizer, self._limits.n_ctx)
        request = replace(opening.request, params=params)
        opening = replace(opening, request=request, ids=ids, n_prompt=len(ids))
        if request.predicts:
            opening = replace(opening, predicted=self._predicted(opening.tenant, request))
        if params.grammar is None:
            return opening
        if len(ids) >= self._limits.n_ctx:  # a grammar of many tools may take long to compile
            raise PromptTooLong.of(len(ids), self._limits.n_ctx)
        self._assign(self._quick, opening, self._guided_quickly)
        return None

    def _predicted(self, tenant: Tenant, request: Request) -> PredictedText:
        """Return a request's prediction, if possible that of another choice which still has it.

        Tenants share none: it would show in the time that a request takes.
        """
        key = (tenant, request.prediction)
        found = self._predictions.get(key)
        if found is None:
            ids = predicted_ids(request, self._tokenizer, self._limits.n_ctx)
            found = self._predictions[key] = PredictedText(ids)
        return found

    def _guided_quickly(self, opening: vev.Opening) -> vev.Opening | None:
        """Return the request with its grammar; None if that waits for others that take long."""
        try:
            return self._guided(opening, patient=False)
        except ChildLate:
            self._assign(self._patient, opening, self._guided)
            return None

    def _guided(self, opening: vev.Opening, *, patient: bool = True) -> vev.Opening:
        request = opening.request
        assert request.params.grammar is not None, "only requests with a grammar come here"
        constraint = self._grammars.compile(request.params.grammar, patient=patient)
        check_resumed(request.generated, constraint, self._limits)
        return replace(opening, constraint=constraint)
