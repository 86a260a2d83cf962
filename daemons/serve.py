"""The two daemons: load the model while the API already answers, serve, stop cleanly on a signal."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from specmesh import __version__
from specmesh.api.requests import AskStats, ClientOrder, ModelInfo
from specmesh.api.server import serving_api
from specmesh.config import DrafterSettings, ModelSettings, VerifierSettings
from specmesh.core.chat import Tokenizer
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.snapshot import LoadingSnapshot, Snapshot
from specmesh.daemons.drafter.daemon import DrafterLoop
from specmesh.daemons.link.dealer import Route
from specmesh.daemons.link.sockets import bind_router
from specmesh.daemons.runtime.loops import ModelThread
from specmesh.daemons.runtime.process import DaemonProcess
from specmesh.daemons.verifier.daemon import VerifierLoop
from specmesh.engines.base import DraftEngine, Progress, VerifyEngine
from specmesh.engines.load import calibrate, load_drafter, load_verifier
from specmesh.errors import SpecmeshError, Starting
from specmesh.models import parts
from specmesh.security.curve import ZapGuard
from specmesh.security.keys import KeyFolder, find_keys

log = structlog.get_logger("specmesh")

HASHED_BLOCKS = 64  # of each file of a model: 18 ms where they were cached, else 250
BLOCK = 2**16  # bytes

Loop = VerifierLoop | DrafterLoop
En = TypeVar("En", VerifyEngine, DraftEngine)


class LoopBackend:
    """The API's view of a daemon; `loop` is None while the model loads."""

    def __init__(self, role: str, process: DaemonProcess) -> None:
        self.role, self._process = role, process
        self.loop: Loop | None = None
        self._share = 0.0
        self._begun = time.monotonic()

    def progress(self, share: float) -> None:
        """Note the share of a model that is loaded."""
        self._share = share
        self._process.notifier.loading(share)

    @property
    def models(self) -> tuple[str, ...]:
        return self.loop.models if self.loop is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        if self.loop is None:
            return Starting(
                f"the {self.role} is loading its model ({self._share:.0%})", "try again in a moment"
            )
        try:
            self.loop.served("")
        except SpecmeshError as error:
            return error
        return None

    def served(self, name: str) -> ModelInfo:
        assert self.loop is not None, "asked only once ready"
        return self.loop.served(name)

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.loop is not None, "asked only once ready"
        return self.loop.tokenizer

    def submit(self, order: ClientOrder) -> None:
        assert self.loop is not None, "asked only once ready"
        self.loop.mailbox.put(order)

    async def stats(self) -> Snapshot:
        if self.loop is None:
            up, loading = round(time.monotonic() - self._begun, 1), round(self._share, 3)
            return LoadingSnapshot(
                role=self.role, version=__version__, pid=os.getpid(), uptime_s=up, loading=loading
            )
        made: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.submit(AskStats(made.put_nowait))
        return await made.get()


def serve_verifier(settings: VerifierSettings) -> None:
    """Run a verifier until a signal stops it; raises SpecmeshError where it cannot start. The caller holds the
    `instance_lock` of its socket."""
    with DaemonProcess(settings.drain) as process:
        keys = _keys(settings)
        guard = ZapGuard(process.context, keys) if keys is not None else None
        socket = bind_router(process.context, settings.bind, settings.insecure, guard)
        process.ends.callback(socket.close, linger=100)
        if guard is not None:
            process.ends.callback(guard.stop)

        def made(engine: VerifyEngine, thread: ModelThread) -> VerifierLoop:
            costs = StepCosts()
            process.wait(thread.do(partial(calibrate, engine, costs)))
            file_hash = model_hash(settings.model)
            return VerifierLoop(
                process.name, socket, engine, costs, settings, guard, thread, file_hash
            )

        _serve(process, "verifier", settings, load_verifier, made, keys, bind=settings.bind)


def serve_drafter(settings: DrafterSettings) -> None:
    """Run a drafter until a signal stops it; raises SpecmeshError where it cannot start or is refused."""
    with DaemonProcess(settings.drain) as process:
        keys = _keys(settings)
        routes = [
            Route(process.context, address, settings.insecure, keys) for address in settings.connect
        ]
        for route in routes:
            route.check()  # a bad address, or bad keys, end it before loading

        def made(engine: DraftEngine, thread: ModelThread) -> DrafterLoop:
            return DrafterLoop(process.name, routes, engine, settings, thread)

        _serve(
            process,
            "drafter",
            settings,
            load_drafter,
            made,
            keys,
            connect=", ".join(settings.connect),
        )


def _serve(
    process: DaemonProcess,
    role: str,
    settings: VerifierSettings | DrafterSettings,
    load: Callable[[ModelSettings, Progress], En],
    make: Callable[[En, ModelThread], Loop],
    keys: KeyFolder | None,
    **address: str,
) -> None:
    """Load an engine on its thread, make its loop and run that; the API answers all the while."""
    backend = LoopBackend(role, process)
    api = serving_api(settings.socket, backend, settings.port, settings.responses)
    event_loop = process.ends.enter_context(api)
    thread = ModelThread()
    engine = process.wait(thread.do(lambda: load(settings.model, backend.progress)))
    loop = make(engine, thread)
    process.on_stop(loop.stop)
    backend.loop = loop
    info, port = engine.info, settings.port
    http = {"http": f"{port.host}:{port.port}", "keys": len(port.keys)} if port is not None else {}
    facts = (
        address
        | {"socket": str(settings.socket), "backend": info.backend, "trimming": info.trimming}
        | http
    )
    log.info("ready", role=role, encrypted=keys is not None, model=info.model, **facts)
    with process.watched(lambda: loop.progress, f"{info.model} at {', '.join(address.values())}"):
        process.idle = process.wait(asyncio.run_coroutine_threadsafe(loop.serve(), event_loop))
    log.info("stopped", role=role)


def _keys(settings: VerifierSettings | DrafterSettings) -> KeyFolder | None:
    """The keys that the wire is to be used with; None where there are none, or none are wanted."""
    if settings.insecure:
        meaning = "no keys are asked for: whoever reaches the port, or is in between, reads and sends prompts"
        log.warning("wire_not_encrypted", meaning=meaning)
        return None
    return find_keys(settings.keys)


def model_hash(model: ModelSettings) -> str:
    """Return the SHA-256 over a model's files, all parts in their order: the size of each and evenly spread blocks of
    it, the first and the last too; of a simulated model's settings, which are all of it; empty where there is no file.
    By it drafters know verifiers that run the same model. Of files that were quantised or trained apart nearly every
    block differs; only of a few tensors that somebody edited in place may the hash be the same. A verifier that lies
    needs no such file: it may send any hash."""
    path, digest = Path(model.model or ""), hashlib.sha256()
    if model.engine == "sim":
        digest.update(str(model.model).encode())
        return digest.hexdigest()
    if not path.is_file():
        return ""
    for part in parts(path):
        _sample(part, digest.update)
    return digest.hexdigest()


def _sample(path: Path, take: Callable[[bytes], object]) -> None:
    """Give `take` a file's size and blocks."""
    size = path.stat().st_size
    take(size.to_bytes(8, "little"))
    last = max(size - BLOCK, 0)
    with path.open("rb") as file:
        for number in range(HASHED_BLOCKS):
            file.seek(last * number // (HASHED_BLOCKS - 1))
            take(file.read(BLOCK))
