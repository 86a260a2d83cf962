"""The processes: load the model while the API already answers, serve, stop cleanly on a signal."""

import gc
import hashlib
import os
import platform
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

import structlog
import zmq

from specmesh.api.port import Port
from specmesh.config import DrafterSettings, VerifierSettings
from specmesh.core.costs import StepCosts
from specmesh.daemons.api_thread import ApiThread
from specmesh.daemons.backends import DrafterBackend, Loading, VerifierBackend
from specmesh.daemons.calibrate import calibrate
from specmesh.daemons.cost_cache import CostCache, steps_folder
from specmesh.daemons.decision_log import DecisionLog
from specmesh.daemons.drafter import DrafterLoop
from specmesh.daemons.mailbox import Mailbox
from specmesh.daemons.notify import Notifier, Watchdog
from specmesh.daemons.transport import bind_router, connect_dealer
from specmesh.daemons.verifier import Order, VerifierLoop
from specmesh.daemons.vocabulary_cache import VocabularyCache, default_folder
from specmesh.engines.load import load_drafter, load_verifier
from specmesh.errors import SpecmeshError, about
from specmesh.requests import ClientOrder

log = structlog.get_logger("specmesh")

SWITCH_INTERVAL = 2e-4
"""Seconds a thread may keep the interpreter while another waits: at the default of 5 ms the API would stall steps."""

COLLECT_EVERY = 20_000
"""Allocations between two garbage collections: at the default of 700 there are several in a round."""


LOADING_GRACE = 4.0
"""Seconds that loading a model may go on after SIGTERM."""


def on_hangup(reread: Callable[[], str], notifier: Notifier) -> None:
    """SIGHUP: read the settings again; bad ones are told, and change nothing.

    On a thread of its own: a handler that logs would wait for the log it has interrupted.
    """
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()  # the one queue that a handler may put into

    def reload() -> None:
        while heard.get():
            notifier.reloading(time.monotonic())
            try:
                log.info("reloaded", now=reread())
            except Exception as error:  # noqa: BLE001  (whatever is wrong with the file, the daemon goes on)
                log.error("not_reloaded", error=str(error))
            notifier.reloaded()

    threading.Thread(target=reload, name="reload", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda number, _: heard.put(number))


class Stop:
    """SIGTERM and SIGINT: the first asks for a clean end, the second ends at once."""

    def __init__(self, notifier: Notifier) -> None:
        self.asked = False
        self._last = threading.Timer(LOADING_GRACE, os._exit, (0,))
        self._last.daemon = True
        self._notifier = notifier
        self._then: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def then(self, stop: Callable[[], None], wakeup_fd: int) -> None:
        """Call `stop` when asked, and wake the loop that must notice."""
        self._then = stop
        self._last.cancel()
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        if self.asked:
            stop()

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            os._exit(128 + number)
        self.asked = True
        self._notifier.stopping()
        if self._then is not None:
            self._then()
        else:
            self._last.start()  # some libraries cannot be told to stop loading


def serve_verifier(settings: VerifierSettings, reread: Callable[[], str]) -> None:
    """Run a verifier until a signal stops it; raises SpecmeshError where it cannot start.

    The caller holds the `Instance` of its socket.
    reread: called on SIGHUP; reads the settings again and says what of them holds now.
    """
    _tune_interpreter()
    notifier = Notifier()
    on_hangup(reread, notifier)
    stop, context = Stop(notifier), zmq.Context[zmq.Socket[bytes]]()
    mailbox: Mailbox[Order] = Mailbox()
    with about("log_decisions"):
        decisions = DecisionLog(settings.log_decisions) if settings.log_decisions is not None else None
    with about("bind"):
        socket = bind_router(context, settings.bind, settings.insecure)
    if settings.insecure:
        log.warning(
            "wire_not_encrypted", bind=settings.bind, meaning="whoever reaches the port reads and sends prompts"
        )
    loading = Loading("verifier", lambda share, fetched: _told(notifier, share, fetched, stop))
    notifier.loading(0.0)
    backend = VerifierBackend(loading, mailbox)
    try:
        with ApiThread(settings.socket, backend, settings.port):
            engine = _loaded(lambda: load_verifier(settings.model, loading.progress), stop)
            if engine is None:
                return
            costs = StepCosts()
            cache = CostCache(steps_folder(), Path(settings.model.model or ""), f"{engine.info} {settings.model}")
            calibrate(engine, costs, cache.load())
            cache.store(costs.table())
            if decisions is not None:
                decisions.begin(engine.info.model)
            loop = VerifierLoop(_name(), socket, engine, mailbox, costs, decisions)
            stop.then(loop.stop, mailbox.wakeup_fd)
            _hash_in_background(settings.model.model, lambda digest: setattr(loop.stats, "model_hash", digest))
            loop.stats.publish(loop.snapshot(time.monotonic()))
            backend.ready(loop, engine)
            log.info(
                "ready",
                role="verifier",
                bind=settings.bind,
                socket=str(settings.socket),
                model=engine.info.model,
                backend=engine.info.backend,
                **_opened(settings.port),
                speculation=engine.info.can_trim,
                trimming=engine.info.trimming,
            )
            with _watched(loop, notifier, f"{engine.info.model} on {settings.bind}"):
                idle = loop.run()
            cache.store(costs.table())
            if idle:
                engine.close()  # not under a step that still runs
            log.info("stopped", role="verifier")
    finally:
        if decisions is not None:
            decisions.close()
        socket.close(linger=100)
        context.term()
        notifier.close()


def serve_drafter(settings: DrafterSettings, reread: Callable[[], str]) -> None:
    """Run a drafter until a signal stops it; raises SpecmeshError where it cannot start or is refused.

    reread: as for a verifier.
    """
    _tune_interpreter()
    notifier = Notifier()
    on_hangup(reread, notifier)
    stop, context = Stop(notifier), zmq.Context[zmq.Socket[bytes]]()
    mailbox: Mailbox[ClientOrder] = Mailbox()
    loading = Loading("drafter", lambda share, fetched: _told(notifier, share, fetched, stop))
    notifier.loading(0.0)
    backend = DrafterBackend(loading, mailbox, settings.connect)
    with about("connect"):
        connect_dealer(context, settings.connect).close(linger=0)  # a bad address is told before a model is loaded
    try:
        with ApiThread(settings.socket, backend, settings.port):
            engine = _loaded(lambda: load_drafter(settings.model, loading.progress), stop)
            if engine is None:
                return
            loop = DrafterLoop(
                _name(),
                lambda: connect_dealer(context, settings.connect),
                settings.connect,
                engine,
                mailbox,
                settings.min_vocab_overlap,
                VocabularyCache(default_folder()),
            )
            stop.then(loop.stop, mailbox.wakeup_fd)
            loop.stats.publish(loop.snapshot(time.monotonic()))
            backend.ready(loop)
            log.info(
                "ready",
                role="drafter",
                connect=settings.connect,
                socket=str(settings.socket),
                model=engine.info.model,
                backend=engine.info.backend,
                **_opened(settings.port),
            )
            try:
                with _watched(loop, notifier, f"{engine.info.model} for {settings.connect}"):
                    loop.run()
            finally:
                loop.close()
                engine.close()
            log.info("stopped", role="drafter")
    finally:
        context.term()
        notifier.close()


T = TypeVar("T")


def _told(notifier: Notifier, share: float, fetched: int, stop: Stop) -> bool:
    """Tell how much of a model is loaded; whether to go on."""
    notifier.loading(share, fetched)
    return not stop.asked


@contextmanager
def _watched(loop: VerifierLoop | DrafterLoop, notifier: Notifier, status: str) -> Iterator[None]:
    """While the loop runs: ready, and looked after."""
    watchdog = Watchdog(lambda: loop.progress, notifier)
    notifier.ready(status)
    try:
        yield
    finally:
        watchdog.close()


def _opened(port: Port | None) -> dict[str, object]:
    """What the log says of the API's port."""
    return {} if port is None else {"http": f"{port.host}:{port.port}", "keys": len(port.keys.current)}


def _loaded(load: Callable[[], T], stop: Stop) -> T | None:
    """The loaded model; None where a signal ended the loading."""
    try:
        with about("model"):
            return load()
    except SpecmeshError:
        if stop.asked:
            return None
        raise


def _tune_interpreter() -> None:
    """Short turns for threads, rare collections: a round takes a fraction of a millisecond."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.set_threshold(COLLECT_EVERY)


def _name() -> str:
    """What this machine is called in stats and logs."""
    return f"{platform.node() or 'unknown'}:{os.getpid()}"


def _hash_in_background(model: str | None, tell: Callable[[str], None]) -> None:
    """SHA-256 of the model file, which takes minutes for a large one, without holding anything up."""
    path = Path(model or "")
    if path.is_file():
        threading.Thread(target=lambda: tell(_sha256(path)), name="hash", daemon=True).start()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
