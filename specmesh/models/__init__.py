"""The folder of downloaded models: what lies in it, and which model a name means."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specmesh.errors import ConfigError, EngineError
from specmesh.models.headers import SPLIT_NAME, ModelSummary, is_model, parts, read_directory, read_header, summary


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the folder. name: its path from there, with slashes; path: a file, or a directory for kind hf."""

    name: str
    kind: str
    path: Path

    @property
    def size_bytes(self) -> int:
        files = parts(self.path) if self.kind == "gguf" else [item for item in self.path.iterdir() if item.is_file()]
        return sum(file.stat().st_size for file in files if file.exists())

    @property
    def quantisation(self) -> str | None:
        try:
            return (read_header if self.kind == "gguf" else read_directory)(self.path).quantisation
        except ConfigError:
            return None


def entries(root: Path) -> list[Entry]:
    """All models below a folder, by name; none where there is no such folder."""
    return sorted(_found(root), key=lambda entry: entry.name)


def as_json(root: Path, found: Iterable[Entry]) -> dict[str, object]:
    names = ("name", "kind", "size_bytes", "quantisation")
    models = [{name: getattr(one, name) for name in names} | {"path": str(one.path)} for one in found]
    return {"schema_version": 1, "folder": str(root), "models": models}


def is_gguf(name: str) -> bool:
    """Whether a file of this name is a GGUF model, or the first part of one."""
    split = SPLIT_NAME.fullmatch(name)
    return name.endswith(".gguf") and not name.startswith(".") and (split is None or int(split["part"]) == 1)


def human_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def resolve(value: str, root: Path) -> str:
    """Return the path that `--model VALUE` means: a name in the folder, a path, or the end of exactly one name.

    Raise ConfigError otherwise, with what was tried.
    """
    path = Path(value)
    if path.is_absolute():
        if _exists(path):
            return value
        raise ConfigError(f"no model file {value}: check the path")
    found = entries(root)
    named = [entry for entry in found if entry.name == value]
    if not named and _exists(path):
        return value
    alike = named or [entry for entry in found if f"/{entry.name}".endswith((f"/{value}", f"/{value}.gguf"))]
    match alike:
        case [entry]:
            return str(entry.path)
        case []:
            raise ConfigError(
                f"no model {value!r}: tried the {len(found)} names in {root} and the path {path.absolute()}; "
                "`specmesh models list` shows the names"
            )
        case _:
            names = ", ".join(entry.name for entry in alike)
            raise ConfigError(f"{value!r} means {len(alike)} models in {root}: give one of {names}")


def _exists(path: Path) -> bool:
    """Whether there is such a file; raises ConfigError where this user cannot know."""
    try:
        return path.exists()
    except PermissionError:
        told = "this user may not look there, and a service of the system sees no home: keep models in /srv"
        raise ConfigError(f"the model {path} cannot be read: {told}") from None
    except OSError as error:
        raise ConfigError(f"no model file {path}: {error.strerror}") from None


def _found(root: Path) -> Iterator[Entry]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        here = Path(folder)
        if is_model(files):
            yield Entry(here.relative_to(root).as_posix(), "hf", here)
        for file in files:
            if is_gguf(file):
                yield Entry((here / file).relative_to(root).as_posix(), "gguf", here / file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport(ModelSummary):
    """What is known of a model. can_trim: part of its context can be removed, as loading has shown, a GGUF file only.
    notes: why something is not known."""

    path: str
    kind: str
    vocabulary_fingerprint: str | None = None
    can_trim: bool | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {"schema_version": 1, "path": self.path, "kind": self.kind} | asdict(self)

    def lines(self) -> list[str]:
        rows = {
            "path": self.path,
            "kind": {"gguf": "GGUF file", "hf": "Hugging Face directory"}[self.kind],
            "architecture": self.architecture or "unknown",
            "parameters": "unknown" if self.parameters is None else f"{self.parameters:,}",
            "size": human_bytes(self.size_bytes),
            "quantisation": self.quantisation or "unknown",
            "context": "unknown" if self.context is None else f"{self.context} tokens",
            "vocabulary": "unknown" if self.vocabulary_size is None else f"{self.vocabulary_size} tokens",
            "fingerprint": self.vocabulary_fingerprint or "unknown",
            "can trim": {True: "yes", False: "no", None: "unknown"}[self.can_trim],
        }
        return [f"{name:<14}{value}" for name, value in [*rows.items(), *(("note", note) for note in self.notes)]]


def inspect(path: Path) -> ModelReport:
    """Look at a GGUF file or a model directory. Raise ConfigError where it is neither, or damaged."""
    from specmesh.engines.load import load_tokenizer

    if not path.exists():
        raise ConfigError(f"no model at {path}: check the path")
    report = ModelReport(**asdict(summary(path)), path=str(path), kind="hf" if path.is_dir() else "gguf")
    try:
        report = replace(report, vocabulary_fingerprint=load_tokenizer(path).vocabulary.fingerprint())
        if report.kind == "hf":
            return report
        from specmesh.engines.llama.engine import probe_trim

        return replace(report, can_trim=probe_trim(path))
    except (ConfigError, EngineError) as error:
        what = "whether it can trim" if report.vocabulary_fingerprint else "the fingerprint"
        return replace(report, notes=(f"{what} is unknown: {error}",))
