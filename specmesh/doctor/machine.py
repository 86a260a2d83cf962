"""Checks of this machine: software, models, sockets and services. What judges is pure."""

import grp
import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from specmesh import __version__, paths
from specmesh.cli.models import model_path
from specmesh.client import known_sockets, listens
from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.doctor.mesh import RoleSettings
from specmesh.engines.llama.library import PINNED, backends, gpu_devices
from specmesh.engines.mlx.model import default_device
from specmesh.errors import ConfigError
from specmesh.models.directory import read_directory
from specmesh.models.gguf_header import parts, read_headers
from specmesh.models.store import entries, human_bytes
from specmesh.paths import MAX_SOCKET_PATH, ROLES, SYSTEM_DIR
from specmesh.service import Command, Scope, Service
from specmesh.service.launchd import launchd_service
from specmesh.service.systemd import systemd_service

LEAST_PYTHON = (3, 11)
MANAGER_TIMEOUT_S = 5.0

_BUNDLED = ("target.gguf", "drafter.gguf", "drafter-hf")
_DRIVERS = {"CUDA": "nvidia-smi", "Vulkan": "vulkaninfo --summary", "Metal": "system_profiler SPDisplaysDataType"}
"""What shows the GPUs that a driver sees, by llama.cpp's backend."""

# --- software


def software() -> list[Check]:
    """Check this process's Python and the engines."""
    return [
        judge_python(sys.version_info[:3], sys.executable),
        ok("software", "specmesh", f"{__version__} in {Path(__file__).parents[1]}"),
        judge_llama(_llama()),
        judge_mlx(_mlx()),
    ]


def judge_python(found: tuple[int, ...], executable: str) -> Check:
    """Judge the interpreter's version."""
    told = f"{'.'.join(map(str, found))} at {executable}"
    if found < LEAST_PYTHON:
        return fail("software", "python", told, "install Python 3.11 or later, and specmesh with it")
    return ok("software", "python", told)


@dataclass(frozen=True, slots=True)
class LlamaFacts:
    """version: what is installed, None for nothing. needed: whether there is no other engine. error: why it cannot be
    used, None where it can. backends: what it was built for. gpus: what it sees. nvidia: whether there is a driver."""

    version: str | None
    needed: bool
    error: str | None = None
    backends: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    nvidia: bool = False


def judge_llama(facts: LlamaFacts) -> Check:
    """Judge llama-cpp-python: what it is, what it was built for, what it sees."""
    name = "llama.cpp"
    if facts.version is None:
        if facts.needed:
            return warn("software", name, "not installed, and no MLX either", "pip install 'specmesh[llama]'")
        return ok("software", name, "not installed; only GGUF models need it")
    told = f"llama-cpp-python {facts.version}"
    if facts.version != PINNED:
        fix = f"pip install 'llama-cpp-python=={PINNED}'"
        return fail("software", name, f"{told}, specmesh needs {PINNED}", fix)
    if facts.error is not None:
        return fail("software", name, facts.error, "pip install --force-reinstall --no-cache-dir '.[llama]'")
    told += f", built for {', '.join(facts.backends)}"
    if facts.gpus:
        return ok("software", name, f"{told}; sees {', '.join(facts.gpus)}")
    if facts.nvidia and not {"CUDA", "Vulkan"} & set(facts.backends):
        fix = "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir '.[llama]'"
        return warn("software", name, f"{told}; the NVIDIA GPU here is not used", fix)
    if set(facts.backends) - {"CPU", "BLAS", "RPC"}:
        tool = next((_DRIVERS[name] for name in facts.backends if name in _DRIVERS), "specmesh verifier --gpu required")
        return warn("software", name, f"{told}; sees no GPU", f"{tool}  # does the driver see one?")
    return ok("software", name, f"{told}; no GPU")


@dataclass(frozen=True, slots=True)
class MlxFacts:
    """As for llama.cpp; apple: whether this is Apple Silicon. device: where it computes."""

    version: str | None
    apple: bool
    error: str | None = None
    device: str = ""


def judge_mlx(facts: MlxFacts) -> Check:
    """Judge MLX: whether it is installed, and where it computes."""
    if facts.version is None:
        if facts.apple:
            told = "not installed; it drafts fastest on Apple Silicon"
            return warn("software", "mlx", told, "pip install 'specmesh[mlx]'")
        return ok("software", "mlx", "not installed; it is for Apple Silicon")
    if facts.error is not None:
        return fail("software", "mlx", facts.error, "pip install --force-reinstall '.[mlx]'")
    told = f"MLX {facts.version}, {facts.device}"
    if facts.apple and facts.device == "CPU":
        return warn("software", "mlx", f"{told}; the GPU is not used", "pip install --force-reinstall '.[mlx]'")
    return ok("software", "mlx", told)


def _llama() -> LlamaFacts:
    installed, needed = _version("llama_cpp_python"), find_spec("mlx") is None
    if installed != PINNED:
        return LlamaFacts(installed, needed)
    try:
        return LlamaFacts(installed, needed, None, backends(), gpu_devices(), Path("/dev/nvidiactl").exists())
    except ConfigError as error:
        return LlamaFacts(installed, needed, str(error))


def _mlx() -> MlxFacts:
    installed = _version("mlx") if _version("mlx_lm") is not None else None
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    try:
        return MlxFacts(installed, apple, None, default_device() if installed is not None else "")
    except ConfigError as error:
        return MlxFacts(installed, apple, str(error))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- models


def models(settings: Iterable[RoleSettings]) -> list[Check]:
    """Check the bundled pair, the folder of downloaded models, and those that settings name."""
    missing = [name for name in _BUNDLED if _damaged(Path(paths.bundled(name)))]
    told = ok("models", "bundled pair", "there")
    if missing:
        again = "pip install --force-reinstall --no-deps .  # in the checkout"
        told = fail("models", "bundled pair", f"cannot be read: {', '.join(missing)}", again)
    return [told, _folder(paths.models_dir().absolute()), *(check for one in settings for check in _named(one))]


def _folder(path: Path) -> Check:
    if not path.exists():
        return ok("models", "folder", f"{path} is not there yet: nothing was pulled")
    try:
        next(path.iterdir(), None)
    except OSError as error:
        return fail("models", "folder", f"{path} cannot be read ({error.strerror})", f"chmod u+rwx {path}")
    found = entries(path)
    damaged = [entry.name for entry in found if _damaged(entry.path)]
    if damaged:
        told = f"{path}: {', '.join(damaged)} cannot be read as a model"
        return warn("models", "folder", told, f"specmesh models inspect {damaged[0]}  # then pull it again")
    return ok("models", "folder", f"{len(found)} in {path}")


def _named(settings: RoleSettings) -> list[Check]:
    """The model that a daemon would load; none where it needs none."""
    name, named, engine = f"{settings.role}'s model", settings.text("model"), settings.text("engine") or "auto"
    if not named or engine in {"ngram", "sim"}:
        return []
    if named == "bundled":
        return [ok("models", name, f"{named}: the one that comes along")]
    try:
        path = Path(model_path(named, engine) or named)
        from_hub = not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path))
        return [ok("models", name, f"{named}: {'from the hub, when the daemon starts' if from_hub else _told(path)}")]
    except (ConfigError, OSError) as error:
        fix = f"specmesh models list; then set model in {settings.role}.toml"
        return [fail("models", name, str(error), fix)]


def _damaged(path: Path) -> bool:
    try:
        _told(path)
    except (ConfigError, OSError):
        return True
    return False


def _told(path: Path) -> str:
    """What a model is, by its headers; raises ConfigError or OSError."""
    if path.is_dir():
        directory = read_directory(path)
        words = directory.architecture, directory.quantisation, human_bytes(directory.size_bytes)
    else:
        first, *_ = read_headers(path)
        size = sum(file.stat().st_size for file in parts(path))
        words = first.architecture, first.quantisation, human_bytes(size)
    return ", ".join(word for word in words if word)


# --- sockets


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder for sockets.

    mode: its permission bits; owner, me: user ids. error: why it cannot be looked at. group: whose members may look
    into it, where this user may not.
    """

    path: Path
    there: bool
    is_folder: bool = True
    owner: int = 0
    me: int = 0
    mode: int = 0o700
    error: str | None = None
    group: str | None = None


def sockets() -> list[Check]:
    """Check the user's folder, the system's where there is one, and the sockets in them."""
    user, system = _socket_folder(paths.user_runtime_dir()), _socket_folder(SYSTEM_DIR)
    told = [judge_user_folder(user)]
    longest = max((paths.default_socket(role) for role in ROLES), key=lambda path: len(os.fsencode(path)))
    if (size := len(os.fsencode(longest))) > MAX_SOCKET_PATH:
        found = f"{longest} has {size} bytes, {MAX_SOCKET_PATH} at most"
        told.append(fail("sockets", "path length", found, "export XDG_RUNTIME_DIR=/run/user/$(id -u)"))
    if system.there:
        told.append(judge_system_folder(system))
    return told + [check for path in known_sockets() for check in _socket(path)]


def judge_user_folder(facts: FolderFacts) -> Check:
    """Judge the folder of this user's sockets: it must be private."""
    name, path = "user's folder", facts.path
    if not facts.there:
        return ok("sockets", name, f"{path} is not there yet: the first daemon makes it")
    if facts.error is not None:
        return fail("sockets", name, f"{path} cannot be read ({facts.error})", f"chmod 700 '{path}'")
    if not facts.is_folder:
        return fail("sockets", name, f"{path} is no folder", f"rm '{path}'")
    if facts.owner != facts.me:
        return fail("sockets", name, f"{path} belongs to user {facts.owner}, not to {facts.me}", f"sudo rm -r '{path}'")
    if facts.mode & 0o022:
        return fail("sockets", name, f"{path} can be written by others (mode {facts.mode:o})", f"chmod 700 '{path}'")
    if facts.mode & 0o055:
        return warn("sockets", name, f"{path} is open to others (mode {facts.mode:o})", f"chmod 700 '{path}'")
    return ok("sockets", name, f"{path}, private")


def judge_system_folder(facts: FolderFacts) -> Check:
    """Judge the folder of the machine's own daemons: its group may look, only its owner may write."""
    name, path = "system's folder", facts.path
    if facts.group is not None:
        told = f"{path} is closed to this user: what runs there is not seen"
        join = f'sudo usermod --append --groups {facts.group} "$USER"  # and log in again'
        return warn("sockets", name, told, join)
    if facts.is_folder and not facts.mode & 0o002:
        return ok("sockets", name, f"{path} (mode {facts.mode:o})")
    return fail("sockets", name, f"{path} can be written by anybody (mode {facts.mode:o})", f"sudo chmod o-w '{path}'")


def _socket_folder(path: Path) -> FolderFacts:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid == os.getuid():
            found = path.stat()  # a link of our own leads where we want; one of somebody else's is no folder
    except FileNotFoundError:
        return FolderFacts(path, there=False)
    except OSError as error:
        return FolderFacts(path, there=True, error=error.strerror or str(error))
    group = None if os.access(path, os.X_OK) else _group(found.st_gid)
    is_folder, mode = stat.S_ISDIR(found.st_mode), stat.S_IMODE(found.st_mode)
    return FolderFacts(path, True, is_folder, found.st_uid, os.getuid(), mode, group=group)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _socket(path: Path) -> list[Check]:
    """A check of what lies where a socket belongs; none for nothing, or for what this user may not see."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return []
    if not os.access(path, os.W_OK):
        return []  # another user's daemon: it cannot be told from a dead one
    if not stat.S_ISSOCK(mode):
        return [fail("sockets", path.name, f"{path} is no socket: a daemon cannot listen there", f"rm '{path}'")]
    if not listens(path):
        told = f"{path} was left behind by a daemon that is gone; the next one replaces it"
        return [warn("sockets", path.name, told, f"rm '{path}'")]
    if mode & 0o007:
        told = f"{path} is open to everybody (mode {stat.S_IMODE(mode):o})"
        return [fail("sockets", path.name, told, f"chmod 600 '{path}'")]
    return [ok("sockets", path.name, f"{path} takes connections")]


# --- services


def services() -> list[Check]:
    """Check each installed service."""
    planned = launchd_service if sys.platform == "darwin" else systemd_service
    found = [(role, scope, planned(role, scope, "")) for role in ROLES for scope in Scope]
    told = [_service(role, scope, one) for role, scope, one in found if one.files[0].path.exists()]
    return told or [ok("services", "installed", "none")]


def _service(role: str, scope: Scope, service: Service) -> Check:
    control = ("systemctl",) if scope is Scope.SYSTEM else ("systemctl", "--user")
    if sys.platform == "darwin":
        told = _said(service.status)
        enabled, state = (False, "inactive") if told is None else parse_launchctl(told)
        enable = " ".join(service.start[-1])
    else:
        told = _said((*control, "show", service.name, "--property", "UnitFileState,ActiveState"))
        enabled, state = (False, "unknown") if told is None else parse_systemctl(told)
        enable = " ".join((*control, "enable", service.name))
    return judge_service(role, scope, state, enable=None if enabled else enable, logs=" ".join(service.logs))


def judge_service(role: str, scope: Scope, state: str, *, enable: str | None, logs: str) -> Check:
    """Judge a service; state: active, inactive, failed, activating or unknown. enable: what enables it, None where it
    is. logs: what shows its log."""
    name, flag = f"{role} ({scope})", " --system" if scope is Scope.SYSTEM else ""
    match state:
        case "failed":
            return fail("services", name, "failed", logs)
        case "activating":
            return warn("services", name, "starting, or starting over and over", logs)
        case "unknown":
            return warn("services", name, "the service manager does not tell", f"specmesh service status {role}{flag}")
        case "active" if enable is not None:
            return warn("services", name, "runs, and will not start by itself", enable)
        case "active":
            return ok("services", name, "enabled, active")
    return warn("services", name, f"installed, {state}", f"specmesh service start {role}{flag}")


def parse_systemctl(text: str) -> tuple[bool, str]:
    """Return (enabled, state) out of `systemctl show`."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    state = values.get("ActiveState", "unknown")
    lasting = {"reloading": "active", "deactivating": "inactive"}
    return values.get("UnitFileState") == "enabled", lasting.get(state, state)


def parse_launchctl(text: str) -> tuple[bool, str]:
    """Return (enabled, state) out of `launchctl print`; a job that ended badly and is not running has failed."""
    state = re.search(r"^\s*state = (.+)$", text, re.MULTILINE)
    code = re.search(r"^\s*last exit code = (\d+)", text, re.MULTILINE)
    if state is None:
        return True, "unknown"
    if state[1] == "running":
        return True, "active"
    return True, "failed" if code is not None and int(code[1]) else "inactive"


def _said(command: Command) -> str | None:
    """What a command of the service manager prints; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MANAGER_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
