"""The folder of downloaded models: its entries, and the model of a name."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from specmesh.errors import ConfigError, NotThereYet
from specmesh.paths import expanded, models_dir

SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""llama.cpp's names for the files of a model in parts; it loads them all from the first."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


class Entry(NamedTuple):
    """A GGUF model in the folder.

    name: its path from the folder, with slashes.
    size_bytes: the size of all its parts.
    """

    name: str
    size_bytes: int
    path: Path


def entries(root: Path) -> list[Entry]:
    """Return all models below a folder, by name; none if the folder does not exist."""
    found = list[Entry]()
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in filter(is_gguf, names):
            path = Path(folder) / name
            size = sum(part.stat().st_size for part in parts(path) if part.exists())
            found.append(Entry(path.relative_to(root).as_posix(), size, path))
    return sorted(found)


def is_gguf(name: str) -> bool:
    """Return True if a file of this name is a GGUF model, or the first part of one."""
    if name.startswith(".") or not name.endswith(".gguf"):
        return False
    split = SPLIT_NAME.fullmatch(name)
    return split is None or int(split["part"]) == 1


def parts(path: Path) -> list[Path]:
    """Return the files of a model: the one named, or all parts if the name is that of a part."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["parts"])
    names = [f"{match['stem']}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]
    return list(map(path.with_name, names))


_OF_FOLDERS = ("config.json", "generation_config.json", "tokenizer.json", "*.safetensors")
"""Names of the files of a Hugging Face model that decide its output."""


def folder_files(path: Path) -> list[Path]:
    """Return the files of a Hugging Face folder that decide its output, or of a hub id's folder.

    There are none if the folder is not here.
    """
    folder = path if path.is_dir() else _cached_folder(path.as_posix())
    found: list[Path] = []
    if folder is not None:
        for name in _OF_FOLDERS:
            found += sorted(folder.glob(name))
    return found


def _cached_folder(hub_id: str) -> Path | None:
    """Return the folder of a hub id in the hub's cache; None if there is none."""
    try:
        # It comes with MLX.
        from huggingface_hub import (  # noqa: PLC0415
            snapshot_download,  # pyright: ignore[reportUnknownVariableType]
        )

        return Path(snapshot_download(hub_id, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def check_files(path: Path) -> None:
    """Raise ConfigError, which names the file, if a part is missing or no file.

    llama.cpp checks contents.
    """
    match = SPLIT_NAME.fullmatch(path.name)
    if match is not None and int(match["part"]) != 1:
        remedy = f"name the first part, {parts(path)[0].name}"
        raise ConfigError(f"{path} is part {int(match['part'])} of a model", remedy)
    try:
        # No other kind of file is opened: a FIFO would wait for its writer.
        missing = [file.name for file in parts(path) if not file.is_file()]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if path.is_dir():
        remedy = "a Hugging Face folder is for --engine mlx, llama.cpp loads .gguf files"
        raise ConfigError(f"{path} is a folder", remedy)
    if missing:
        lacking = ", ".join(missing[:3])
        reason = f"{path}: {lacking} is missing, or no file"
        raise ConfigError(reason, "name a .gguf file that has all parts")


def located(value: str | None, engine: str) -> str | None:
    """Return the path of a model by its name in `models list`, by path, or for MLX by a hub id.

    `bundled` stays. Raises the errors of `resolve` for other values.
    """
    if not value or value == "bundled" or engine in {"ngram", "sim"}:
        return value
    try:
        return resolve(value, models_dir())
    except ConfigError:
        if engine in {"auto", "mlx"} and _HUB_ID.fullmatch(value):
            return value
        raise


def resolve(value: str, root: Path) -> str:
    """Return the path of `--model VALUE`: a name in the folder, a path, or the end of one name.

    Raises NotThereYet if the disk of the path may be missing, else ConfigError with the names and
    paths that were tried.
    """
    value = expanded(value)
    found = entries(root)
    named = [entry for entry in found if entry.name == value]
    if not named and os.path.exists(value):  # noqa: PTH110 - a folder that may not be read has none
        return value
    ends = (f"/{value}", f"/{value}.gguf")
    alike = named or [entry for entry in found if f"/{entry.name}".endswith(ends)]
    match alike:
        case [entry]:
            return str(entry.path)
        case []:
            path = Path(value).absolute()
            tried = f"tried the {len(found)} names in {root} and the path {path}"
            reason = f"no model {value!r}: {tried}"
            remedy = "`specmesh models list` shows the names"
            if _may_come(path) and ("/" in value or not found):
                raise NotThereYet(reason, remedy)
            raise ConfigError(reason, remedy)
        case _:
            names = ", ".join(entry.name for entry in alike)
            reason = f"{value!r} means {len(alike)} models in {root}"
            raise ConfigError(reason, f"give one of {names}")


def _may_come(path: Path) -> bool:
    """Return True if a path is missing as if its disk was not mounted.

    It is a broken link, or its folder has no models. If the folder has others, the name is wrong.
    Raises ConfigError for a folder that this user may not read.
    """
    try:
        if path.is_symlink():
            return True
        names = os.listdir(path.parent)  # noqa: PTH208 - only names are needed
    except PermissionError as error:
        hint = "homes are hidden from the machine's own services" if path.is_absolute() else ""
        raise ConfigError(f"{path}: {error.strerror}", hint) from None
    except OSError:
        return True
    return not any(map(is_gguf, names))
