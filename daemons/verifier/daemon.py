"""The verifier's I/O: frames and requests become events of its core, what the core says becomes frames and answers."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from logging import DEBUG
from math import inf
from typing import assert_never

import structlog
import zmq

from specmesh import logs
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
from specmesh.core.draft_length.policy import Policy, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_slots import KVSlots
from specmesh.core.liveness import Link
from specmesh.core.requests import Reply
from specmesh.core.session_params import TargetLimits, check_resumed
from specmesh.core.statistics.daemon import VerifierStats
from specmesh.core.statistics.snapshot import VerifierSnapshot
from specmesh.core.text.chat import Tokenizer, prompt_of
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, ClientsEffect, Encode
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.peer_limits import PeerAccounts
from specmesh.core.verifier.scheduler import PREFILL_ROWS
from specmesh.daemons.link.sockets import Router
from specmesh.daemons.runtime.loops import CLOSING, FAST, FAST_ON_CPU, DaemonLoop, ModelThread
from specmesh.daemons.runtime.process import facts, note, thread_share
from specmesh.daemons.verifier.drafters import CoreLoop, Drafters
from specmesh.engines.base import VerifyEngine
from specmesh.engines.grammar import Grammars
from specmesh.engines.steps import limits_of, run_step
from specmesh.errors import Busy, ChildLate, EngineError, PromptTooLong, SpecmeshError, WentAway
from specmesh.security.curve import ZapGuard

log = structlog.get_logger("specmesh.verifier")

REPORT_PATIENCE = (
    0.25  # seconds that a snapshot waits for the core, which hears nothing during a step
)

PROMPT_SIZES = (2**14, 2**18)
"""Bytes of requests that do not wait for longer ones: each size has a thread."""

Encoded = vev.Opening | vev.RequestRefused
Order = ClientOrder | Encoded | list[vev.Effect] | BaseException


class VerifierLoop(DaemonLoop[Order]):
    """A verifier. All but the core and the engine runs on the event loop."""

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
    ) -> None:
        stopping = Busy("the verifier is stopping", "try again when it is back")
        super().__init__(settings.drain, stopping, FAST_ON_CPU if engine.info.threads else FAST)
        self._router, self._engine, self._model_hash = (
            Router(socket, guard, accounts),
            engine,
            model_hash,
        )
        self.stats = VerifierStats(time.monotonic())
        self._report, self._closing = vev.CoreReport(), closing
        self._stats_orders: list[tuple[float, AskStats]] = []  # until when they wait
        limits = limits_of(engine)
        self._prompts = PromptEncoder(
            engine.tokenizer,
            limits,
            lambda client: client in self._clients.requests,
            self.mailbox.put,
        )
        core, run = core_of(engine, limits, costs, settings.grace), partial(run_step, engine)
        self._core = CoreLoop(core, run, vev.Signal.TIME_UP, self._deliver, thread or ModelThread())
        self._policies = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._clients = Clients(limits, engine.info.max_sessions, settings.max_queue)
        cores = thread_share(engine, drafter=False, explicit=settings.model.threads is not None)
        self._drafters = Drafters(
            name, engine, limits, self._router, self._clients, self._act, self.stats, self._core,
            model_hash, cores, link,
        )  # fmt: skip

    # --- the loop

    def _begin(self) -> None:
        self._router.inlet.listen(partial(self._turn, self._drafters.receive))
        self._core.start()
        self._tell(
            vev.Signal.REPORT_WANTED
        )  # what drafters, and whoever asks during a step, get at first

    def _settle(self) -> None:
        if self._router.gone and not self._ended.done():
            self._look()
        self._router.inlet.check(self._router.paused_until)

    def _leave(self) -> None:
        self._router.inlet.close()
        self._act(self._clients.end(WentAway("the verifier is stopping: the text ends here")))
        for _, order in self._stats_orders:
            self._late(order)
        self._drafters.leave()

    def _close(self) -> bool:
        self._policies.shutdown(wait=False, cancel_futures=True)
        encoded = self._prompts.close(self._closing)
        return (
            self._core.close(self._closing, self._engine.close if encoded else lambda: None)
            and encoded
        )

    def _tell(self, event: vev.Happened) -> None:
        """Hand over what happens now; from any thread."""
        self._core.put(event, time.monotonic())

    @property
    def models(self) -> tuple[str, ...]:
        return (self._engine.info.model,)

    def served(self, _: str) -> ModelInfo:
        info, tokenizer = self._engine.info, self.tokenizer
        return ModelInfo(
            info.model,
            tokenizer.vocabulary,
            n_ctx=info.n_ctx,
            max_sessions=info.max_sessions,
            texts=tokenizer.texts,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def _drained(self) -> bool:
        self._act(self._clients.stop(self._refusal))
        self._tell(vev.Signal.STOPPING)
        return not self._clients.requests

    def _take(self, order: Order, now: float) -> None:
        match order:
            case list():
                for effect in order:
                    self._carry_out(effect, now)
            case Submit(request, client, tenant):
                self._act(self._clients.open(request, client, tenant=tenant))
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

    def _tick(self, now: float) -> None:
        self.progress += self._router.guarded and not self._core.stuck
        self._drafters.look(now)
        if not self._clients.live:
            self.stats.throughput.idle()
        while self._stats_orders and now >= self._stats_orders[0][0]:
            self._stats_orders.pop(0)[1].tell(self.snapshot(now))

    def snapshot(self, now: float) -> VerifierSnapshot:
        info = self._engine.info
        model = info.named() | {
            "reproducible": info.capabilities.width is not None,
            "model_hash": self._model_hash or None,
        }
        return self.stats.snapshot(
            max_sessions=info.max_sessions,
            core=self._report,
            peers={identity: peer.describe() for identity, peer in self._drafters.peers.items()},
            traffic=self._router.traffic,
            now=now,
            live=self._clients.live,
            queued=len(self._clients.waiting),
            **facts(self._engine, model, self._router.address, encrypted=self._router.encrypted),
        )

    # --- what the core says

    def _deliver(self, said: list[vev.Effect] | BaseException) -> None:
        """Hand over what the core says, on its thread."""
        self.mailbox.put(said, urgent=not isinstance(said, list) or not all(map(_may_wait, said)))

    def _carry_out(self, effect: vev.Effect, now: float) -> None:
        match effect:
            case vev.Committed(session):
                self._act(self._clients.committed(effect))
                traffic = self._clients.sessions.get(session)
                if traffic is not None:
                    self.stats.committed(traffic.opened, traffic.sent_at, effect)
                    traffic.sent_at = effect.at
            case vev.ToDrafter():
                self._drafters.send(effect)
            case vev.ToClient():
                self._act(self._clients.hear(effect))
            case vev.Ran():
                rounds = self.stats.ran(effect)
                if logs.least <= DEBUG:
                    _log_step(effect, rounds)
            case vev.Solve(session, inputs, old):
                self._policies.submit(solve, inputs, old).add_done_callback(
                    partial(self._solved, session)
                )
            case vev.Began():
                self.stats.began(effect)
                self._act(self._clients.began(effect))
            case vev.SessionEnded():
                if not effect.again:
                    self.stats.ended(effect)
                self._act(self._clients.ended(effect))
            case vev.RequestRefused(client, error):
                self._act(self._clients.refuse(client, error))
            case vev.Forgotten(session):
                self._clients.sessions.pop(session, None)
            case vev.CoreReport():
                self._report = effect
                self._drafters.step_s = effect.step_s
                if self._stats_orders:
                    self._stats_orders.pop(0)[1].tell(self.snapshot(now))
            case vev.Noted():
                note(effect)
            case _:
                assert_never(effect)

    def _act(self, effects: Sequence[ClientsEffect]) -> None:
        """Carry out what was decided about requests."""
        for effect in effects:
            match effect:
                case Reply(client, event):
                    client.on_event(event)
                case Encode(opening):
                    self._prompts.add(opening)
                case vev.Opening() | vev.ClientLeft() | vev.ClientPaused():
                    self._tell(effect)
                case _:
                    assert_never(effect)

    def _solved(self, session: int, done: "Future[Policy]") -> None:
        if not done.cancelled():
            self._tell(vev.Solved(session, done.result()))


def _may_wait(effect: vev.Effect) -> bool:
    """Tokens may wait for more of them, but for a text's first."""
    return isinstance(effect, vev.Ran) or (isinstance(effect, vev.Committed) and not effect.first)


def _log_step(step: vev.Ran, rounds: Sequence[vev.Committed]) -> None:
    log.debug(
        "step",
        sessions=[one.session for one in rounds],
        rows=step.rows,
        drafts=sum(len(one.round.drafts) for one in rounds),
        accepted=sum(one.round.accepted for one in rounds),
        draft_n=[one.draft_n for one in rounds],
        seconds=round(step.ended - step.started, 6),
    )


def core_of(
    engine: VerifyEngine, limits: TargetLimits, costs: StepCosts, grace: float
) -> VerifierCore:
    info = engine.info
    capabilities = info.capabilities
    room = info.n_ctx * (1 if capabilities.reuse == "whole" else info.max_sessions)
    part = PREFILL_ROWS if capabilities.width is not None else None
    slots = KVSlots(
        info.max_sessions,
        capabilities.reuse,
        room,
        part,
        offloads=capabilities.offloads,
        guests=info.guests,
        n_ctx=info.n_ctx,
    )
    first = time.monotonic_ns() & 0xFFFFFF  # ids of sessions differ from those before a restart
    return VerifierCore(
        limits,
        costs,
        slots,
        info.n_batch,
        max_sessions=info.max_sessions,
        guests=info.guests,
        first=first,
        grace=grace,
    )


def _log_ignored(tool: str, ignored: Sequence[str]) -> None:
    log.info("tool_schema_ignored", tool=tool, ignored=list(ignored))


class PromptEncoder:
    """Encodes prompts and compiles grammars, on threads of their own; each goes to `deliver`, on
    that thread. Tenants take turns, and what takes long has other threads than what does not.
    limits: the target's. wanted: whether a client still waits; any thread may ask."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: TargetLimits,
        wanted: Callable[[int], bool],
        deliver: Callable[[Encoded], None],
    ) -> None:
        self._tokenizer, self._limits = tokenizer, limits
        self._wanted, self._deliver = wanted, deliver
        self._grammars = Grammars(tokenizer.vocabulary, _log_ignored)
        self._grammars.prepare()
        self._prompts = {most: FairWorker("prompts") for most in (*PROMPT_SIZES, inf)}
        self._quick, self._patient = FairWorker("grammars"), FairWorker("slow grammars")

    def add(self, opening: vev.Opening) -> None:
        """Encode a prompt that is still wanted when its turn comes."""
        size = opening.request.size
        worker = next(worker for most, worker in self._prompts.items() if size <= most)
        self._have_done(worker, opening, self._encoded)

    def close(self, timeout: float) -> bool:
        """Encode no more; return True if the prompts under way were done within `timeout` seconds."""
        self._grammars.close()
        workers = (*self._prompts.values(), self._quick, self._patient)
        return not wait([worker.close() for worker in workers], timeout).not_done

    def _have_done(
        self,
        worker: FairWorker,
        opening: vev.Opening,
        work: Callable[[vev.Opening], Encoded | None],
    ) -> None:
        """Have a worker do its part for a client that still waits then, and deliver what comes of
        it, if anything."""

        def done() -> Encoded | None:
            return work(opening) if self._wanted(opening.client) else None

        cost = opening.request.size
        worker.submit(opening.tenant, cost, done).add_done_callback(partial(self._settle, opening))

    def _settle(self, opening: vev.Opening, done: "Future[Encoded | None]") -> None:
        if done.cancelled():
            return
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
        """Return what has its prompt's ids; None where a grammar is to be compiled next."""
        ids, params = prompt_of(opening.request, self._tokenizer, self._limits.n_ctx)
        request = replace(opening.request, params=params)
        opening = replace(opening, request=request, ids=ids, n_prompt=len(ids))
        if params.grammar is None:
            return opening
        if len(ids) >= self._limits.n_ctx:  # many tools may take long to compile
            raise PromptTooLong.of(len(ids), self._limits.n_ctx)
        self._have_done(self._quick, opening, self._guided_quickly)
        return None

    def _guided_quickly(self, opening: vev.Opening) -> vev.Opening | None:
        """Return what has its grammar; None where that takes longer than most, and so waits for
        others' that do."""
        try:
            return self._guided(opening, patient=False)
        except ChildLate:
            self._have_done(self._patient, opening, self._guided)
            return None

    def _guided(self, opening: vev.Opening, *, patient: bool = True) -> vev.Opening:
        grammar, generated = opening.request.params.grammar, opening.request.generated
        assert grammar is not None, "asked only where there is one"
        constraint = self._grammars.compile(grammar, patient=patient)
        check_resumed(generated, constraint, self._limits)
        return replace(opening, constraint=constraint)
