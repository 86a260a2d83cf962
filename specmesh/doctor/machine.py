"""Checks of this machine: software, models and their vocabularies, sockets and services."""

import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from specmesh import __version__, paths
from specmesh.cli.models import model_path
from specmesh.client import known_sockets, listens
from specmesh.core.vocabulary import match
from specmesh.doctor import Check, fail, ok, warn
from specmesh.doctor.mesh import RoleSettings
from specmesh.engines.llama.library import PINNED, backends, gpu_devices
from specmesh.engines.load import load_tokenizer
from specmesh.engines.mlx.model import default_device
from specmesh.errors import ConfigError
from specmesh.models import entries
from specmesh.models.headers import summary
from specmesh.paths import MAX_SOCKET_PATH, ROLES, SYSTEM_DIR
from specmesh.service import Command, Scope, Service, launchd_service, systemd_service

_BUNDLED = ("target.gguf", "drafter.gguf", "drafter-hf")


# --- software


def software() -> list[Check]:
    return [
        ok("python", f"{platform.python_version()} at {sys.executable}"),
        ok("specmesh", f"{__version__} in {Path(__file__).parents[1]}"),
        _llama(),
        _mlx(),
    ]


def _llama() -> Check:
    name, installed = "llama.cpp", _version("llama_cpp_python")
    if installed is None and find_spec("mlx") is None:
        return warn(name, "not installed, and no MLX either", "pip install 'specmesh[llama]'")
    if installed is None:
        return ok(name, "not installed; only GGUF models need it")
    told, reinstall = f"llama-cpp-python {installed}", "pip install --force-reinstall --no-cache-dir '.[llama]'"
    if installed != PINNED:
        return fail(name, f"{told}, specmesh needs {PINNED}", f"pip install 'llama-cpp-python=={PINNED}'")
    try:
        built, gpus = backends(), gpu_devices()
    except ConfigError as error:
        return fail(name, str(error), reinstall)
    told += f", built for {', '.join(built)}"
    if gpus:
        return ok(name, f"{told}; sees {', '.join(gpus)}")
    if Path("/dev/nvidiactl").exists() and not {"CUDA", "Vulkan"} & set(built):
        return warn(name, f"{told}; the NVIDIA GPU here is not used", f"CMAKE_ARGS=-DGGML_CUDA=on {reinstall}")
    if set(built) - {"CPU", "BLAS", "RPC"}:
        return warn(name, f"{told}; sees no GPU", "specmesh verifier --gpu required  # tells why")
    return ok(name, f"{told}; no GPU")


def _mlx() -> Check:
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    found = _version("mlx") if _version("mlx_lm") is not None else None
    if found is None and apple:
        return warn("mlx", "not installed; it drafts fastest on Apple Silicon", "pip install 'specmesh[mlx]'")
    if found is None:
        return ok("mlx", "not installed; it is for Apple Silicon")
    reinstall = "pip install --force-reinstall '.[mlx]'"
    try:
        device = default_device()
    except ConfigError as error:
        return fail("mlx", str(error), reinstall)
    if apple and device == "CPU":
        return warn("mlx", f"MLX {found}, {device}; the GPU is not used", reinstall)
    return ok("mlx", f"MLX {found}, {device}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- models


def models(settings: Iterable[RoleSettings]) -> list[Check]:
    missing = [name for name in _BUNDLED if _damaged(Path(paths.bundled(name)))]
    told = ok("bundled pair", "there")
    if missing:
        fix = "pip install --force-reinstall --no-deps .  # in the checkout"
        told = fail("bundled pair", f"cannot be read: {', '.join(missing)}", fix)
    named = (_named(one) for one in settings)
    return [told, _folder(paths.models_dir().absolute()), *(check for check in named if check is not None)]


def _folder(path: Path) -> Check:
    if not path.exists():
        return ok("folder", f"{path} is not there yet: nothing was pulled")
    try:
        next(path.iterdir(), None)
    except OSError as error:
        return fail("folder", f"{path} cannot be read ({error.strerror})", f"chmod u+rwx {path}")
    found = entries(path)
    damaged = [entry.name for entry in found if _damaged(entry.path)]
    if damaged:
        told = f"{path}: {', '.join(damaged)} cannot be read as a model"
        return warn("folder", told, f"specmesh models inspect {damaged[0]}  # then pull it again")
    return ok("folder", f"{len(found)} in {path}")


def _named(settings: RoleSettings) -> Check | None:
    """The model that a daemon would load; None where it needs none."""
    name, named, engine = f"{settings.role}'s model", settings.text("model"), settings.text("engine") or "auto"
    if not named or engine in {"ngram", "sim"}:
        return None
    if named == "bundled":
        return ok(name, f"{named}: the one that comes along")
    try:
        path = Path(model_path(named, engine) or named)
        from_hub = not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path))
        return ok(name, f"{named}: {'from the hub, when the daemon starts' if from_hub else _described(path)}")
    except (ConfigError, OSError) as error:
        return fail(name, str(error), f"specmesh models list; then set model in {settings.role}.toml")


def _damaged(path: Path) -> bool:
    try:
        return not _described(path)
    except (ConfigError, OSError):
        return True


def _described(path: Path) -> str:
    found = summary(path, whole=True)
    return ", ".join(filter(None, (found.architecture, found.quantisation, decimal(found.size_bytes))))


# --- vocabularies


def diagnose(model: Path, against: Path, least: float) -> dict[str, Any]:
    """Compare two GGUF files or Hugging Face directories: whether a drafter with `model` would run for a verifier with
    `against`. encoders: None if one of them could not be run. Raise ConfigError where one cannot be read."""
    draft, verifier = load_tokenizer(model), load_tokenizer(against)
    found, encoders = match.compare(draft.vocabulary, verifier.vocabulary, least), None
    if draft.encode is not None and verifier.encode is not None:
        encodings = [(text, draft.encode(text), verifier.encode(text)) for text in match.PROBES]
        probed = match.compare_encodings(draft.vocabulary, verifier.vocabulary, encodings)
        encoders = {"alike": probed.agreed, "compared": probed.compared, "first": probed.first or None}
    return {
        "schema_version": 1,
        "model": str(model),
        "against": str(against),
        "verdict": str(found.verdict),
        "usable": found.verdict is not match.MatchKind.DIFFERENT,
        "meaning": str(found),
        "model_tokens": found.n_draft,
        "against_tokens": found.n_verifier,
        "overlap": found.overlap,
        "min_overlap": found.least,
        "moved": found.moved,
        "only_model": found.only_draft,
        "only_against": found.only_verifier,
        "differences": [{"id": d.id, "model": d.draft, "against": d.verifier} for d in found.differences],
        "encoders": encoders,
    }


def lines(told: dict[str, Any]) -> list[str]:
    """Return what `diagnose` found as text."""
    encoders, probed = "not compared: install the tokenizers package for Hugging Face directories", told["encoders"]
    if probed is not None:
        first = f"; {probed['first']}" if probed["first"] else ""
        encoders = f"{probed['alike']} of {probed['compared']} texts are cut alike{first}"
    result = "these can work together"
    if not told["usable"]:
        result = "this drafter would be refused: take a model of the same family"
    elif probed is not None and probed["alike"] < probed["compared"]:
        result += "; texts are cut differently, so fewer drafts will be accepted"
    elif told["verdict"] == match.MatchKind.PARTIAL:
        share = match.percent(1 - told["overlap"])
        result += f"; drafts end where one of the {share} without a counterpart would be next"
    return [
        f"drafter   {told['model']}",
        f"verifier  {told['against']}",
        f"verdict   {told['verdict']}: {told['meaning']}",
        f"encoders  {encoders}",
        f"result    {result}",
    ]


# --- sockets


def sockets() -> list[Check]:
    checks = [_user_folder(paths.user_runtime_dir())]
    longest = max((paths.default_socket(role) for role in ROLES), key=lambda path: len(os.fsencode(path)))
    if (size := len(os.fsencode(longest))) > MAX_SOCKET_PATH:
        found = f"{longest} has {size} bytes, {MAX_SOCKET_PATH} at most"
        checks.append(fail("path length", found, "export XDG_RUNTIME_DIR=/run/user/$(id -u)"))
    if SYSTEM_DIR.exists():
        checks.append(_system_folder(SYSTEM_DIR))
    return checks + [check for path in known_sockets() if (check := _socket(path)) is not None]


def _user_folder(path: Path) -> Check:
    name, user = "user's folder", os.getuid()
    try:
        # A link of our own leads where we want; one of somebody else's is no folder.
        found = path.stat() if path.lstat().st_uid == user else path.lstat()
    except FileNotFoundError:
        return ok(name, f"{path} is not there yet: the first daemon makes it")
    except OSError as error:
        return fail(name, f"{path} cannot be read ({error.strerror})", f"chmod 700 '{path}'")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return fail(name, f"{path} is no folder", f"rm '{path}'")
    if found.st_uid != user:
        return fail(name, f"{path} belongs to user {found.st_uid}, not to {user}", f"sudo rm -r '{path}'")
    if mode & 0o077:
        judge = fail if mode & 0o022 else warn
        return judge(name, f"{path} is open to others (mode {mode:o})", f"chmod 700 '{path}'")
    return ok(name, f"{path}, private")


def _system_folder(path: Path) -> Check:
    name, mode = "system's folder", path.lstat().st_mode
    if not os.access(path, os.X_OK):
        join = 'sudo usermod --append --groups specmesh "$USER"  # and log in again'
        return warn(name, f"{path} is closed to this user: what runs there is not seen", join)
    told = f"{path} (mode {stat.S_IMODE(mode):o})"
    if stat.S_ISDIR(mode) and not mode & 0o002:
        return ok(name, told)
    return fail(name, f"{told} can be written by anybody", f"sudo chmod o-w '{path}'")


def _socket(path: Path) -> Check | None:
    """Check what lies where a socket belongs; None if this user may not see it."""
    if not os.access(path, os.W_OK):
        return None  # there is none, or another user's daemon, which cannot be told from a dead one
    mode = path.stat().st_mode
    if not stat.S_ISSOCK(mode):
        return fail(path.name, f"{path} is no socket: a daemon cannot listen there", f"rm '{path}'")
    if not listens(path):
        told = f"{path} was left behind by a daemon that is gone; the next one replaces it"
        return warn(path.name, told, f"rm '{path}'")
    if mode & 0o007:
        return fail(path.name, f"{path} is open to everybody", f"chmod 600 '{path}'")
    return ok(path.name, f"{path} takes connections")


# --- services


def services() -> list[Check]:
    planned = launchd_service if sys.platform == "darwin" else systemd_service
    found = [(role, scope, planned(role, scope, "")) for role in ROLES for scope in Scope]
    told = [_service(role, scope, one) for role, scope, one in found if one.files[0].path.exists()]
    return told or [ok("installed", "none")]


def _service(role: str, scope: Scope, service: Service) -> Check:
    logs = " ".join(service.commands["logs"][0])
    if sys.platform == "darwin":
        enabled, state = parse_launchctl(_said(service.commands["status"][0]))
        enable = " ".join(service.commands["start"][-1])
    else:
        control = ("systemctl", *(() if scope is Scope.SYSTEM else ("--user",)))
        enabled, state = parse_systemctl(
            _said((*control, "show", service.name, "--property", "UnitFileState,ActiveState"))
        )
        enable = " ".join((*control, "enable", service.name))
    return judge_service(role, scope, state, enable=None if enabled else enable, logs=logs)


def judge_service(role: str, scope: Scope, state: str, *, enable: str | None, logs: str) -> Check:
    """Judge a service by its state; enable: a command, None if it is enabled; logs: a command that shows them."""
    name, flag = f"{role} ({scope})", " --system" if scope is Scope.SYSTEM else ""
    match state:
        case "failed":
            return fail(name, "failed", logs)
        case "activating":
            return warn(name, "starting, or starting over and over", logs)
        case "unknown":
            return warn(name, "the service manager does not tell", f"specmesh service status {role}{flag}")
        case "active" if enable is not None:
            return warn(name, "runs, and will not start by itself", enable)
        case "active":
            return ok(name, "enabled, active")
    return warn(name, f"installed, {state}", f"specmesh service start {role}{flag}")


def parse_systemctl(text: str) -> tuple[bool, str]:
    """Return (enabled, state) out of `systemctl show`."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    state = values.get("ActiveState", "unknown")
    state = {"reloading": "active", "deactivating": "inactive"}.get(state, state)
    return values.get("UnitFileState") == "enabled", state


def parse_launchctl(text: str) -> tuple[bool, str]:
    """Return (enabled, state) out of `launchctl print`; a job that ended badly and is not running has failed."""
    if not text:
        return False, "inactive"
    state = re.search(r"^\s*state = (.+)$", text, re.MULTILINE)
    code = re.search(r"^\s*last exit code = (\d+)", text, re.MULTILINE)
    if state is None:
        return True, "unknown"
    if state[1] == "running":
        return True, "active"
    return True, "failed" if code is not None and int(code[1]) else "inactive"


def _said(command: Command) -> str:
    """Return what a command prints, nothing where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
