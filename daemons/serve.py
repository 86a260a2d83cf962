"""The two daemons: load the model while the API already answers, serve, stop cleanly on a signal."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from specmesh import __version__
from specmesh.api.backend import AskStats, ClientOrder, ModelInfo
from specmesh.api.server import serving_api
from specmesh.config import DrafterSettings, ModelSettings, Port, VerifierSettings
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.statistics.snapshot import LoadingSnapshot, Snapshot
from specmesh.core.text.chat import Tokenizer
from specmesh.daemons.drafter.daemon import DrafterLoop
from specmesh.daemons.link.dealer import Route
from specmesh.daemons.link.names import numbers_here
from specmesh.daemons.link.sockets import bind_router
from specmesh.daemons.runtime.loops import ModelThread
from specmesh.daemons.runtime.process import DaemonProcess
from specmesh.daemons.verifier.daemon import VerifierLoop
from specmesh.engines.base import DraftEngine, Progress, VerifyEngine
from specmesh.engines.load import check_there, load_drafter, load_verifier
from specmesh.engines.steps import calibrate
from specmesh.errors import NotThereYet, SpecmeshError, Starting
from specmesh.models.files import parts
from specmesh.security.addresses import bracketed, check_bind, endpoint
from specmesh.security.curve import Socket, ZapGuard
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
    def _waiting_for(self) -> str:
        return self._process.patience.waiting_for

    @property
    def models(self) -> tuple[str, ...]:
        return self.loop.models if self.loop is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        if self.loop is None and self._waiting_for:
            return Starting(f"the {self.role} waits: {self._waiting_for}", "see its log")
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
                role=self.role,
                version=__version__,
                pid=os.getpid(),
                uptime_s=up,
                loading=loading,
                waiting_for=self._waiting_for or None,
            )
        made: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.submit(AskStats(made.put_nowait))
        return await made.get()


def serve_verifier(settings: VerifierSettings) -> None:
    """Run a verifier until a signal stops it; raises SpecmeshError where it cannot start. The caller holds the
    `instance_lock` of its socket."""
    with DaemonProcess(settings.drain, waits=settings.wait) as process:
        keys = _keys(settings)
        serving = Serving(process, "verifier", settings)
        socket, guard = process.patience.until_there(partial(_bound, process, settings, keys))
        process.ends.callback(socket.close, linger=100)
        if guard is not None:
            process.ends.callback(guard.stop)

        def made(engine: VerifyEngine, model: ModelSettings, thread: ModelThread) -> VerifierLoop:
            costs = StepCosts()
            process.wait(thread.do(partial(calibrate, engine, costs)))
            file_hash = model_hash(model)
            return VerifierLoop(
                process.name, socket, engine, costs, settings, guard, thread, file_hash
            )

        serving.run(load_verifier, made, keys, bind=settings.bind)


def serve_drafter(settings: DrafterSettings) -> None:
    """Run a drafter until a signal stops it; raises SpecmeshError if it cannot start."""
    with DaemonProcess(settings.drain, waits=settings.wait) as process:
        keys = _keys(settings)
        routes = [
            Route(process.context, address, settings.insecure, keys) for address in settings.connect
        ]
        for route in routes:
            route.check()  # a bad address, or bad keys, end it before loading
        serving = Serving(process, "drafter", settings)

        def made(engine: DraftEngine, _: ModelSettings, thread: ModelThread) -> DrafterLoop:
            return DrafterLoop(process.name, routes, engine, settings, thread)

        serving.run(load_drafter, made, keys, connect=", ".join(settings.connect))


def _bound(
    process: DaemonProcess, settings: VerifierSettings, keys: KeyFolder | None
) -> tuple[Socket, ZapGuard | None]:
    """Return a bound ROUTER and its guard. Raises NotThereYet if its address is not there."""
    host, port = endpoint(settings.bind)
    check_bind(settings.bind, keyed=keys is not None, insecure=settings.insecure)
    named = partial(numbers_here, host, "--bind", interfaces=True)
    numbers = process.patience.hear(named, f"--bind: looking up {host}")
    for number in numbers[:-1]:
        with suppress(NotThereYet):
            return _bound_to(process, settings, keys, f"tcp://{bracketed(number)}:{port}")
    return _bound_to(process, settings, keys, f"tcp://{bracketed(numbers[-1])}:{port}")


def _bound_to(
    process: DaemonProcess, settings: VerifierSettings, keys: KeyFolder | None, address: str
) -> tuple[Socket, ZapGuard | None]:
    guard = ZapGuard(process.context, keys) if keys is not None else None
    return bind_router(process.context, address, settings.insecure, guard), guard


class Serving:
    """A daemon whose API answers from now on, at the port too once its address is there."""

    def __init__(
        self, process: DaemonProcess, role: str, settings: VerifierSettings | DrafterSettings
    ) -> None:
        self._process, self._role, self._settings = process, role, settings
        self._backend = LoopBackend(role, process)
        serving = serving_api(settings.socket, self._backend, responses=settings.responses)
        self._api = process.ends.enter_context(serving)
        if settings.port is not None:
            process.patience.until_there(partial(self._serve_port, settings.port))

    def _serve_port(self, port: Port) -> None:
        named = partial(numbers_here, port.host, "--http", everywhere=True)
        numbers = self._process.patience.hear(named, f"--http: looking up {port.host}")
        self._api.serve_port(port, numbers[0])

    def run(
        self,
        load: Callable[[ModelSettings, Progress], En],
        make: Callable[[En, ModelSettings, ModelThread], Loop],
        keys: KeyFolder | None,
        **address: str,
    ) -> None:
        """Load an engine on its thread once all that it needs is there, make its loop and run
        that."""
        process, backend, settings = self._process, self._backend, self._settings
        patience, wanted = process.patience, settings.model
        check = partial(check_there, wanted)
        looking = f"looking for {wanted.model or wanted.engine} and all that it needs"
        model = patience.until_there(lambda: patience.hear(check, looking))
        thread = ModelThread()
        engine = process.wait(thread.do(lambda: load(model, backend.progress)))
        loop = make(engine, model, thread)
        process.on_stop(loop.stop)
        backend.loop = loop
        info, port = engine.info, settings.port
        facts = address | {"socket": str(settings.socket), "backend": info.backend}
        facts["trimming"] = info.capabilities.trimming
        http = {} if port is None else {"http": f"{port.host}:{port.port}", "keys": len(port.keys)}
        log.info(
            "ready", role=self._role, encrypted=keys is not None, model=info.model, **facts, **http
        )
        status = f"{info.model} at {', '.join(address.values())}"
        with process.watched(lambda: loop.progress, status):
            serving = asyncio.run_coroutine_threadsafe(loop.serve(), self._api.loop)
            process.idle = process.wait(serving)
        log.info("stopped", role=self._role)


def _keys(settings: VerifierSettings | DrafterSettings) -> KeyFolder | None:
    """The keys that the wire is to be used with; None where there are none, or none are wanted."""
    if settings.insecure:
        meaning = "no keys are asked for: whoever reaches the port, or is in between, reads and sends prompts"
        log.warning("wire_not_encrypted", meaning=meaning)
        return None
    return find_keys(settings.keys)


def model_hash(model: ModelSettings) -> str:
    """Return the SHA-256 over a model's files, all parts in their order: the size of each and
    evenly spread blocks of it, the first and the last too; of a simulated model's settings,
    which are all of it; empty where there is no file. By it drafters know verifiers that run the
    same model. Of files that were quantised or trained apart nearly every block differs; only of
    a few tensors that somebody edited in place may the hash be the same. A verifier that lies
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
