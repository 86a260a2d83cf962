"""The folder of downloaded models: what lies in it, and which model a name means."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from specmesh.errors import ConfigError, EngineError
from specmesh.models.directory import HfDirectory, is_model, read_directory
from specmesh.models.gguf_header import SPLIT_NAME, GgufHeader, parts, read_header


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
        """From its header; None where that cannot be read."""
        try:
            found = read_header(self.path) if self.kind == "gguf" else read_directory(self.path)
        except ConfigError:
            return None
        return found.quantisation


def entries(root: Path) -> list[Entry]:
    """All models below a folder, by name; none where there is no such folder."""
    return sorted(_found(root), key=lambda entry: entry.name)


def as_json(root: Path, found: Iterable[Entry]) -> dict[str, object]:
    names = ("name", "kind", "size_bytes", "quantisation")
    models = [{name: getattr(one, name) for name in names} | {"path": str(one.path)} for one in found]
    return {"schema_version": 1, "folder": str(root), "models": models}


def lines(found: Iterable[Entry]) -> list[str]:
    rows = [("NAME", "KIND", "SIZE", "QUANTISATION", "PATH")]
    rows += [(e.name, e.kind, human_bytes(e.size_bytes), e.quantisation or "unknown", str(e.path)) for e in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


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


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What is known of a model. notes: why something is not. can_trim: if part of its context can be removed."""

    path: str
    kind: str
    architecture: str | None
    parameters: int | None
    size_bytes: int
    quantisation: str | None
    context: int | None
    vocabulary_size: int | None
    vocabulary_fingerprint: str | None
    can_trim: bool | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {"schema_version": 1} | asdict(self)

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
    found: GgufHeader | HfDirectory
    fingerprint, can_trim, notes = None, None, list[str]()
    if path.is_dir():
        found = read_directory(path)
        kind, parameters, size_bytes, can_trim = "hf", found.parameters, found.size_bytes, found.can_trim
        notes.append("whether it can trim is told by its architecture, not tried")
    else:
        headers = [read_header(part) for part in parts(path)]
        found, kind = headers[0], "gguf"
        parameters, size_bytes = sum(one.parameters for one in headers), sum(one.file_size for one in headers)
    try:
        fingerprint = load_tokenizer(path).vocabulary.fingerprint()
        if kind == "gguf":
            from specmesh.engines.llama.engine import probe_trim

            can_trim = probe_trim(path)
    except (ConfigError, EngineError) as error:
        notes.append(f"{'whether it can trim' if fingerprint else 'the fingerprint'} is unknown: {error}")
    return ModelReport(
        path=str(path),
        kind=kind,
        architecture=found.architecture,
        parameters=parameters,
        size_bytes=size_bytes,
        quantisation=found.quantisation,
        context=found.context,
        vocabulary_size=found.vocabulary_size,
        vocabulary_fingerprint=fingerprint,
        can_trim=can_trim,
        notes=tuple(notes),
    )
