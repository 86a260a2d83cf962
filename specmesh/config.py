"""Settings of the daemons: frozen, checked once, before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specmesh.api.port import Port
from specmesh.core.vocabulary_match import LEAST_OVERLAP
from specmesh.errors import ConfigError
from specmesh.privacy import check_rpc
from specmesh.ways import endpoint


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
        if self.ctx is not None:
            _at_least("--ctx", self.ctx, 8)
        _at_least("--max-sessions", self.max_sessions, 1)
        if self.threads is not None:
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


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """Settings of `specmesh verifier`.

    insecure:      no keys, although others may reach the address.
    port:          where the API listens besides `socket`.
    keys:          the folder with its keys; None for the usual ones.
    grace:         seconds that a text is kept whose drafter went away.
    max_queue:     most requests that wait for a free session.
    defaults:      fields of a request's body that are used where it leaves them out.
    drain:         seconds that running texts get after SIGTERM.
    """

    model: ModelSettings
    bind: str
    socket: Path
    insecure: bool = False
    port: Port | None = None
    keys: Path | None = None
    grace: float = 30.0
    max_queue: int = 256
    defaults: Mapping[str, object] = field(default_factory=dict)
    drain: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError where keys are given and not wanted, or the queue is shorter than none."""
        _one_of_both(self.keys, self.insecure)
        _at_least("--max-queue", self.max_queue, 0)


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """Settings of `specmesh drafter`; port, insecure, keys, defaults, drain, max_queue: as for a verifier.

    connect: the verifiers' addresses, each once. draft_temperature: of the drafts for sampled texts; None for the
    texts' own.
    """

    model: ModelSettings
    connect: tuple[str, ...]
    socket: Path
    min_vocab_overlap: float = LEAST_OVERLAP
    port: Port | None = None
    insecure: bool = False
    keys: Path | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    draft_temperature: float | None = None
    drain: float = 10.0
    max_queue: int = 256

    def __post_init__(self) -> None:
        """Raise ConfigError for a share that is none, an address that is there twice, where keys are given and not
        wanted, or the queue is shorter than none."""
        _one_of_both(self.keys, self.insecure)
        _at_least("--max-queue", self.max_queue, 0)
        if not self.connect:
            raise ConfigError("no verifier: give --connect tcp://HOST:PORT", "connect")
        ends = [endpoint(address) for address in self.connect]
        for number, address in enumerate(self.connect):
            if ends[number] in ends[:number] and ends[number][1] is not None:
                raise ConfigError(f"--connect {address} is given twice: leave one out", "connect")
        if not 0 < self.min_vocab_overlap <= 1:
            raise ConfigError(
                f"--min-vocab-overlap {self.min_vocab_overlap} is no share: give more than 0, at most 1",
                "min_vocab_overlap",
            )


def _one_of_both(keys: Path | None, insecure: bool) -> None:
    if keys is not None and insecure:
        raise ConfigError("--keys and --insecure-no-auth contradict each other: leave one out", "keys")


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        name = option.removeprefix("--").replace("-", "_")
        raise ConfigError(f"{option} {value} is too small: give {least} or more", name)
