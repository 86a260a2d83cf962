"""The two daemons: load the model while the API already answers, serve, stop cleanly on a signal."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog

from specmesh.api.requests import AskStats, ClientOrder, ModelInfo
from specmesh.api.server import serving_api
from specmesh.config import DrafterSettings, ModelSettings, VerifierSettings
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.snapshot import Snapshot
from specmesh.daemons.drafter.daemon import DrafterLoop, DraftOrder
from specmesh.daemons.link.transport import Route, bind_router, close_dealer
from specmesh.daemons.runtime.loops import Mailbox, ModelThread
from specmesh.daemons.runtime.process import DaemonProcess, Loading
from specmesh.daemons.verifier.daemon import Order, VerifierLoop
from specmesh.engines.base import EngineInfo
from specmesh.engines.load import calibrate, load_drafter, load_verifier
from specmesh.errors import SpecmeshError
from specmesh.logs import leave
from specmesh.security.curve import ZapGuard
from specmesh.security.keys import KeyFolder, find_keys

log = structlog.get_logger("specmesh")


class LoopBackend:
    """The API's view of a daemon; `loop` is None while the model loads."""

    def __init__(self, loading: Loading, submit: Callable[[ClientOrder], None]) -> None:
        self.role, self.submit, self._loading = loading.role, submit, loading
        self.loop: VerifierLoop | DrafterLoop | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return self.loop.models if self.loop is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        return self.loop.not_ready() if self.loop is not None else self._loading.error()

    def served(self, name: str) -> ModelInfo:
        assert self.loop is not None, "asked only once ready"
        return self.loop.served(name)

    async def stats(self) -> Snapshot:
        if self.loop is None:
            return self._loading.stats()
        made: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.submit(AskStats(made.put_nowait))
        return await made.get()


def serve_verifier(settings: VerifierSettings, reread: Callable[[], str]) -> None:
    """Run a verifier until a signal stops it; raises SpecmeshError where it cannot start.

    The caller holds the `InstanceLock` of its socket.
    reread: called on SIGHUP; reads the settings again and says what of them holds now.
    """
    with DaemonProcess("verifier", reread, settings.drain) as process, ExitStack() as ends:
        mailbox: Mailbox[Order] = Mailbox()
        keys = _keys(settings)
        guard = ZapGuard(process.context, keys) if keys is not None else None
        socket = bind_router(process.context, settings.bind, settings.insecure, guard)
        ends.callback(socket.close, linger=100)
        if guard is not None:
            ends.callback(guard.stop)
        backend = LoopBackend(process.loading, mailbox.put)
        event_loop = ends.enter_context(serving_api(settings.socket, backend, settings.port, settings.defaults))
        thread = ModelThread()
        load = thread.do(lambda: load_verifier(settings.model, process.loading.progress))
        engine = process.loaded(load)
        if engine is None:
            return
        costs = StepCosts()
        process.wait(thread.do(partial(calibrate, engine, costs)))
        loop = VerifierLoop(
            process.name,
            socket,
            engine,
            mailbox,
            costs,
            guard,
            settings.grace,
            settings.max_queue,
            drain=settings.drain,
            explicit_threads=settings.model.threads is not None,
            thread=thread,
        )
        process.stop.then(loop.stop)
        _hash_in_background(settings.model, lambda digest: setattr(loop.stats, "model_hash", digest))
        backend.loop = loop
        can = {"speculation": engine.info.can_trim, "trimming": engine.info.trimming}
        _log_ready("verifier", settings, engine.info, keys, bind=settings.bind, **can)
        with process.watched(lambda: loop.progress, f"{engine.info.model} on {settings.bind}"):
            idle = process.wait(asyncio.run_coroutine_threadsafe(loop.serve(), event_loop))
        if idle:
            engine.close()  # not under a step that still runs
        log.info("stopped", role="verifier")
    if not idle:
        leave(0)  # nor is the library taken down under it


def serve_drafter(settings: DrafterSettings, reread: Callable[[], str]) -> None:
    """Run a drafter until a signal stops it; raises SpecmeshError where it cannot start or is refused.

    reread: as for a verifier.
    """
    with DaemonProcess("drafter", reread, settings.drain) as process, ExitStack() as ends:
        keys = _keys(settings)
        routes = [Route(process.context, address, settings.insecure, keys) for address in settings.connect]
        for route in routes:
            close_dealer(route.open())  # a bad address, or bad keys, are told before loading
        mailbox: Mailbox[DraftOrder] = Mailbox()
        addresses = ", ".join(settings.connect)
        backend = LoopBackend(process.loading, mailbox.put)
        event_loop = ends.enter_context(serving_api(settings.socket, backend, settings.port, settings.defaults))
        thread = ModelThread()
        load = thread.do(lambda: load_drafter(settings.model, process.loading.progress))
        engine = process.loaded(load)
        if engine is None:
            return
        loop = DrafterLoop(
            process.name,
            routes,
            engine,
            mailbox,
            settings.min_vocab_overlap,
            settings.drain,
            explicit_threads=settings.model.threads is not None,
            thread=thread,
        )
        process.stop.then(loop.stop)
        backend.loop = loop
        _log_ready("drafter", settings, engine.info, keys, connect=addresses)
        with process.watched(lambda: loop.progress, f"{engine.info.model} for {addresses}"):
            idle = process.wait(asyncio.run_coroutine_threadsafe(loop.serve(), event_loop))
    log.info("stopped", role="drafter")
    if not idle:
        leave(0)  # a step still runs, and the library is not taken down under it


def _keys(settings: VerifierSettings | DrafterSettings) -> KeyFolder | None:
    """The keys that the wire is to be used with; None where there are none, or none are wanted."""
    if settings.insecure:
        meaning = "no keys are asked for: whoever reaches the port, or is in between, reads and sends prompts"
        log.warning("wire_not_encrypted", meaning=meaning)
        return None
    return find_keys(settings.keys)


def _log_ready(
    role: str, settings: VerifierSettings | DrafterSettings, info: EngineInfo, keys: KeyFolder | None, **more: object
) -> None:
    port, socket, encrypted = settings.port, str(settings.socket), keys is not None
    if port is not None:
        more |= {"http": f"{port.host}:{port.port}", "keys": len(port.keys.current)}
    log.info("ready", role=role, encrypted=encrypted, socket=socket, model=info.model, backend=info.backend, **more)


def _hash_in_background(model: ModelSettings, tell: Callable[[str], None]) -> None:
    """SHA-256 of the model file, without holding anything up; of a simulated model's settings, which are all of it."""
    path = Path(model.model or "")

    def work() -> None:
        with path.open("rb") as file:
            tell(hashlib.file_digest(file, "sha256").hexdigest())

    if model.engine == "sim":
        tell(hashlib.sha256(str(model.model).encode()).hexdigest())
    elif path.is_file():
        threading.Thread(target=work, name="hash", daemon=True).start()
