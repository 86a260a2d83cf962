"""The processes: load the model while the API already answers, serve, stop cleanly on a signal."""

import gc
import hashlib
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

import structlog
import zmq

from specmesh.config import DrafterSettings, VerifierSettings
from specmesh.core.costs import StepCosts
from specmesh.core.vocabulary import Vocabulary
from specmesh.daemons.api_thread import ApiThread, Instance
from specmesh.daemons.calibrate import calibrate
from specmesh.daemons.cost_cache import CostCache, steps_folder
from specmesh.daemons.decision_log import DecisionLog
from specmesh.daemons.drafter import DrafterLoop
from specmesh.daemons.mailbox import Mailbox
from specmesh.daemons.transport import bind_router, connect_dealer
from specmesh.daemons.verifier import Order, VerifierLoop
from specmesh.daemons.vocabulary_cache import VocabularyCache, default_folder
from specmesh.engines.base import VerifyEngine
from specmesh.engines.load import load_drafter, load_verifier
from specmesh.errors import Busy, DaemonUnreachable, SpecmeshError
from specmesh.requests import Cancel, Submit

log = structlog.get_logger("specmesh")

SWITCH_INTERVAL = 2e-4
"""Seconds a thread may keep the interpreter while another waits: at the default of 5 ms the API would stall steps."""

COLLECT_EVERY = 20_000
"""Allocations between two garbage collections: at the default of 700 there are several in a round."""


class Stop:
    """SIGTERM and SIGINT: the first asks for a clean end, the second ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self._then: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def then(self, stop: Callable[[], None], wakeup_fd: int) -> None:
        """Call `stop` when asked, and wake the loop that must notice."""
        self._then = stop
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        if self.asked:
            stop()

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            os._exit(128 + number)
        self.asked = True
        if self._then is not None:
            self._then()


class _Loading:
    """What the API shows before the loop exists."""

    def __init__(self, role: str, stop: Stop) -> None:
        self.role = role
        self.share = 0.0
        self._stop = stop
        self._begun = time.monotonic()

    def progress(self, share: float) -> bool:
        self.share = share
        return not self._stop.asked

    def error(self) -> SpecmeshError:
        return Busy(f"the {self.role} is loading its model ({self.share:.0%}): try again in a moment")

    def stats(self) -> dict[str, object]:
        uptime = round(time.monotonic() - self._begun, 1)
        return {"schema_version": 1, "role": self.role, "loading": round(self.share, 3), "uptime_s": uptime}


class VerifierBackend:
    """The API's view of a verifier."""

    role = "verifier"

    def __init__(self, loading: _Loading, mailbox: Mailbox[Order]) -> None:
        self._loading, self._mailbox = loading, mailbox
        self._vocabulary: Vocabulary | None = None
        self._encode: Callable[[str], list[int]] | None = None
        self.model = ""
        self._loop: VerifierLoop | None = None

    def ready(self, loop: VerifierLoop, engine: VerifyEngine) -> None:
        """Serve from now on."""
        self._vocabulary, self._encode, self.model = engine.vocabulary, engine.encode, engine.info.model
        self._loop = loop

    def not_ready(self) -> SpecmeshError | None:
        """Loading, or nothing."""
        return self._loading.error() if self._loop is None else None

    def vocabulary(self) -> Vocabulary:
        """The target's."""
        assert self._vocabulary is not None, "asked only once ready"
        return self._vocabulary

    def encoder(self) -> Callable[[str], list[int]] | None:
        """The target's tokenizer."""
        return self._encode

    def submit(self, order: Submit | Cancel) -> None:
        """Into the loop's mailbox."""
        self._mailbox.put(order)

    def stats(self) -> dict[str, object]:
        """The loop's newest picture."""
        return self._loading.stats() if self._loop is None else self._loop.stats.latest


class DrafterBackend:
    """The API's view of a drafter: ready while its verifier is there."""

    role = "drafter"

    def __init__(self, loading: _Loading, mailbox: Mailbox[Submit | Cancel], address: str) -> None:
        self._loading, self._mailbox, self._address = loading, mailbox, address
        self._loop: DrafterLoop | None = None

    def ready(self, loop: DrafterLoop) -> None:
        """Serve from now on."""
        self._loop = loop

    @property
    def model(self) -> str:
        """The verifier's model: it is what answers."""
        welcome = self._loop.verifier if self._loop is not None else None
        return welcome.model if welcome is not None else ""

    def not_ready(self) -> SpecmeshError | None:
        """Loading, no verifier, or nothing."""
        if self._loop is None:
            return self._loading.error()
        if self._loop.verifier is None:
            return DaemonUnreachable(
                f"the verifier at {self._address} does not answer: is it running, and reachable from here?"
            )
        if self._loop.vocabulary is None:
            return Busy("the vocabulary is still being fetched from the verifier: try again in a moment")
        return None

    def vocabulary(self) -> Vocabulary:
        """The verifier's."""
        assert self._loop is not None, "asked only once ready"
        assert self._loop.vocabulary is not None, "asked only once ready"
        return self._loop.vocabulary

    def encoder(self) -> Callable[[str], list[int]] | None:
        """None: prompts are encoded by the verifier."""
        return None

    def submit(self, order: Submit | Cancel) -> None:
        """Into the loop's mailbox."""
        self._mailbox.put(order)

    def stats(self) -> dict[str, object]:
        """The loop's newest picture."""
        return self._loading.stats() if self._loop is None else self._loop.stats.latest


def serve_verifier(settings: VerifierSettings) -> None:
    """Run a verifier until a signal stops it; raises SpecmeshError where it cannot start."""
    _tune_interpreter()
    stop, context = Stop(), zmq.Context[zmq.Socket[bytes]]()
    mailbox: Mailbox[Order] = Mailbox()
    instance = Instance(settings.socket)
    decisions = DecisionLog(settings.log_decisions) if settings.log_decisions is not None else None
    socket = bind_router(context, settings.bind, settings.insecure)
    if settings.insecure:
        log.warning(
            "wire_not_encrypted", bind=settings.bind, meaning="whoever reaches the port reads and sends prompts"
        )
    loading = _Loading("verifier", stop)
    backend = VerifierBackend(loading, mailbox)
    try:
        with ApiThread(settings.socket, backend):
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
                speculation=engine.info.can_trim,
                trimming=engine.info.trimming,
            )
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
        instance.close()


def serve_drafter(settings: DrafterSettings) -> None:
    """Run a drafter until a signal stops it; raises SpecmeshError where it cannot start or is refused."""
    _tune_interpreter()
    stop, context = Stop(), zmq.Context[zmq.Socket[bytes]]()
    mailbox: Mailbox[Submit | Cancel] = Mailbox()
    instance = Instance(settings.socket)
    loading = _Loading("drafter", stop)
    backend = DrafterBackend(loading, mailbox, settings.connect)
    connect_dealer(context, settings.connect).close(linger=0)  # a bad address is told before a model is loaded
    try:
        with ApiThread(settings.socket, backend):
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
            )
            try:
                loop.run()
            finally:
                loop.close()
                engine.close()
            log.info("stopped", role="drafter")
    finally:
        context.term()
        instance.close()


T = TypeVar("T")


def _loaded(load: Callable[[], T], stop: Stop) -> T | None:
    """The loaded model; None where a signal ended the loading."""
    try:
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
