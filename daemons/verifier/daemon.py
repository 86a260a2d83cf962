"""The verifier's I/O: frames and requests become events of its core, what the core says becomes frames and answers."""

import asyncio
import time
from collections.abc import Callable
from typing import assert_never

import structlog
import zmq

from specmesh.api.requests import (
    AskStats,
    Cancel,
    ClientOrder,
    ModelInfo,
    PingPeers,
    Submit,
    refuse,
)
from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.session_context import GRACE
from specmesh.core.snapshot import ReuseSection, VerifierSnapshot
from specmesh.core.statistics import RoundCounts
from specmesh.daemons.link.auth import ZapGuard
from specmesh.daemons.link.frames import to_drafter
from specmesh.daemons.link.router import Router
from specmesh.daemons.runtime.mailbox import Mailbox
from specmesh.daemons.runtime.prompts import EncodedPrompt, PromptEncoder
from specmesh.daemons.runtime.request_queue import MAX_QUEUE, RequestQueue
from specmesh.daemons.verifier.clients import Clients
from specmesh.daemons.verifier.core_thread import CoreSays, CoreThread, Crashed, limits_of
from specmesh.daemons.verifier.drafters import Drafters
from specmesh.daemons.verifier.statistics import VerifierStats
from specmesh.engines.base import VerifyEngine
from specmesh.errors import Busy, WentAway
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.verifier")

REPORT_PATIENCE = 0.25  # seconds that a snapshot waits for the core, which hears nothing during a step
FLUSH_INTERVAL = 0.005
LOOK_INTERVAL = 0.1  # seconds between two looks for what is due
CLOSE_TIMEOUT = 1.0  # seconds that a prompt being encoded, or a step, may hold up the end

NO_REPORT = vev.CoreReport([], {}, 0, 0, 0, 0, None, ReuseSection(0, 0), RoundCounts(), 0.0, 0.0, {})


Order = ClientOrder | EncodedPrompt | CoreSays | Crashed


class VerifierLoop:
    """A verifier. All but the core and the engine runs on the thread that calls `run`.

    grace: seconds that a session is kept for its lost drafter. max_queue: most requests that wait for a session.
    drain: seconds for sessions to finish after `stop`.
    """

    def __init__(
        self,
        name: str,
        socket: "zmq.Socket[bytes]",
        engine: VerifyEngine,
        mailbox: Mailbox[Order],
        costs: StepCosts,
        guard: ZapGuard | None = None,
        grace: float = GRACE,
        max_queue: int = MAX_QUEUE,
        *,
        drain: float = 10.0,
        explicit_threads: bool = False,
    ) -> None:
        self._router, self._mailbox, self._engine = Router(socket, guard), mailbox, engine
        self._prompts = PromptEncoder(engine, mailbox.put)
        self._turns = 0
        self._stopping: float | None = None
        self._told_to_stop = False
        self._drain = drain
        self.stats = VerifierStats(time.monotonic())
        self._report = NO_REPORT
        self._asked: list[tuple[float, AskStats]] = []  # until when they wait
        limits = limits_of(engine)
        self._core = CoreThread(engine, limits, costs, grace, mailbox.put)
        self._clients = Clients(RequestQueue(self._prompts, limits, engine.info.n_seq, max_queue), self._core.tell)
        self._drafters = Drafters(
            name,
            engine,
            limits,
            self._router,
            self._clients,
            self.stats,
            self._core.tell,
            lambda: self._turns,
            explicit_threads=explicit_threads,
        )

    # --- the loop

    _loop: asyncio.AbstractEventLoop
    _ended: asyncio.Future[None]
    _timer: asyncio.TimerHandle | None = None
    _next_frames: asyncio.TimerHandle | None = None  # where some wait to be read

    def run(self) -> bool:
        """`serve`, on an event loop of its own."""
        return asyncio.run(self.serve())

    async def serve(self) -> bool:
        """Serve on the running event loop until stopped and drained; return True where the engine is idle and may be
        freed."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._loop.add_reader(self._mailbox.fileno(), self._guarded, self._hear_orders)
        self._loop.add_reader(self._router.inlet.fd, self._guarded, self._hear_frames)
        self._core.start()
        self._core.tell(vev.ReportAsked())  # what drafters, and whoever asks during a step, are told at first
        self._guarded(self._look)
        try:
            await self._ended
        finally:
            self._loop.remove_reader(self._mailbox.fileno())
            self._loop.remove_reader(self._router.inlet.fd)
            if self._timer is not None:
                self._timer.cancel()
        self._clients.end(WentAway("the verifier is stopping: the text ends here"))
        for _, asked in self._asked:
            self._late(asked)
        self._mailbox.end(self._late)
        self._drafters.send_all(m.Bye())
        return await asyncio.to_thread(self._close)

    def _close(self) -> bool:
        encoded = self._prompts.close(CLOSE_TIMEOUT)
        return self._core.close(CLOSE_TIMEOUT) and encoded

    def _guarded(self, turn: Callable[[], None]) -> None:
        """Take a turn; a defect in it ends the daemon."""
        if self._ended.done():
            return
        try:
            self._turns += 1
            turn()
            if self._router.gate.gone or self._router.behind:
                self._look()
            # its descriptor tells of changes only, and sending may have taken one
            if self._next_frames is None and self._router.inlet.ready():
                pause = self._router.paused(time.monotonic())
                self._next_frames = self._loop.call_later(pause, self._guarded, self._hear_frames)
        except Exception as error:  # noqa: BLE001  (raised anew by `serve`)
            self._ended.set_exception(error)

    def _hear_orders(self) -> None:
        self._mailbox.quiet()
        orders, now = self._mailbox.drain(), time.monotonic()
        for order in orders:
            self._order(order, now)
        if not orders or self._stopping is not None:  # woken for something else
            self._look()

    def _hear_frames(self) -> None:
        if self._next_frames is not None:
            self._next_frames.cancel()
            self._next_frames = None
        self._drafters.receive()

    def _late(self, order: Order) -> None:
        refuse(order, _stopping())
        if isinstance(order, AskStats):
            order.tell(self.snapshot(time.monotonic()))

    @property
    def models(self) -> tuple[str, ...]:
        return (self._engine.info.model,)

    def not_ready(self) -> None:
        return None

    def served(self, _: str) -> ModelInfo:
        return ModelInfo(self._engine.info.model, self._engine.vocabulary)

    @property
    def progress(self) -> int:
        """Changes while the loop and the engine get on; from any thread."""
        return -1 if self._core.stuck or not self._router.guarded else self._turns

    def stop(self) -> None:
        """Take no new sessions and end after the live ones; safe in a signal handler."""
        if self._stopping is None:
            self._stopping = time.monotonic()
            self._mailbox.wake()

    def _drained(self, now: float) -> bool:
        if self._stopping is None:
            return False
        if not self._told_to_stop:
            self._told_to_stop = True
            self._clients.stop(_stopping())
            self._core.tell(vev.Stopping())
        return not self._clients or now >= self._stopping + self._drain

    def _order(self, order: Order, now: float) -> None:
        match order:
            case CoreSays(effects):
                for effect in effects:
                    self._carry_out(effect, now)
            case Submit(request, client):
                self._clients.open(request, client, None, 0, "", now)
            case EncodedPrompt():
                self._clients.encoded(order, now)
            case Cancel(client):
                self._clients.cancel(lambda asked: asked.client is client)
            case PingPeers():
                self._drafters.probe(order, now)
            case AskStats():
                self._asked.append((now + REPORT_PATIENCE, order))
                self._core.tell(vev.ReportAsked(), now)
            case Crashed(error):
                raise error
            case _:
                assert_never(order)

    def _look(self) -> None:
        """Do what is due, and see to it that it is looked for again."""
        now = time.monotonic()
        if self._ended.done():
            return
        if self._drained(now):
            self._ended.set_result(None)
            return
        if self._timer is not None:
            self._timer.cancel()
        pause = FLUSH_INTERVAL if self._router.behind else LOOK_INTERVAL
        self._timer = self._loop.call_later(pause, self._guarded, self._look)
        self._router.flush()
        self._drafters.look(now)
        self._clients.expire(now)
        if not self._clients.live:
            self.stats.throughput.idle()
        while self._asked and now >= self._asked[0][0]:
            self._asked.pop(0)[1].tell(self.snapshot(now))

    def snapshot(self, now: float) -> VerifierSnapshot:
        return self.stats.snapshot(
            self._engine.info,
            self._report,
            list(self._drafters),
            self._router.traffic,
            now,
            self._clients.live,
            self._clients.waiting,
            address=self._router.address,
            encrypted=self._router.encrypted,
        )

    # --- what the core says

    def _carry_out(self, effect: vev.Effect, now: float) -> None:
        match effect:
            case vev.Committed():
                traffic = self._clients.committed(effect)
                if traffic is not None:
                    self.stats.committed(traffic.opened, traffic.sent_at, effect)
                    traffic.sent_at = effect.at
            case vev.ToDrafter(drafter, session, what):
                self._send(drafter, session, what)
            case vev.Ran():
                self.stats.ran(effect)
            case vev.Solve():
                self._core.solve(effect)
            case vev.Began():
                self.stats.began(effect)
                self._clients.began(effect, now)
            case vev.SessionEnded():
                if not effect.again:
                    self.stats.ended(effect)
                    effect.report["drafter"] = self._drafters.name(effect.drafter)
                self._clients.ended(effect, now)
            case vev.RequestRefused(client, error):
                self._clients.refuse(client, error, now)
            case vev.NotHeld(client):
                self._clients.not_held(client, now)
            case vev.Kept(session):
                self._clients.left(session)
            case vev.Forgotten(session):
                self._clients.forgotten(session)
            case vev.Assigned():
                self._assigned(effect)
            case vev.CoreReport():
                self._report = effect
                self._drafters.step_s, self._drafters.row_s = effect.step_s, effect.row_s
                if self._asked:
                    self._asked.pop(0)[1].tell(self.snapshot(now))
            case vev.Noted(name, fields, level):
                getattr(log, level)(name, **fields)
            case _:
                assert_never(effect)

    def _send(
        self, drafter: bytes, session: int, what: ev.Told | ev.Nacked | vev.Announced | vev.Over | vev.LogprobsTold
    ) -> None:
        traffic = self._clients.sessions.get(session)
        for message in to_drafter(session, what):
            size = self._router.send(drafter, message)
            if traffic is not None:
                traffic.bytes_sent += size
                traffic.drafters.add(drafter)

    def _assigned(self, assigned: vev.Assigned) -> None:
        self.stats.drafter_changes[assigned.why] += 1
        if assigned.why in ("better", "silent"):
            name = self._drafters.name(assigned.drafter)
            log.info("drafter_changed", session=assigned.session, drafter=name, why=assigned.why)


def _stopping() -> Busy:
    return Busy("the verifier is stopping: try again when it is back")
