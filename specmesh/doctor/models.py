"""Models: the bundled pair, the folder of downloaded ones, and those that settings name."""

import re
from dataclasses import dataclass
from pathlib import Path

from specmesh.cli.models import model_path
from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.doctor.settings import RoleSettings
from specmesh.errors import ConfigError
from specmesh.gguf_header import parts, read_headers
from specmesh.hf_directory import read_directory
from specmesh.model_store import entries, human_bytes
from specmesh.paths import bundled, models_dir

GROUP = "models"
BUNDLED = ("target.gguf", "drafter.gguf", "drafter-hf")


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """The folder of models. damaged: names of models whose header cannot be read. error: why it cannot be listed."""

    path: Path
    there: bool
    models: int = 0
    damaged: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model that a daemon's settings name. told: what it is; error: why it cannot be used, None where it can."""

    role: str
    named: str
    told: str = ""
    error: str | None = None


def checks(settings: list[RoleSettings]) -> list[Check]:
    """Look at the models here; `settings` are those of the daemons that have some."""
    missing = tuple(name for name in BUNDLED if _error(Path(bundled(name))) is not None)
    named = [_named(one) for one in settings]
    return [
        judge_bundled(missing),
        judge_folder(_folder(models_dir().absolute())),
        *(judge_model(facts) for facts in named if facts is not None),
    ]


def judge_bundled(missing: tuple[str, ...]) -> Check:
    """The pair that comes along."""
    if missing:
        told = f"cannot be read: {', '.join(missing)}"
        return fail(GROUP, "bundled pair", told, "pip install --force-reinstall --no-deps .  # in the checkout")
    return ok(GROUP, "bundled pair", "there")


def judge_folder(facts: FolderFacts) -> Check:
    """The folder of downloaded models."""
    name = "folder"
    if not facts.there:
        return ok(GROUP, name, f"{facts.path} is not there yet: nothing was pulled")
    if facts.error is not None:
        return fail(GROUP, name, f"{facts.path} cannot be read ({facts.error})", f"chmod u+rwx {facts.path}")
    if facts.damaged:
        told = f"{facts.path}: {', '.join(facts.damaged)} cannot be read as a model"
        return warn(GROUP, name, told, f"specmesh models inspect {facts.damaged[0]}  # then pull it again")
    return ok(GROUP, name, f"{facts.models} in {facts.path}")


def judge_model(facts: ModelFacts) -> Check:
    """A model that settings name."""
    name = f"{facts.role}'s model"
    if facts.error is not None:
        return fail(GROUP, name, facts.error, f"specmesh models list; then set model in {facts.role}.toml")
    return ok(GROUP, name, f"{facts.named}: {facts.told}")


def _error(path: Path) -> str | None:
    """Why this is no model that can be loaded; None where it seems one."""
    try:
        _told(path)
    except (ConfigError, OSError) as error:
        return str(error)
    return None


def _told(path: Path) -> str:
    """What a model is, by its headers; raises ConfigError or OSError."""
    if path.is_dir():
        directory = read_directory(path)
        words = directory.architecture, directory.quantisation, human_bytes(directory.size_bytes)
    else:
        files = parts(path)
        first, *_ = read_headers(path)
        words = first.architecture, first.quantisation, human_bytes(sum(file.stat().st_size for file in files))
    return ", ".join(word for word in words if word)


def _folder(path: Path) -> FolderFacts:
    if not path.exists():
        return FolderFacts(path, there=False)
    try:
        next(path.iterdir(), None)
    except OSError as error:
        return FolderFacts(path, there=True, error=error.strerror or str(error))
    found = entries(path)
    damaged = tuple(entry.name for entry in found if _error(entry.path) is not None)
    return FolderFacts(path, True, len(found), damaged)


def _named(settings: RoleSettings) -> ModelFacts | None:
    """The model that a daemon would load; None where it needs none."""
    named, engine = settings.text("model"), settings.text("engine") or "auto"
    if not named or engine in {"ngram", "sim"}:
        return None
    if named == "bundled":
        return ModelFacts(settings.role, named, "the one that comes along")
    try:
        path = model_path(named, engine) or named
        if not Path(path).exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", path):
            return ModelFacts(settings.role, named, "from the hub, when the daemon starts")
        return ModelFacts(settings.role, named, _told(Path(path)))
    except (ConfigError, OSError) as error:
        return ModelFacts(settings.role, named, error=str(error))
