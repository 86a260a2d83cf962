"""`specmesh models pull`: which files of a repository make the model, and getting them into the folder.

OWNER/NAME lies in a folder of that name, OWNER/NAME@REVISION where a revision was asked for. `.partial` beside them
holds what is on its way. All of a model's files move to their places together, when the last of them has been verified.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from specmesh.errors import Busy, ConfigError, HubUnreachable, PullError, RequestError
from specmesh.gguf_header import SPLIT_NAME, parts
from specmesh.hf_directory import is_model, needed
from specmesh.hub import Body, Hub, Listing, RemoteFile
from specmesh.model_progress import bar
from specmesh.model_store import human_bytes
from specmesh.model_transfer import fetch, matches

_RECORD = ".specmesh.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMPANIONS = ("mmproj", "imatrix")
"""GGUF files beside a model that are no language models: projectors of images, statistics for quantising."""


@dataclass(frozen=True, slots=True)
class Pull:
    """What to get. file: one GGUF file of the repository; None: the only one, or the model directory."""

    hub_id: str
    file: str | None
    revision: str | None
    root: Path

    @property
    def folder(self) -> Path:
        """Where the model's files go."""
        if not _HUB_ID.fullmatch(self.hub_id) or ".." in self.hub_id:
            raise RequestError(f"{self.hub_id!r} is no name on the hub: give OWNER/NAME")
        suffix = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return self.root / f"{self.hub_id}{suffix}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Files that make a model, and what of it `--model` is given: a file's name, or "" for the directory."""

    files: tuple[RemoteFile, ...]
    entry: str


def pull(wanted: Pull) -> Path:
    """Get a model and return the path for `--model`; files that are there already are not transferred again.

    Raises ConfigError (huggingface_hub missing, no access), RequestError (no such model or file, several to choose
    from), HubUnreachable, TransferInterrupted, PullError (wrong checksum, disk full), Busy (another pull of the same).
    """
    folder = wanted.folder
    hub = Hub()
    if hub.offline:
        return _held_already(wanted)
    listing = hub.listing(wanted.hub_id, wanted.revision)
    choice = choose(wanted.hub_id, listing.files, wanted.file)
    with _only_one(wanted):
        record = _read_record(folder)
        files = [hub.completed(wanted.hub_id, listing.commit, file) for file in choice.files]
        missing = [file for file in files if not _is_here(folder, file, record)]
        staged = _stage(hub, wanted, listing, missing)
        _place(folder, staged)
        _write_record(folder, wanted, record | {file.name: file for file in files})
    return folder / choice.entry


def choose(hub_id: str, files: tuple[RemoteFile, ...], name: str | None) -> Choice:
    """The files to get; raises RequestError where there is no such file, no model, or more than one."""
    known = {file.name: file for file in files if _is_safe(file.name)}
    if name is not None:
        if name not in known:
            raise RequestError(f"{hub_id} has no file {name}: it has {_told(list(known.values())) or 'none'}")
        return _gguf(hub_id, known, name)
    models = [name for name in known if _is_gguf_model(name)]
    if len(models) == 1:
        return _gguf(hub_id, known, models[0])
    if models:
        sizes = _told([known[name] for name in models], "\n  ")
        raise RequestError(f"{hub_id} has {len(models)} GGUF models, name one of them:\n  {sizes}")
    wanted = needed(list(known))
    if not is_model(wanted):
        raise RequestError(f"{hub_id} has neither a .gguf file nor config.json, model*.safetensors and a tokenizer")
    return Choice(tuple(known[name] for name in wanted), "")


def _gguf(hub_id: str, known: dict[str, RemoteFile], name: str) -> Choice:
    names = [part.as_posix() for part in map(PurePosixPath, _part_names(name))]
    lacking = [part for part in names if part not in known]
    if lacking:
        raise RequestError(f"{hub_id} lacks {lacking[0]}, a part of {name}")
    return Choice(tuple(known[part] for part in names), names[0])


def _part_names(name: str) -> list[str]:
    return [str(part) for part in parts(Path(name))]


def _is_gguf_model(name: str) -> bool:
    last = name.rpartition("/")[2]
    split = SPLIT_NAME.fullmatch(last)
    return last.endswith(".gguf") and not last.startswith(_COMPANIONS) and (split is None or int(split["part"]) == 1)


def _is_safe(name: str) -> bool:
    """Whether a name from the hub stays inside the folder and is none of our own."""
    return "\\" not in name and all(part and not part.startswith(".") for part in name.split("/"))


def _told(files: list[RemoteFile], between: str = ", ") -> str:
    return between.join(file.name if file.size is None else f"{file.name} ({human_bytes(file.size)})" for file in files)


def _held_already(wanted: Pull) -> Path:
    """The model where an earlier pull left it, without asking the hub."""
    record = {
        name: file for name, file in _read_record(wanted.folder).items() if _is_here(wanted.folder, file, {name: file})
    }
    if not record:
        raise HubUnreachable(f"HF_HUB_OFFLINE is set and {wanted.hub_id} is not in {wanted.root}: unset it to download")
    try:
        return wanted.folder / choose(wanted.hub_id, tuple(record.values()), wanted.file).entry
    except RequestError as error:
        raise type(error)(f"HF_HUB_OFFLINE is set, and of what is here: {error}") from error


def _stage(hub: Hub, wanted: Pull, listing: Listing, missing: list[RemoteFile]) -> dict[str, Path]:
    """Complete every missing file under `.partial`; by name, where each lies."""
    staged = {file.name: wanted.root / ".partial" / _key(wanted, listing, file) for file in missing}
    held = sum(path.stat().st_size for path in staged.values() if path.exists())
    needs = sum(file.size or 0 for file in missing) - held
    free = shutil.disk_usage(wanted.root).free
    if needs > free:
        raise PullError(f"the disk of {wanted.root} is full: {human_bytes(needs)} to come, {human_bytes(free)} free")
    for file in missing:

        def opened(start: int, name: str = file.name) -> AbstractContextManager[Body]:
            return hub.open(wanted.hub_id, listing.commit, name, start)

        with bar(file.name, file.size or 0) as advance:
            fetch(file, opened, staged[file.name], advance)
    return staged


def _key(wanted: Pull, listing: Listing, file: RemoteFile) -> str:
    """A name for what is on its way: another content, another name."""
    identity = file.checksum or f"{listing.commit} {file.size}"
    return hashlib.sha256(f"{wanted.hub_id}\n{file.name}\n{identity}".encode()).hexdigest()


def _place(folder: Path, staged: dict[str, Path]) -> None:
    try:
        for name, path in staged.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(folder / name)
    except OSError as error:
        raise PullError(f"{folder} cannot be written: {error.strerror}") from error


def _is_here(folder: Path, file: RemoteFile, record: dict[str, RemoteFile]) -> bool:
    """Whether a file is in its place: verified by an earlier pull, or by its checksum now."""
    path = folder / file.name
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return record.get(file.name) == file or matches(path, file)


@contextmanager
def _only_one(wanted: Pull) -> Iterator[None]:
    """Make the folders, and keep a second pull of the same model away."""
    name = quote(wanted.folder.relative_to(wanted.root).as_posix(), safe="")
    try:
        (wanted.root / ".partial").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(wanted.root / ".partial" / f"{name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the folder {wanted.root} cannot be written ({error.strerror}): choose another --dir"
        ) from error
    try:
        _lock(descriptor, wanted.hub_id)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, hub_id: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Busy(f"another pull of {hub_id} is running: wait for it") from error


def _read_record(folder: Path) -> dict[str, RemoteFile]:
    """What earlier pulls put here; nothing where the record is missing or damaged."""
    try:
        told = json.loads((folder / _RECORD).read_bytes())["files"]
        return {name: RemoteFile(name, int(file["size"]), str(file["checksum"])) for name, file in told.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write_record(folder: Path, wanted: Pull, files: dict[str, RemoteFile]) -> None:
    told = {name: {"size": file.size, "checksum": file.checksum} for name, file in sorted(files.items())}
    raw = json.dumps({"hub_id": wanted.hub_id, "revision": wanted.revision, "files": told}, indent=2)
    fresh = folder / f"{_RECORD}.new"
    try:
        fresh.write_text(f"{raw}\n", encoding="utf-8")
        fresh.replace(folder / _RECORD)
    except OSError as error:
        raise PullError(f"{folder} cannot be written: {error.strerror}") from error
