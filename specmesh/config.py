"""Settings of the daemons: frozen, checked once, before anything is started."""

import re
import stat
from dataclasses import dataclass
from pathlib import Path

from specmesh.errors import ConfigError
from specmesh.paths import read_text
from specmesh.security import check_rpc, endpoint, is_loopback, may_be_host

MAX_API_KEYS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Port:
    """Where to listen. keys: one of them is asked for; none: this machine only. origins: of pages that browsers may let
    ask."""

    host: str
    port: int
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


def parse_port(
    http: str | None, key_file: Path | None, origins: tuple[str, ...] = ()
) -> Port | None:
    """`--http HOST:PORT`, the file with its keys and each `--allow-origin`; raises ConfigError, also for an open port
    without a key."""
    if http is None:
        for option, given in (("--allow-origin", origins), ("--api-key-file", key_file)):
            if given:
                raise ConfigError(f"{option} without --http opens nothing", "give both")
        return None
    host, port = endpoint(f"//{http}")
    if not may_be_host(host) or port is None or "/" in http or "@" in http:
        raise ConfigError(f"--http {http!r} is not HOST:PORT", "write 127.0.0.1:8080")
    keys = read_keys(key_file) if key_file is not None else ()
    if not keys and not is_loopback(host):
        raise ConfigError(
            f"--http {http} is open to other machines", "set --api-key-file FILE, or use 127.0.0.1"
        )
    for origin in origins:
        if origin == "*" and not keys:
            raise ConfigError("--allow-origin '*' lets every page ask", "set --api-key-file FILE")
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*\s]+", origin):
            raise ConfigError(
                f"--allow-origin {origin!r} is no origin", "write https://page.example"
            )
    return Port(host, port, keys, origins)


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one per line; raises ConfigError where it has none, or others may read it."""
    lines = read_text(path, MAX_API_KEYS_BYTES, "a file of keys").splitlines()
    if path.stat().st_mode & stat.S_IRWXO:
        raise ConfigError(
            f"{path}: everybody on this machine can read the keys", f"chmod 600 {path}"
        )
    keys = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
    if not keys or not all(key.isascii() for key in keys):
        raise ConfigError(f"{path}: needs at least one key, plain ASCII, one per line")
    return keys


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which engine runs which model, and how. engine: auto (drafters only), llama, mlx, ngram or
    sim. model: a GGUF file, a Hugging Face directory or hub id, `bundled` for a drafter. ctx:
    None for what suits the model. threads: None for one per core. gpu_layers: -1 for all, None
    for all where there is a GPU; require_gpu: without one nothing is loaded. chat_template: a
    Jinja file instead of the target's own; tool_format: how it calls tools, where its template
    does not show that. reproducible: all steps of a target have the same number of rows, so that
    no bit of its text depends on drafts. rpc: HOST:PORT of llama.cpp's RPC servers that take
    layers of a target; insecure_rpc: beyond this machine too. stretch: the machine whose step
    times llama imitates."""

    engine: str
    model: str | None
    ctx: int | None = None
    max_sessions: int = 8
    threads: int | None = None
    gpu_layers: int | None = 0
    require_gpu: bool = False
    chat_template: Path | None = None
    tool_format: str | None = None
    reproducible: bool = False
    rpc: tuple[str, ...] = ()
    insecure_rpc: bool = False
    stretch: str | None = None

    def __post_init__(self) -> None:
        if self.stretch and self.engine != "llama":
            raise ConfigError("--stretch is for the demo's models", "give --engine llama")
        for address in self.rpc:
            check_rpc(address, "--rpc", insecure=self.insecure_rpc)
        if self.rpc and self.gpu_layers == 0:
            raise ConfigError(
                "--rpc puts layers on other machines, --gpu-layers 0 allows none", "leave one out"
            )
        if self.require_gpu and self.gpu_layers == 0:
            raise ConfigError(
                "--require-gpu wants a GPU, --gpu-layers 0 puts nothing on one", "leave one out"
            )
        if self.require_gpu and (self.engine in ("ngram", "sim") or not self.model):
            raise ConfigError("--require-gpu is for models, and there is none", "leave it out")
        if self.engine not in ("auto", "ngram") and not self.model:
            raise ConfigError(
                "no model", "give --model FILE, a name of `specmesh models list`, or bundled"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings that both daemons have. port: where the API listens besides `socket`. insecure:
    no keys, although others may reach the address. keys: the folder with its keys, None for the
    usual ones. drain: seconds that running requests get after SIGTERM. responses: how many of
    /v1/responses are kept in memory. wait: for what is not there yet."""

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
            raise ConfigError(
                "--keys and --insecure-no-auth contradict each other", "leave one out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings(DaemonSettings):
    """Settings of `specmesh verifier`. grace: seconds that a session is kept whose drafter went away. max_queue: most
    requests that wait for a session."""

    bind: str
    grace: float = 30.0
    max_queue: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings(DaemonSettings):
    """Settings of `specmesh drafter`. connect: the verifiers' addresses, each once."""

    connect: tuple[str, ...]

    def __post_init__(self) -> None:
        DaemonSettings.__post_init__(self)
        if not self.connect:
            raise ConfigError("no verifier", "give --connect tcp://HOST:PORT")
