"""`specmesh models pull`: choose a model's files in a repository and download them.

OWNER/NAME lies in a folder of that name, or OWNER/NAME@REVISION. `.partial` beside them holds unfinished downloads. All
files of a model move to their places together, after the last one has been verified.
"""

import fcntl
import hashlib
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from specmesh.errors import Busy, ConfigError, HubUnreachable, PullError, RequestError
from specmesh.models.directory import is_model, needed
from specmesh.models.gguf_header import parts
from specmesh.models.hub import Advance, Hub, RemoteFile, fetch, matches
from specmesh.models.store import human_bytes, is_gguf

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMPANIONS = ("mmproj", "imatrix")
"""GGUF files beside a model that are no language models: projectors of images, statistics for quantising."""

Choice = tuple[list[RemoteFile], str]
"""A model's files, and the one to pass to `--model`; "" for their directory."""


@dataclass(frozen=True, slots=True)
class Pull:
    """What to get. file: one GGUF file of the repository; None: the only one, or the model directory."""

    hub_id: str
    file: str | None
    revision: str | None
    root: Path

    @property
    def folder(self) -> Path:
        """Where the model's files go. Raise RequestError where hub_id is no name."""
        if not _HUB_ID.fullmatch(self.hub_id) or ".." in self.hub_id:
            raise RequestError(f"{self.hub_id!r} is no name on the hub: give OWNER/NAME")
        suffix = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return self.root / f"{self.hub_id}{suffix}"


def pull(wanted: Pull) -> Path:
    """Get a model and return the path for `--model`. Files that are there already are verified, not transferred again.

    Raise ConfigError (huggingface_hub missing, no access), RequestError (no such model or file, several to choose
    from), HubUnreachable, TransferInterrupted, PullError (wrong checksum, disk full), Busy (another pull of the same).
    """
    folder = wanted.folder
    hub = Hub()
    if hub.offline:
        return _held_already(wanted)
    commit, listed = hub.listing(wanted.hub_id, wanted.revision)
    files, entry = choose(wanted.hub_id, listed, wanted.file)
    with _only_one(wanted):
        missing = [file for file in files if not matches(folder / file.name, file)]
        _place(folder, _stage(hub, wanted, commit, missing))
    return folder / entry


def choose(hub_id: str, files: list[RemoteFile], name: str | None) -> Choice:
    """Return the files to get. Raise RequestError where there is no such file, no model, or more than one."""
    known = {file.name: file for file in files if _is_safe(file.name)}
    if name is not None:
        if name not in known:
            raise RequestError(f"{hub_id} has no file {name}: it has {', '.join(_sizes(known.values())) or 'none'}")
        return _gguf(hub_id, known, name)
    last_parts = {name: name.rpartition("/")[2] for name in known}
    models = [name for name, last in last_parts.items() if is_gguf(last) and not last.startswith(_COMPANIONS)]
    if len(models) == 1:
        return _gguf(hub_id, known, models[0])
    if models:
        sizes = "\n  ".join(_sizes(known[name] for name in models))
        raise RequestError(f"{hub_id} has {len(models)} GGUF models, name one of them:\n  {sizes}")
    wanted = needed(list(known))
    if not is_model(wanted):
        raise RequestError(f"{hub_id} has neither a .gguf file nor config.json, model*.safetensors and a tokenizer")
    return [known[name] for name in wanted], ""


def _gguf(hub_id: str, known: dict[str, RemoteFile], name: str) -> Choice:
    names = [part.as_posix() for part in parts(Path(name))]
    for part in names:
        if part not in known:
            raise RequestError(f"{hub_id} lacks {part}, a part of {name}")
    return [known[part] for part in names], names[0]


def _is_safe(name: str) -> bool:
    """Whether a name from the hub stays inside the folder and is not hidden."""
    return "\\" not in name and all(part and not part.startswith(".") for part in name.split("/"))


def _sizes(files: Iterable[RemoteFile]) -> list[str]:
    return [f"{file.name} ({human_bytes(file.size)})" for file in files]


def _held_already(wanted: Pull) -> Path:
    """The model where an earlier pull left it, without asking the hub."""
    found = [path for path in wanted.folder.rglob("*") if path.is_file()]
    files = [RemoteFile(path.relative_to(wanted.folder).as_posix(), path.stat().st_size, "") for path in found]
    if not files:
        raise HubUnreachable(f"HF_HUB_OFFLINE is set and {wanted.hub_id} is not in {wanted.root}: unset it to download")
    try:
        return wanted.folder / choose(wanted.hub_id, files, wanted.file)[1]
    except RequestError as error:
        raise RequestError(f"HF_HUB_OFFLINE is set, and of what is here: {error}") from error


def _stage(hub: Hub, wanted: Pull, commit: str, missing: list[RemoteFile]) -> dict[str, Path]:
    """Complete every missing file under `.partial`; by name, where each lies."""
    staged = {file.name: wanted.root / ".partial" / _partial_name(wanted, commit, file) for file in missing}
    held = sum(path.stat().st_size for path in staged.values() if path.exists())
    needs = sum(file.size for file in missing) - held
    free = shutil.disk_usage(wanted.root).free
    if needs > free:
        raise PullError(f"the disk of {wanted.root} is full: {human_bytes(needs)} to come, {human_bytes(free)} free")
    for file in missing:
        with _bar(file.name, file.size) as advance:
            fetch(file, partial(hub.open, wanted.hub_id, commit, file.name), staged[file.name], advance)
    return staged


def _partial_name(wanted: Pull, commit: str, file: RemoteFile) -> str:
    identity = file.checksum or f"{commit} {file.size}"
    return hashlib.sha256(f"{wanted.hub_id}\n{file.name}\n{identity}".encode()).hexdigest()


def _place(folder: Path, staged: dict[str, Path]) -> None:
    try:
        for name, path in staged.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(folder / name)
    except OSError as error:
        raise PullError(f"{folder} cannot be written: {error.strerror}") from error


@contextmanager
def _only_one(wanted: Pull) -> Iterator[None]:
    """Make the folders, and keep a second pull of the same model away."""
    name = quote(wanted.folder.relative_to(wanted.root).as_posix(), safe="")
    try:
        (wanted.root / ".partial").mkdir(parents=True, exist_ok=True)
        lock = (wanted.root / ".partial" / f"{name}.lock").open("a")
    except OSError as error:
        raise ConfigError(
            f"the folder {wanted.root} cannot be written ({error.strerror}): choose another --dir"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another pull of {wanted.hub_id} is running: wait for it") from error
        yield


@contextmanager
def _bar(name: str, size: int) -> Iterator[Advance]:
    """A progress bar for one file, where stderr is a terminal; the function it gives is told the bytes held."""
    if not sys.stderr.isatty():
        yield lambda _held: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    name_column = TextColumn("{task.description}", markup=False)
    columns = name_column, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=size)
        yield lambda held: progress.update(task, completed=held)
