"""Settings of the daemons: frozen, checked once, before anything is started."""

import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from specmesh.errors import ConfigError
from specmesh.llama_options import NO_DEVICE, LlamaOptions
from specmesh.paths import check_there, read_text
from specmesh.security.addresses import check_rpc, endpoint, is_loopback, may_be_host

MAX_API_KEYS_BYTES = 64 * 1024
MIN_WINDOW = 64  # tokens of the shortest window
MIN_CTX = 8  # tokens of the shortest context


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The address of the HTTP API.

    keys: keys of clients, who need one of them. Without keys only this machine may connect.
    origins: origins of pages that may call the API from a browser.
    key_file: the file of the keys, if there is one. `with_keys` reads it.
    """

    host: str
    port: int
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    key_file: Path | None = None


def parse_port(
    http: str | None, key_file: Path | None, origins: tuple[str, ...] = ()
) -> Port | None:
    """Return the port of `--http HOST:PORT` and each `--allow-origin`, without its keys yet.

    Raises ConfigError, also for an open port without a file of keys.
    """
    if http is None:
        for option, given in (("--allow-origin", origins), ("--api-key-file", key_file)):
            if given:
                raise ConfigError(f"{option} without --http opens nothing", "give both")
        return None
    host, port = endpoint(f"//{http}")
    if not may_be_host(host) or port is None or "/" in http or "@" in http:
        raise ConfigError(f"--http {http!r} is not HOST:PORT", "write 127.0.0.1:8080")
    if key_file is None and not is_loopback(host):
        reason = f"--http {http} is open to other machines"
        raise ConfigError(reason, "set --api-key-file FILE, or use 127.0.0.1")
    for origin in origins:
        if origin == "*" and key_file is None:
            raise ConfigError("--allow-origin '*' lets every page ask", "set --api-key-file FILE")
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", origin):
            reason = f"--allow-origin {origin!r} is no origin"
            raise ConfigError(reason, "write https://page.example")
    return Port(host=host, port=port, origins=origins, key_file=key_file)


def with_keys(port: Port) -> Port:
    """Return a port with the keys of its file. Raises NotThereYet, or as `read_keys` does."""
    if port.key_file is None:
        return port
    check_there(port.key_file, "--api-key-file")
    return replace(port, keys=read_keys(port.key_file))


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the keys in a file, one per line.

    Raises ConfigError for a file without keys, or one that all users may read.
    """
    text = read_text(path, MAX_API_KEYS_BYTES, "a file of keys")
    if path.stat().st_mode & stat.S_IRWXO:
        reason = f"{path}: everybody on this machine can read the keys"
        raise ConfigError(reason, f"chmod 600 {path}")
    keys = list[str]()
    for line in text.splitlines():
        key = line.strip()
        if key and not key.startswith("#"):
            keys.append(key)
    if not keys or not all(map(str.isascii, keys)):
        raise ConfigError(f"{path}: needs at least one key, plain ASCII, one per line")
    return tuple(keys)


def parse_window(text: str) -> int | None:
    """Return the size of `--window`: None for auto, 0 for full. Raises ConfigError."""
    if text == "auto":
        return None
    if text == "full":
        return 0
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) >= MIN_WINDOW:
        return int(text)
    reason = f"--window {text!r} is no size of a window"
    raise ConfigError(reason, f"write auto, full or a number from {MIN_WINDOW} on")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSize:
    """The size of `--kv-cache`: tokens, or bytes of memory.

    text: as it was written.
    """

    text: str
    cells: int | None = None
    bytes: int | None = None


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_kv_cache(text: str) -> KVCacheSize | None:
    """Return the size of `--kv-cache`; None for auto. Raises ConfigError."""
    if text == "auto":
        return None
    found = re.fullmatch(r"([0-9]{1,15})(?:(\.[0-9]{1,9})?([KMGT])(?:i?B)?)?", text)
    if found is None:
        reason = f"--kv-cache {text!r} is no size"
        raise ConfigError(reason, "write auto, a number of tokens, or memory as 512M or 8G")
    number, fraction, unit = found.groups()
    if unit is None:
        if int(number) < MIN_CTX:
            reason = f"--kv-cache {text} is too little for a text"
            raise ConfigError(reason, f"give {MIN_CTX} tokens or more")
        return KVCacheSize(text=text, cells=int(number))
    size = int(float(number + (fraction or "")) * _UNITS[unit])
    return KVCacheSize(text=text, bytes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The engine, its model and their options.

    engine: auto (drafters only), llama, mlx, ngram or sim.
    model: a GGUF file, a Hugging Face directory or hub id, or `bundled` for a drafter.
    ctx: most ids of a session. None: the default for the model.
    kv_cache: size of the memory that the sessions of a target share. None: by what is free.
    window: ids of a longer text that a draft model reads. None: as many as are worth it. 0: it
        drafts for no longer text.
    threads: CPU threads. None: one per core.
    gpu_layers: layers on GPUs. -1: all. None: all if there is a GPU.
    require_gpu: without a GPU nothing is loaded.
    chat_template: a Jinja file that replaces the target's own template.
    tool_format: the form of the target's calls of tools, if its template does not show it.
    swa_full: layers with a sliding window have a cell for each id, as other layers have. None: if
        that takes little memory.
    reproducible: all steps of a target have the same number of rows, so that no bit of its text
        depends on drafts.
    rpc: HOST:PORT of llama.cpp's RPC servers that take layers of a target.
    insecure_rpc: these may be beyond this machine.
    distributed: MLX's ranks have parts of a target; this process is one of them.
    mtp: a target drafts by its own NextN layers, if it has some.
    stretch: the machine whose step times llama imitates.
    llama: options that only llama.cpp has.
    """

    engine: str
    model: str | None
    ctx: int | None = None
    kv_cache: KVCacheSize | None = None
    window: int | None = None
    max_sessions: int = 8
    threads: int | None = None
    gpu_layers: int | None = 0
    require_gpu: bool = False
    chat_template: Path | None = None
    tool_format: str | None = None
    swa_full: bool | None = None
    reproducible: bool = False
    rpc: tuple[str, ...] = ()
    insecure_rpc: bool = False
    distributed: bool = False
    mtp: bool = False
    stretch: str | None = None
    llama: LlamaOptions = field(default_factory=LlamaOptions)

    def __post_init__(self) -> None:
        if self.window and self.ctx is not None and self.ctx < self.window:
            reason = f"--window {self.window} does not fit into --ctx {self.ctx}"
            raise ConfigError(reason, "leave --ctx out")
        cells = None if self.kv_cache is None else self.kv_cache.cells
        if cells is not None and self.ctx is not None and self.ctx > cells:
            reason = f"--ctx {self.ctx} does not fit into --kv-cache {cells}"
            raise ConfigError(reason, "leave one out")
        if self.engine == "mlx":
            self._check_mlx()
        elif self.distributed:
            raise ConfigError("--distributed is for MLX's ranks", "give --engine mlx")
        if self.stretch and self.engine != "llama":
            raise ConfigError("--stretch is for the demo's models", "give --engine llama")
        for address in self.rpc:
            check_rpc(address, "--rpc", insecure=self.insecure_rpc)
        if self.rpc and self.gpu_layers == 0:
            reason = "--rpc puts layers on other machines, --gpu-layers 0 allows none"
            raise ConfigError(reason, "leave one out")
        if self.require_gpu and self.gpu_layers == 0:
            reason = "--require-gpu wants a GPU, --gpu-layers 0 puts nothing on one"
            raise ConfigError(reason, "leave one out")
        if self.require_gpu and (self.engine in ("ngram", "sim") or not self.model):
            raise ConfigError("--require-gpu is for models, and there is none", "leave it out")
        if self.engine not in ("auto", "ngram") and not self.model:
            remedy = "give --model FILE, a name of `specmesh models list`, or bundled"
            if self.engine == "sim":
                remedy = "give --model settings of the simulated engine (docs/usage.md)"
            raise ConfigError("no model", remedy)
        if self.engine == "ngram" and self.model:
            raise ConfigError("--engine ngram has no --model", "leave one out")
        self.check_llama_options(self.engine)
        self._check_devices()

    def _check_mlx(self) -> None:
        """Raise ConfigError for an option that only llama.cpp has a meaning for."""
        for flag, given in (
            ("--rpc", self.rpc),
            ("--insecure-rpc", self.insecure_rpc),
            ("--swa-full", self.swa_full is not None),
        ):
            if given:
                reason = f"--engine mlx has no {flag}"
                raise ConfigError(reason, "leave out what is for --engine llama")

    def check_llama_options(self, engine: str) -> None:
        """Raise ConfigError for options that this engine has no meaning for."""
        given = self.llama.given()
        if given and engine not in ("auto", "llama"):
            reason = f"--engine {engine} has no {', '.join(given)}"
            raise ConfigError(reason, "leave out what is for --engine llama")

    def _check_devices(self) -> None:
        options = self.llama
        on_devices = options.on_devices()
        if on_devices and self.gpu_layers == 0:
            reason = f"{on_devices[0]} is for layers on a device, --gpu-layers 0 allows none"
            raise ConfigError(reason, "leave one out")
        if options.device == NO_DEVICE:
            for flag, wanted in (
                ("--gpu-layers", self.gpu_layers),
                ("--rpc", self.rpc),
                ("--require-gpu", self.require_gpu),
            ):
                if wanted:
                    reason = f"{flag} wants a device, --device none allows none"
                    raise ConfigError(reason, "leave one out")
        if self.reproducible and len(options.lora) > 1:
            reason = "llama.cpp adds several adapters up in any order, and rounds differently"
            raise ConfigError(reason, "leave --reproducible out, or merge them into one --lora")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings that both daemons have.

    port: the API listens there, and at `socket`.
    insecure: use no keys, although other machines may reach the address.
    keys: the folder of keys. None: the usual ones.
    drain: seconds that running requests get after SIGTERM.
    responses: most answers of /v1/responses that are kept in memory.
    wait: wait for a model, an address or a GPU that is missing.
    """

    model: ModelSettings
    socket: Path
    port: Port | None = None
    insecure: bool = False
    keys: Path | None = None
    drain: float = 10.0
    responses: int = 0
    wait: bool = False

    def __post_init__(self) -> None:
        if self.keys is not None and self.insecure:
            reason = "--keys and --insecure-no-auth contradict each other"
            raise ConfigError(reason, "leave one out")
        engine = self.model.engine
        if engine in ("mlx", "ngram") and self.model.threads is not None:
            raise ConfigError(f"--engine {engine} has no --threads", "leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings(DaemonSettings):
    """Settings of `specmesh verifier`.

    grace: seconds that a session is kept after its drafter went away.
    max_queue: most requests that wait for a session.
    suffix_cache: MiB of memory for earlier outputs of API keys and local users; 0 keeps none.
    draft_model: a model that drafts in this process; None for none.
    """

    bind: str
    draft_model: str | None = None
    grace: float = 30.0
    max_queue: int = 256
    suffix_cache: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings(DaemonSettings):
    """Settings of `specmesh drafter`. connect: the verifiers' addresses, each once."""

    connect: tuple[str, ...]

    def __post_init__(self) -> None:
        DaemonSettings.__post_init__(self)
        if not self.connect:
            raise ConfigError("no verifier", "give --connect tcp://HOST:PORT")
