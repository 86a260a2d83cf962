"""Python, specmesh, and the engines: which are installed, and what they can compute with."""

import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from specmesh import __version__
from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.errors import ConfigError

GROUP = "software"
LEAST_PYTHON = (3, 11)

_DRIVERS = {"CUDA": "nvidia-smi", "Vulkan": "vulkaninfo --summary", "Metal": "system_profiler SPDisplaysDataType"}
"""What shows the GPUs that a driver sees, by llama.cpp's backend."""


@dataclass(frozen=True, slots=True)
class LlamaFacts:
    """version: what is installed, None for nothing. error: why it cannot be used, None where it can.

    backends: what it was built for. gpus: what it sees. nvidia: whether the machine has an NVIDIA driver.
    needed: whether there is no other engine.
    """

    version: str | None
    pinned: str
    needed: bool
    error: str | None = None
    backends: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    nvidia: bool = False


@dataclass(frozen=True, slots=True)
class MlxFacts:
    """The same of MLX; apple: whether this is Apple Silicon. device: where it computes."""

    version: str | None
    apple: bool
    error: str | None = None
    device: str = ""


def checks() -> list[Check]:
    """Look at this process's Python."""
    return [
        judge_python(sys.version_info[:3], sys.executable),
        ok(GROUP, "specmesh", f"{__version__} in {Path(__file__).parents[1]}"),
        judge_llama(_llama()),
        judge_mlx(_mlx()),
    ]


def judge_python(found: tuple[int, ...], executable: str) -> Check:
    """The interpreter's version."""
    told = f"{'.'.join(map(str, found))} at {executable}"
    if found < LEAST_PYTHON:
        return fail(GROUP, "python", told, "install Python 3.11 or later, and specmesh with it")
    return ok(GROUP, "python", told)


def judge_llama(facts: LlamaFacts) -> Check:
    """llama-cpp-python: what it is, what it was built for, what it sees."""
    name = "llama.cpp"
    if facts.version is None:
        if facts.needed:
            return warn(GROUP, name, "not installed, and no MLX either", "pip install 'specmesh[llama]'")
        return ok(GROUP, name, "not installed; only GGUF models need it")
    told = f"llama-cpp-python {facts.version}"
    if facts.version != facts.pinned:
        fix = f"pip install 'llama-cpp-python=={facts.pinned}'"
        return fail(GROUP, name, f"{told}, specmesh needs {facts.pinned}", fix)
    if facts.error is not None:
        return fail(GROUP, name, facts.error, "pip install --force-reinstall --no-cache-dir '.[llama]'")
    told += f", built for {', '.join(facts.backends)}"
    if facts.gpus:
        return ok(GROUP, name, f"{told}; sees {', '.join(facts.gpus)}")
    if facts.nvidia and not {"CUDA", "Vulkan"} & set(facts.backends):
        fix = "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir '.[llama]'"
        return warn(GROUP, name, f"{told}; the NVIDIA GPU here is not used", fix)
    if set(facts.backends) - {"CPU", "BLAS", "RPC"}:
        tool = next((_DRIVERS[name] for name in facts.backends if name in _DRIVERS), "specmesh verifier --gpu required")
        return warn(GROUP, name, f"{told}; sees no GPU", f"{tool}  # does the driver see one?")
    return ok(GROUP, name, f"{told}; no GPU")


def judge_mlx(facts: MlxFacts) -> Check:
    """MLX: installed, and where it computes."""
    name = "mlx"
    if facts.version is None:
        if facts.apple:
            return warn(GROUP, name, "not installed; it drafts fastest on Apple Silicon", "pip install 'specmesh[mlx]'")
        return ok(GROUP, name, "not installed; it is for Apple Silicon")
    if facts.error is not None:
        return fail(GROUP, name, facts.error, "pip install --force-reinstall '.[mlx]'")
    told = f"MLX {facts.version}, {facts.device}"
    if facts.apple and facts.device == "CPU":
        return warn(GROUP, name, f"{told}; the GPU is not used", "pip install --force-reinstall '.[mlx]'")
    return ok(GROUP, name, told)


def _llama() -> LlamaFacts:
    from specmesh.engines.llama_library import PINNED, backends, gpu_devices

    nvidia, needed = Path("/dev/nvidiactl").exists(), find_spec("mlx") is None
    installed = _version("llama_cpp_python")
    if installed != PINNED:
        return LlamaFacts(installed, PINNED, needed, nvidia=nvidia)
    try:
        return LlamaFacts(installed, PINNED, needed, None, backends(), gpu_devices(), nvidia)
    except ConfigError as error:
        return LlamaFacts(installed, PINNED, needed, str(error), nvidia=nvidia)


def _mlx() -> MlxFacts:
    from specmesh.engines.mlx_model import default_device

    installed = _version("mlx") if _version("mlx_lm") is not None else None
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    if installed is None:
        return MlxFacts(None, apple)
    try:
        return MlxFacts(installed, apple, None, default_device())
    except ConfigError as error:
        return MlxFacts(installed, apple, str(error))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
