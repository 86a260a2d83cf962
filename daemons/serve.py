"""The two daemons: they load the model while the API answers, serve, and stop on a signal."""

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
from specmesh.api.backend import AskStats, ClientOrder, ModelInfo
from specmesh.api.server import serving_api
from specmesh.config import DrafterSettings, ModelSettings, Port, VerifierSettings, with_keys
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
from specmesh.engines.base import DraftEngine, EngineInfo, Progress, VerifyEngine
from specmesh.engines.load import check_there, load_drafter, load_verifier
from specmesh.engines.steps import calibrate
from specmesh.errors import NotThereYet, SpecmeshError, Starting
from specmesh.llama_options import LlamaOptions
from specmesh.models.files import parts
from specmesh.security.addresses import bracketed, check_bind, endpoint
from specmesh.security.curve import Socket, ZapGuard
from specmesh.security.keys import KeyFolder, find_keys
from specmesh.terminal import Display, progress

log = structlog.get_logger("specmesh")

HASHED_BLOCKS = 64  # of each file of a model: 18 ms if they are cached, else 250 ms
BLOCK = 2**16  # bytes

Loop = VerifierLoop | DrafterLoop
En = TypeVar("En", VerifyEngine, DraftEngine)
T = TypeVar("T")


class LoopBackend:
    """The API's view of a daemon; `loop` is None while the model loads."""

    def __init__(self, role: str, process: DaemonProcess) -> None:
        self.role = role
        self._process = process
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
    def _running(self) -> Loop:
        assert self.loop is not None, "callers wait until it is ready"
        return self.loop

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the models."""
        return self.loop.models if self.loop is not None else ()

    def not_ready(self) -> SpecmeshError | None:
        """Return why no request can be served; None if one can."""
        if self.loop is None and self._waiting_for:
            return Starting(f"the {self.role} waits: {self._waiting_for}", "see its log")
        if self.loop is None:
            loading = f"the {self.role} is loading its model ({self._share:.0%})"
            return Starting(loading, "try again in a moment")
        try:
            self.loop.served("")
        except SpecmeshError as error:
            return error
        return None

    def served(self, name: str) -> ModelInfo:
        """Return the model of this name; raise SpecmeshError if it is not served."""
        return self._running.served(name)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the target's tokenizer; raise NotOffered at a drafter."""
        return self._running.tokenizer

    def submit(self, order: ClientOrder) -> None:
        """Hand an order to the daemon's loop."""
        self._running.mailbox.put(order)

    async def stats(self) -> Snapshot:
        """Return the content of `specmesh stats --json`."""
        if self.loop is None:
            return LoadingSnapshot(
                role=self.role,
                version=__version__,
                pid=os.getpid(),
                uptime_s=round(time.monotonic() - self._begun, 1),
                loading=round(self._share, 3),
                waiting_for=self._waiting_for or None,
            )
        answers: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.submit(AskStats(answers.put_nowait))
        return await answers.get()


def serve_verifier(settings: VerifierSettings) -> None:
    """Run a verifier until a signal stops it; raise SpecmeshError if it cannot start.

    The caller holds the `instance_lock` of its socket.
    """
    with DaemonProcess(settings.drain, waits=settings.wait) as process:
        serving = Serving(process, "verifier", settings)
        keys = serving.keys()
        serving.open_port()
        socket, guard = process.patience.until_there(partial(_bound, process, settings, keys))
        process.ends.callback(socket.close, linger=100)
        if guard is not None:
            process.ends.callback(guard.stop)

        def make(engine: VerifyEngine, model: ModelSettings, thread: ModelThread) -> VerifierLoop:
            costs = StepCosts()
            process.wait(thread.do(partial(calibrate, engine, costs)))
            return VerifierLoop(
                name=process.name,
                socket=socket,
                engine=engine,
                costs=costs,
                settings=settings,
                guard=guard,
                thread=thread,
                model_hash=model_hash(model),
            )

        serving.run(load_verifier, make, keys, bind=settings.bind)


def serve_drafter(settings: DrafterSettings) -> None:
    """Run a drafter until a signal stops it; raise SpecmeshError if it cannot start."""
    with DaemonProcess(settings.drain, waits=settings.wait) as process:
        serving = Serving(process, "drafter", settings)
        keys = serving.keys()
        routes = [
            Route(process.context, address, settings.insecure, keys) for address in settings.connect
        ]
        for route in routes:
            route.check()  # a bad address, or bad keys, end it before loading
        serving.open_port()

        def make(engine: DraftEngine, _: ModelSettings, thread: ModelThread) -> DrafterLoop:
            return DrafterLoop(process.name, routes, engine, settings, thread)

        serving.run(load_drafter, make, keys, connect=", ".join(settings.connect))


def _bound(
    process: DaemonProcess, settings: VerifierSettings, keys: KeyFolder | None
) -> tuple[Socket, ZapGuard | None]:
    """Return a bound ROUTER and its guard; raise NotThereYet if its address is not there."""
    host, port = endpoint(settings.bind)
    check_bind(settings.bind, keyed=keys is not None, insecure=settings.insecure)
    named = partial(numbers_here, host, "--bind", interfaces=True)
    numbers = process.patience.result_of(named, f"--bind: looking up {host}")
    missing = NotThereYet()
    for number in numbers:
        guard = ZapGuard(process.context, keys) if keys is not None else None
        address = f"tcp://{bracketed(number)}:{port}"
        try:
            return bind_router(process.context, address, settings.insecure, guard), guard
        except NotThereYet as error:
            missing = error
    raise missing


class Serving:
    """A daemon whose API answers at its socket from now on."""

    def __init__(
        self, process: DaemonProcess, role: str, settings: VerifierSettings | DrafterSettings
    ) -> None:
        self._process = process
        self._role = role
        self._settings = settings
        self._backend = LoopBackend(role, process)
        serving = serving_api(settings.socket, self._backend, responses=settings.responses)
        self._api = process.ends.enter_context(serving)
        self._port: Port | None = None

    def keys(self) -> KeyFolder | None:
        """Return the keys of the wire, once their folder is there.

        Return None if there are none, or none are wanted.
        """
        settings = self._settings
        if settings.insecure:
            meaning = (
                "no keys are asked for: whoever reaches the port, or is in between, "
                "reads and sends prompts"
            )
            log.warning("wire_not_encrypted", meaning=meaning)
            return None
        return self._once_there(partial(find_keys, settings.keys), f"reading {settings.keys}")

    def open_port(self) -> None:
        """Serve the port, if there is one, once its keys and its address are there."""
        port = self._settings.port
        if port is None:
            return
        port = self._once_there(partial(with_keys, port), f"reading {port.key_file}")
        self._process.patience.until_there(partial(self._serve_port, port))
        self._port = port

    def _once_there(self, work: Callable[[], T], meaning: str) -> T:
        """Return the result of `work` once its file is there, however slow its disk is."""
        patience = self._process.patience
        return patience.until_there(lambda: patience.result_of(work, meaning))

    def _serve_port(self, port: Port) -> None:
        named = partial(numbers_here, port.host, "--http", everywhere=True)
        numbers = self._process.patience.result_of(named, f"--http: looking up {port.host}")
        self._api.serve_port(port, numbers[0])

    def run(
        self,
        load: Callable[[ModelSettings, Progress], En],
        make: Callable[[En, ModelSettings, ModelThread], Loop],
        keys: KeyFolder | None,
        **address: str,
    ) -> None:
        """Load an engine once all that it needs is there, and run the loop that `make` returns.

        keys: of the wire, if they are used. address: for the log, by the name of its option.
        """
        process = self._process
        backend = self._backend
        settings = self._settings
        wanted = settings.model
        check = partial(check_there, wanted)
        looking = f"looking for {wanted.model or wanted.engine} and all that it needs"
        model = self._once_there(check, looking)
        thread = ModelThread()
        with progress() as shown:
            report = partial(_report_loading, backend, shown)
            engine = process.wait(thread.do(lambda: load(model, report)))
        loop = make(engine, model, thread)
        process.on_stop(loop.stop)
        backend.loop = loop
        self._note_ready(engine.info, address, encrypted=keys is not None)
        status = f"{engine.info.model} at {', '.join(address.values())}"
        with process.watched(lambda: loop.progress, status):
            serving = asyncio.run_coroutine_threadsafe(loop.serve(), self._api.loop)
            process.idle = process.wait(serving)
        log.info("stopped", role=self._role)

    def _note_ready(self, info: EngineInfo, address: dict[str, str], *, encrypted: bool) -> None:
        facts: dict[str, object] = {
            **address,
            "socket": str(self._settings.socket),
            "backend": info.backend,
            "n_ctx": info.n_ctx,
            "max_sessions": info.max_sessions,
            **info.kv_cache(),
            "trimming": info.capabilities.trimming,
        }
        options = self._settings.model.llama.given()
        if options:
            facts["options"] = options
        port = self._port
        if port is not None:
            facts["http"] = f"{port.host}:{port.port}"
            facts["keys"] = len(port.keys)
        log.info("ready", role=self._role, encrypted=encrypted, model=info.model, **facts)


def _report_loading(backend: LoopBackend, shown: Display, share: float) -> None:
    """Report the share of a model that is loaded to clients, to the manager and on a terminal."""
    backend.progress(share)
    shown.show("loading the model", share, 1.0)


def model_hash(model: ModelSettings) -> str:
    """Return the SHA-256 by which drafters know verifiers that run the same model.

    - It covers a model's files, all parts in their order: the size of each and evenly spread blocks
      of it, the first and the last too.
    - Nearly every block differs in files that were quantised or trained separately. Only if a few
      tensors were edited in place the hash may be the same.
    - Options that change the output, and adapters with their scales in any order, count too.
      Those that only round differently, such as flash attention, do not.
    - A simulated model has the hash of its settings, a model without files an empty one.
    - A verifier may send any hash: it proves nothing.
    """
    path = Path(model.model or "")
    digest = hashlib.sha256()
    if model.engine == "sim":
        digest.update(str(model.model).encode())
        return digest.hexdigest()
    if not path.is_file():
        return ""
    for part in parts(path):
        _sample(part, digest.update)
    for variation in _variations(model.llama):
        digest.update(variation)
    return digest.hexdigest()


def _variations(options: LlamaOptions) -> list[bytes]:
    """Return what distinguishes a model with these options from the same without any."""
    found = list[bytes]()
    for name, value in sorted(options.changing_output().items()):
        found.append(f"{name} {value}\n".encode())
    adapters = list[bytes]()
    for adapter in options.lora:
        if adapter.scale == 0.0:  # it changes nothing
            continue
        digest = hashlib.sha256()
        _sample(adapter.path, digest.update)
        adapters.append(f"lora {adapter.scale} {digest.hexdigest()}\n".encode())
    return found + sorted(adapters)


def _sample(path: Path, take: Callable[[bytes], object]) -> None:
    """Give `take` a file's size and blocks."""
    size = path.stat().st_size
    take(size.to_bytes(8, "little"))
    last = max(size - BLOCK, 0)
    with path.open("rb") as file:
        for number in range(HASHED_BLOCKS):
            file.seek(last * number // (HASHED_BLOCKS - 1))
            take(file.read(BLOCK))
