"""The folder of downloaded models: what lies in it, and which model a name means."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from specmesh.errors import ConfigError, NotThereYet
from specmesh.paths import expanded, models_dir

SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""How llama.cpp names the files of one model in parts; it loads them all from the first."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


class Entry(NamedTuple):
    """A GGUF model in the folder. name: its path from there, with slashes; size_bytes: of all its parts."""

    name: str
    size_bytes: int
    path: Path


def entries(root: Path) -> list[Entry]:
    """All models below a folder, by name; none where there is no such folder."""
    found = list[Entry]()
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        here = Path(folder)
        for path in (here / name for name in names if is_gguf(name)):
            size = sum(part.stat().st_size for part in parts(path) if part.exists())
            found.append(Entry(path.relative_to(root).as_posix(), size, path))
    return sorted(found)


def is_gguf(name: str) -> bool:
    """Whether a file of this name is a GGUF model, or the first part of one."""
    split = SPLIT_NAME.fullmatch(name)
    return (
        name.endswith(".gguf")
        and not name.startswith(".")
        and (split is None or int(split["part"]) == 1)
    )


def parts(path: Path) -> list[Path]:
    """The files of a model: the one named, or all parts where its name says that it is one of several."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["parts"])
    return [
        path.with_name(f"{match['stem']}-{part:05}-of-{count:05}.gguf")
        for part in range(1, count + 1)
    ]


def check_files(path: Path) -> None:
    """Raise ConfigError, which names the file, where a part is missing or no file; llama.cpp checks contents."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is not None and int(match["part"]) != 1:
        remedy = f"name the first part, {parts(path)[0].name}"
        raise ConfigError(f"{path} is part {int(match['part'])} of a model", remedy)
    try:
        missing = [
            file.name for file in parts(path) if not file.is_file()
        ]  # opening a FIFO waits for its writer
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if missing:
        lacking = ", ".join(missing[:3])
        raise ConfigError(
            f"{path}: {lacking} is missing, or no file", "name a .gguf file that has all parts"
        )


def located(value: str | None, engine: str) -> str | None:
    """Return the path of a model by its name in `models list`, or by path; or, for MLX, a hub id.
    `bundled` stays. Raises as `resolve` does for anything that is none of them."""
    if not value or value == "bundled" or engine in {"ngram", "sim"}:
        return value
    try:
        return resolve(value, models_dir())
    except ConfigError:
        if engine in {"auto", "mlx"} and _HUB_ID.fullmatch(value):
            return value
        raise


def resolve(value: str, root: Path) -> str:
    """Return the path that `--model VALUE` means: a name in the folder, a path, or the end of
    exactly one name. Raise NotThereYet where the disk that it lies on may be missing,
    ConfigError otherwise, with what was tried."""
    value, found = expanded(value), entries(root)
    named = [entry for entry in found if entry.name == value]
    if not named and os.path.exists(value):  # noqa: PTH110 - a folder that may not be read has none
        return value
    alike = named or [
        entry for entry in found if f"/{entry.name}".endswith((f"/{value}", f"/{value}.gguf"))
    ]
    match alike:
        case [entry]:
            return str(entry.path)
        case []:
            path = Path(value).absolute()
            what = f"no model {value!r}: tried the {len(found)} names in {root} and the path {path}"
            may_come = _may_come(path) and ("/" in value or not found)
            remedy = "`specmesh models list` shows the names"
            raise NotThereYet.of(what, remedy) if may_come else ConfigError(what, remedy)
        case _:
            names = ", ".join(entry.name for entry in alike)
            raise ConfigError(
                f"{value!r} means {len(alike)} models in {root}", f"give one of {names}"
            )


def _may_come(path: Path) -> bool:
    """Return True if a path is missing as if its disk was not mounted: it is a link that leads
    nowhere, or no model lies in its folder. If others lie there, its name is wrong. Raise
    ConfigError for a folder that is closed."""
    try:
        if path.is_symlink():
            return True
        names = os.listdir(path.parent)  # noqa: PTH208 - names are all that is wanted
    except PermissionError as error:
        hint = "homes are hidden from the machine's own services" if path.is_absolute() else ""
        raise ConfigError(f"{path}: {error.strerror}", hint) from None
    except OSError:
        return True
    return not any(map(is_gguf, names))
