"""The two daemons: they load the model while the API answers, serve, and stop on a signal.

What may fail at once comes first: keys, addresses, the model's file. Then the model loads on its
thread, while this one imports the rest of the daemon, and the API begins to answer.
"""

import asyncio
import gc
import hashlib
import socket as sockets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from specmesh.api.listener import listen_at
from specmesh.config import DrafterSettings, ModelSettings, Port, VerifierSettings, with_keys
from specmesh.daemons.link.names import numbers_here
from specmesh.daemons.link.sockets import bind_router
from specmesh.daemons.runtime.loading import Loading
from specmesh.daemons.runtime.model_thread import ModelThread
from specmesh.daemons.runtime.process import DaemonProcess
from specmesh.engines.base import DraftEngine, EngineInfo, Progress
from specmesh.engines.load import (
    LoadedTarget,
    check_there,
    draft_settings,
    import_engine,
    load_drafter,
    load_target,
)
from specmesh.errors import ConfigError, NotThereYet
from specmesh.free_memory import MIB, free_bytes
from specmesh.llama_options import LlamaOptions
from specmesh.models.files import folder_files, parts
from specmesh.security.addresses import bracketed, check_bind, endpoint, listen
from specmesh.security.curve import Socket, ZapGuard
from specmesh.security.keys import KeyFolder, find_keys
from specmesh.terminal import progress

if TYPE_CHECKING:
    from specmesh.api.server import Api
    from specmesh.daemons.drafter.daemon import DrafterLoop
    from specmesh.daemons.runtime.backend import LoopBackend
    from specmesh.daemons.verifier.daemon import VerifierLoop

log = structlog.get_logger("specmesh")

HASHED_BLOCKS = 64  # of each file of a model: 18 ms if they are cached, else 250 ms
BLOCK = 2**16  # bytes

En = TypeVar("En", LoadedTarget, DraftEngine)
T = TypeVar("T")


def serve_verifier(settings: VerifierSettings) -> None:
    """Run a verifier until a signal stops it; raise SpecmeshError if it cannot start.

    The caller holds the `instance_lock` of its socket.
    """
    with DaemonProcess(settings.drain, waits=settings.wait) as process:
        serving = Serving[LoadedTarget](process, "verifier", settings)
        keys = serving.keys()
        check_suffix_cache(settings.suffix_cache)
        serving.open_port()
        socket, guard = process.patience.until_there(partial(_bound, process, settings, keys))
        process.ends.callback(socket.close, linger=100)
        if guard is not None:
            process.ends.callback(guard.stop)
        loading = serving.load(partial(_loaded_target, draft=serving.draft_model()))

        from specmesh.core.draft_length.step_costs import StepCosts
        from specmesh.daemons.verifier.daemon import VerifierLoop
        from specmesh.engines.steps import calibration_of

        serving.answer()
        hashed = model_hash(loading.model)
        engine, drafter = process.wait(loading.loaded)
        loop = VerifierLoop(
            name=process.name,
            socket=socket,
            engine=engine,
            costs=StepCosts(),
            settings=settings,
            guard=guard,
            thread=loading.thread,
            model_hash=hashed,
            calibration=calibration_of(engine),
            drafter=drafter,
        )
        serving.run(loop, engine.info, encrypted=keys is not None, bind=settings.bind)


def _loaded_target(
    model: ModelSettings, progress: Progress, *, draft: ModelSettings | None
) -> LoadedTarget:
    return load_target(model, draft, progress)


def serve_drafter(settings: DrafterSettings) -> None:
    """Run a drafter until a signal stops it; raise SpecmeshError if it cannot start."""
    from specmesh.daemons.link.dealer import Route

    with DaemonProcess(settings.drain, waits=settings.wait) as process:
        serving = Serving[DraftEngine](process, "drafter", settings)
        keys = serving.keys()
        routes = [
            Route(process.context, address, settings.insecure, keys) for address in settings.connect
        ]
        for route in routes:
            route.check()  # a bad address, or bad keys, end it before loading
        serving.open_port()
        loading = serving.load(load_drafter)

        from specmesh.daemons.drafter.daemon import DrafterLoop

        serving.answer()
        engine = process.wait(loading.loaded)
        loop = DrafterLoop(process.name, routes, engine, settings, loading.thread)
        connect = ", ".join(settings.connect)
        serving.run(loop, engine.info, encrypted=keys is not None, connect=connect)


def check_suffix_cache(mebibytes: int) -> None:
    """Raise ConfigError if earlier outputs would take more memory than is free."""
    free = free_bytes()
    if free is None or mebibytes * MIB <= free:
        return
    reason = f"--suffix-cache {mebibytes} MiB is more than the {free // MIB} MiB of memory that are"
    raise ConfigError(f"{reason} free here", "give less, or 0 for none")


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


@dataclass(frozen=True, slots=True)
class LoadingEngine(Generic[En]):
    """An engine that loads on its thread.

    model: its settings, with the path of its file.
    loaded: the engine, or the error of loading.
    """

    model: ModelSettings
    thread: ModelThread
    loaded: Future[En]


class Serving(Generic[En]):
    """A daemon that starts, then serves.

    Its socket is open from now on. The API answers there from `answer` on, or once something is
    waited for.
    """

    def __init__(
        self, process: DaemonProcess, role: str, settings: VerifierSettings | DrafterSettings
    ) -> None:
        """Open the API's socket. Raises ConfigError."""
        self._process = process
        self._role = role
        self._settings = settings
        self._loading = Loading(process.notifier, process.patience)
        self._listener = listen_at(settings.socket)
        process.ends.callback(settings.socket.unlink, missing_ok=True)
        self._port: tuple[Port, sockets.socket] | None = None
        self._api: Api | None = None
        self._backend: LoopBackend | None = None
        process.patience.before_waiting = self._answer_while_waiting

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
        """Listen at the port, if there is one, once its keys and its address are there."""
        port = self._settings.port
        if port is None:
            return
        port = self._once_there(partial(with_keys, port), f"reading {port.key_file}")
        listener = self._process.patience.until_there(partial(self._listening, port))
        self._port = port, listener
        if self._api is not None:
            self._api.serve_port(port, listener)

    def _once_there(self, work: Callable[[], T], meaning: str) -> T:
        """Return the result of `work` once its file is there, however slow its disk is."""
        patience = self._process.patience
        return patience.until_there(lambda: patience.result_of(work, meaning))

    def _listening(self, port: Port) -> sockets.socket:
        named = partial(numbers_here, port.host, "--http", everywhere=True)
        numbers = self._process.patience.result_of(named, f"--http: looking up {port.host}")
        return listen(numbers[0], port.port, "--http")

    def draft_model(self) -> ModelSettings | None:
        """Return the settings of the draft model beside a target, once its file is there."""
        settings = self._settings
        assert isinstance(settings, VerifierSettings), "only a target has one"
        draft = draft_settings(settings.model, settings.draft_model)
        return None if draft is None else self._there(draft)

    def _there(self, wanted: ModelSettings) -> ModelSettings:
        """Return the settings of a model with the path of its file, once all of it is there."""
        looking = f"looking for {wanted.model or wanted.engine} and all that it needs"
        return self._once_there(partial(check_there, wanted), looking)

    def load(self, load: Callable[[ModelSettings, Progress], En]) -> LoadingEngine[En]:
        """Begin to load an engine, once all that it needs is there."""
        model = self._there(self._settings.model)
        import_engine(model)
        thread = ModelThread()

        def loaded() -> En:
            with progress() as shown:
                return load(model, partial(self._loading.report, shown))

        return LoadingEngine(model, thread, thread.do(loaded))

    def answer(self) -> None:
        """Have the API answer from now on, unless it does already."""
        if self._api is not None:
            return
        from specmesh.api.server import serving_api
        from specmesh.daemons.runtime.backend import LoopBackend

        settings = self._settings
        self._backend = LoopBackend(self._role, self._loading)
        serving = serving_api(
            settings.socket,
            self._backend,
            listener=self._listener,
            responses=settings.responses,
        )
        self._api = self._process.ends.enter_context(serving)
        if self._port is not None:
            self._api.serve_port(*self._port)

    def _answer_while_waiting(self) -> None:
        """Answer, and collect the garbage of answers in a wait that may last for days."""
        if self._process.patience.waiting_for:  # a look that is only slow is a part of the start
            gc.enable()
        self.answer()

    def run(
        self,
        loop: "VerifierLoop | DrafterLoop",
        info: EngineInfo,
        *,
        encrypted: bool,
        **address: str,
    ) -> None:
        """Run a daemon's loop until it ends; address: for the log, by the name of its option."""
        process = self._process
        assert self._api is not None, "it answers before it serves"
        assert self._backend is not None, "it answers before it serves"
        process.on_stop(loop.stop)
        self._backend.loop = loop
        self._note_ready(info, address, encrypted=encrypted)
        status = f"{info.model} at {', '.join(address.values())}"
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
        if self._port is not None:
            port, _ = self._port
            facts["http"] = f"{port.host}:{port.port}"
            facts["keys"] = len(port.keys)
        log.info("ready", role=self._role, encrypted=encrypted, model=info.model, **facts)


def model_hash(model: ModelSettings) -> str:
    """Return the SHA-256 by which drafters know verifiers that run the same model.

    - It covers a model's files, all parts in their order: the size of each and evenly spread blocks
      of it, the first and the last too. Of a Hugging Face folder these are the weights, the
      configuration and the tokenizer.
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
    files = parts(path)
    if model.engine == "mlx":
        files = folder_files(path)
    if not files or not files[0].is_file():
        return ""
    for part in files:
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
