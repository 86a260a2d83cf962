"""Settings of the daemons: frozen, checked once, before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specmesh.api.port import Port
from specmesh.core.vocabulary.match import LEAST_OVERLAP
from specmesh.errors import ConfigError
from specmesh.security.addresses import check_rpc, endpoint


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which engine runs which model, and how.

    engine:     auto (drafters only), llama, mlx, ngram or sim.
    model:      a GGUF file, a Hugging Face directory or hub id; `bundled` for a drafter; None where none is needed.
    ctx:        None means what suits the model.
    threads:    None means one per core.
    gpu_layers: -1 means all.
    chat_template: a file with a Jinja template, instead of the target's own.
    reproducible: a target's steps all have the same number of rows, so that no bit of its text depends on drafts.
    rpc:        HOST:PORT of llama.cpp's RPC servers, whose devices take layers of a target; insecure_rpc: beyond this
                machine too.
    """

    engine: str
    model: str | None
    ctx: int | None = None
    max_sessions: int = 8
    threads: int | None = None
    gpu_layers: int = 0
    gpu_required: bool = False
    chat_template: Path | None = None
    reproducible: bool = False
    rpc: tuple[str, ...] = ()
    insecure_rpc: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that no engine can use."""
        _at_least("--ctx", self.ctx, 8)
        _at_least("--max-sessions", self.max_sessions, 1)
        _at_least("--threads", self.threads, 1)
        _at_least("--gpu-layers", self.gpu_layers, -1)
        for address in self.rpc:
            check_rpc(address, "--rpc", insecure=self.insecure_rpc)
        if self.rpc and not self.gpu_layers:
            raise ConfigError(
                "--rpc has layers put on other machines, and --gpu-layers 0 allows none: leave one out", "rpc"
            )
        if self.engine not in ("auto", "ngram") and not self.model:
            raise ConfigError("no model: give --model FILE, a name of `specmesh models list`, or bundled", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings that both daemons have.

    port:      where the API listens besides `socket`.
    insecure:  no keys, although others may reach the address.
    keys:      the folder with its keys; None for the usual ones.
    max_queue: most requests that wait for a free session.
    defaults:  fields of a request that are used where it leaves them out.
    drain:     seconds that running requests get after SIGTERM.
    """

    model: ModelSettings
    socket: Path
    port: Port | None = None
    insecure: bool = False
    keys: Path | None = None
    max_queue: int = 256
    defaults: Mapping[str, object] = field(default_factory=dict)
    drain: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError where keys are given and not wanted, or the queue is shorter than none."""
        if self.keys is not None and self.insecure:
            raise ConfigError("--keys and --insecure-no-auth contradict each other: leave one out", "keys")
        _at_least("--max-queue", self.max_queue, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings(DaemonSettings):
    """Settings of `specmesh verifier`; grace: seconds that a session is kept whose drafter went away."""

    bind: str
    grace: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings(DaemonSettings):
    """Settings of `specmesh drafter`.

    connect: the verifiers' addresses, each once. draft_temperature: of the drafts for sampled requests; None for the
    requests' own.
    """

    connect: tuple[str, ...]
    min_vocab_overlap: float = LEAST_OVERLAP
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError as for every daemon, and for no address or one that is there twice."""
        DaemonSettings.__post_init__(self)
        if not self.connect:
            raise ConfigError("no verifier: give --connect tcp://HOST:PORT", "connect")
        ends = [endpoint(address) for address in self.connect]
        for number, address in enumerate(self.connect):
            if ends[number] in ends[:number] and ends[number][1] is not None:
                raise ConfigError(f"--connect {address} is given twice: leave one out", "connect")


def _at_least(option: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        name = option.removeprefix("--").replace("-", "_")
        raise ConfigError(f"{option} {value} is too small: give {least} or more", name)
