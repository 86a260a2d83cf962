"""The folder of downloaded models: what lies in it, and which model a name means."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specmesh.errors import ConfigError
from specmesh.models.headers import SPLIT_NAME, is_model, summary


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the folder. name: its path from there, with slashes; path: a file, or a directory for kind hf."""

    name: str
    kind: str
    path: Path

    def as_json(self) -> dict[str, object]:
        """Return what `models list --json` prints; None: unknown, because it is damaged."""
        told: dict[str, object] = {"name": self.name, "kind": self.kind, "size_bytes": None, "quantisation": None}
        with suppress(ConfigError):
            found = summary(self.path)
            told |= {"size_bytes": found.size_bytes, "quantisation": found.quantisation}
        return told | {"path": str(self.path)}


def entries(root: Path) -> list[Entry]:
    """All models below a folder, by name; none where there is no such folder."""
    return sorted(_found(root), key=lambda entry: entry.name)


def is_gguf(name: str) -> bool:
    """Whether a file of this name is a GGUF model, or the first part of one."""
    split = SPLIT_NAME.fullmatch(name)
    return name.endswith(".gguf") and not name.startswith(".") and (split is None or int(split["part"]) == 1)


def resolve(value: str, root: Path) -> str:
    """Return the path that `--model VALUE` means: a name in the folder, a path, or the end of exactly one name.

    Raise ConfigError otherwise, with what was tried.
    """
    found = entries(root)
    named = [entry for entry in found if entry.name == value]
    if not named and os.path.exists(value):  # noqa: PTH110 - a folder that may not be read has none
        return value
    alike = named or [entry for entry in found if f"/{entry.name}".endswith((f"/{value}", f"/{value}.gguf"))]
    match alike:
        case [entry]:
            return str(entry.path)
        case []:
            raise ConfigError(
                f"no model {value!r}: tried the {len(found)} names in {root} and the path {Path(value).absolute()}; "
                "`specmesh models list` shows the names"
            )
        case _:
            names = ", ".join(entry.name for entry in alike)
            raise ConfigError(f"{value!r} means {len(alike)} models in {root}: give one of {names}")


def _found(root: Path) -> Iterator[Entry]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        here = Path(folder)
        if is_model(files):
            yield Entry(here.relative_to(root).as_posix(), "hf", here)
        for file in files:
            if is_gguf(file):
                yield Entry((here / file).relative_to(root).as_posix(), "gguf", here / file)


def inspect(path: Path) -> dict[str, Any]:
    """Read a GGUF file's or a model directory's headers; return what --json prints, None for what is unknown.

    Raise ConfigError where it is neither, or damaged.
    """
    if not path.exists():
        raise ConfigError(f"no model at {path}: check the path")
    kind = "hf" if path.is_dir() else "gguf"
    return {"schema_version": 1, "path": str(path), "kind": kind} | asdict(summary(path))


def lines(told: dict[str, Any]) -> list[str]:
    """Return what `inspect` found as text."""
    found = {name.replace("_", " "): value for name, value in told.items() if name != "schema_version"}
    return [f"{name:<17}{'unknown' if value is None else value}" for name, value in found.items()]
