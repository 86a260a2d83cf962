"""`specmesh models pull`: choose a GGUF model's files in a repository of the Hugging Face hub and download them.

OWNER/NAME lies in a folder of that name, or OWNER/NAME@REVISION. `.partial` beside them holds unfinished downloads. All
files of a model move to their places together, after the last one has been verified. Downloads by huggingface_hub drop
a broken transfer, so the transfer is ours: resumed where it broke off.
"""

import errno
import fcntl
import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from rich.filesize import decimal

from specmesh.errors import (
    Busy,
    ConfigError,
    HubUnreachable,
    PullError,
    RequestError,
    SpecmeshError,
    TransferInterrupted,
)
from specmesh.models import is_gguf, parts

_INSTALL = 'pip install "specmesh[hub]"'
_MODULES = (".errors", ".utils", ".constants")
_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. checksum: its SHA-256 in hexadecimal."""

    name: str
    size: int
    checksum: str


class Hub:
    """huggingface_hub, imported only here. Any, because it may not be installed where this is type-checked."""

    def __init__(self) -> None:
        try:
            modules: list[Any] = [import_module(f"huggingface_hub{name}") for name in ("", *_MODULES)]
        except ImportError as error:
            raise ConfigError(f"huggingface_hub is not installed: {_INSTALL}") from error
        self._library, self._errors, self._utils, constants = modules
        self._utils.logging.set_verbosity_error()  # what goes wrong is told once, by our errors
        self.endpoint: str = constants.ENDPOINT

    def listing(self, hub_id: str, revision: str | None) -> tuple[str, list[RemoteFile]]:
        """Return the commit of a branch, tag or commit (None: the main branch), and the large files of the repository:
        the hub tells the SHA-256 of these."""
        with self._told(hub_id):
            info = self._library.HfApi(self.endpoint, library_name="specmesh").model_info(
                hub_id, revision=revision or "main", files_metadata=True, timeout=_TIMEOUT
            )
        large = [(file.rfilename, file.lfs) for file in info.siblings or () if file.lfs is not None]
        return info.sha or "main", [RemoteFile(name, lfs.size, lfs.sha256) for name, lfs in large]

    @contextmanager
    def open(self, hub_id: str, commit: str, name: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the file's bytes begin, at `start` or, where the server cannot, at 0, and the bytes from there; raises
        TransferInterrupted where they end too soon."""
        # A compressed answer would count other bytes than the file has.
        headers = self._utils.build_hf_headers(library_name="specmesh") | {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = {"headers": headers, "timeout": _TIMEOUT, "follow_redirects": True}
        with self._told(f"{hub_id} {name}", transfer=True):
            session = self._utils.get_session()
            url = self._library.hf_hub_url(hub_id, name, revision=commit, endpoint=self.endpoint)
            with session.stream("GET", url, **request) as answer:
                self._utils.hf_raise_for_status(answer)
                yield (start if _continues(answer, start) else 0), answer.iter_bytes()

    @contextmanager
    def _told(self, what: str, *, transfer: bool = False) -> Iterator[None]:
        try:
            yield
        except self._errors.HFValidationError as error:
            raise RequestError(f"{what!r} is no name on the hub: give OWNER/NAME") from error
        except self._errors.OfflineModeIsEnabled as error:
            raise HubUnreachable("HF_HUB_OFFLINE is set: unset it to download") from error
        except self._errors.HfHubHTTPError as error:
            raise self._refusal(error.response.status_code, what) from error
        except self._errors.HTTPError as error:
            if transfer:
                raise TransferInterrupted(f"{what}: {_first_line(error)}") from error
            raise HubUnreachable(f"{self.endpoint} does not answer: {_first_line(error)}") from error

    def _refusal(self, code: int, what: str) -> SpecmeshError:
        if code in (401, 403):
            hint = "check the name, accept the model's terms on the hub, or set HF_TOKEN"
            return ConfigError(f"{what}: the hub does not give it to you ({code}): {hint}")
        if code == 404:
            return RequestError(f"{what} is not on {self.endpoint} (404): check the name")
        return HubUnreachable(f"{what}: {self.endpoint} answered {code}: try again later")


def _continues(answer: Any, start: int) -> bool:
    return answer.status_code == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


Open = Callable[[int], AbstractContextManager[tuple[int, Iterator[bytes]]]]
"""Opens a file's bytes from an offset."""

Advance = Callable[[int], None]
"""Told the bytes held whenever they change."""

MIN_RECONNECT_BYTES = 1 << 20  # a connection that broke after fewer is given up


def fetch(file: RemoteFile, opened: Open, path: Path, advance: Advance) -> None:
    """Complete and verify the file at `path`; one that is not the hub's is removed.

    Raise PullError, or TransferInterrupted if another attempt can go on, Busy while another one is at it.
    """
    with _disk_errors(path), path.open("ab") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another pull of {file.name} is running: wait for it") from error
        if out.tell() > file.size:
            _empty(out)
        advance(out.tell())
        while out.tell() < file.size:
            _receive(file, opened, out, advance)
    if not matches(path, file):
        size = path.stat().st_size
        path.unlink()
        raise PullError(
            f"{file.name} came with {size} bytes of another checksum; the hub says {file.size} bytes and "
            f"{file.checksum}: removed; pull it again"
        )


def matches(path: Path, file: RemoteFile) -> bool:
    """Whether a file on the disk has the hub's size and checksum."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with _disk_errors(path), path.open("rb") as held:
        return hashlib.file_digest(held, "sha256").hexdigest() == file.checksum


def _receive(file: RemoteFile, opened: Open, out: BinaryIO, advance: Advance) -> None:
    """One connection's worth; returns where another is worth trying or none is needed."""
    before = out.tell()
    try:
        with opened(before) as (start, chunks):
            if start != before:
                _empty(out)
                before = 0
            for chunk in chunks:
                out.write(chunk)
                out.flush()
                advance(out.tell())
                if out.tell() > file.size:
                    return
    except TransferInterrupted as error:
        cause = str(error)
    else:
        cause = f"{file.name}: the server ended it too soon"
    held = out.tell()
    if held < file.size and held - before < MIN_RECONNECT_BYTES:
        raise TransferInterrupted(f"{cause}; {held} of {file.size} bytes are kept: the same command goes on from there")


def _empty(out: BinaryIO) -> None:
    out.seek(0)
    out.truncate()


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise PullError(f"the disk of {path.parent} is full: make room; what came is kept") from error
        raise PullError(f"{error.filename or path} cannot be written: {error.strerror or error}") from error


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMPANIONS = ("mmproj", "imatrix")
"""GGUF files beside a model that are no language models: projectors of images, statistics for quantising."""


def pull(hub_id: str, file: str | None, revision: str | None, root: Path) -> Path:
    """Get a model and return the path for `--model`. Files that are there already are verified, not transferred again.

    file: one GGUF file of the repository; None: the only one. Raise ConfigError
    (huggingface_hub missing, no access), RequestError (no such model or file, several to choose from), HubUnreachable,
    TransferInterrupted, PullError (wrong checksum, disk full), Busy (another pull of the same).
    """
    if not _HUB_ID.fullmatch(hub_id) or ".." in hub_id:
        raise RequestError(f"{hub_id!r} is no name on the hub: give OWNER/NAME")
    folder = root / (f"{hub_id}@{quote(revision, safe='')}" if revision else hub_id)
    hub = Hub()
    commit, listed = hub.listing(hub_id, revision)
    files = choose(hub_id, listed, file)
    missing = [file for file in files if not matches(folder / file.name, file)]
    _place(folder, _stage(hub, hub_id, commit, missing, root))
    return folder / files[0].name


def choose(hub_id: str, files: list[RemoteFile], name: str | None) -> list[RemoteFile]:
    """Return a model's files, the one for `--model` first. Raise RequestError where there is no such file, no model, or
    more than one."""
    known = {file.name: file for file in files if _is_safe(file.name)}
    if name is None:
        last_parts = {name: name.rpartition("/")[2] for name in known}
        models = [name for name, last in last_parts.items() if is_gguf(last) and not last.startswith(_COMPANIONS)]
        if len(models) != 1:
            sizes = "".join(f"\n  {size}" for size in _sizes(known[name] for name in models))
            raise RequestError(f"{hub_id} has {len(models)} GGUF models, name one of them:{sizes}")
        [name] = models
    if name not in known:
        raise RequestError(f"{hub_id} has no file {name}: it has {', '.join(_sizes(known.values())) or 'none'}")
    names = [part.as_posix() for part in parts(Path(name))]
    for part in names:
        if part not in known:
            raise RequestError(f"{hub_id} lacks {part}, a part of {name}")
    return [known[part] for part in names]


def _is_safe(name: str) -> bool:
    """Whether a name from the hub stays inside the folder and is not hidden."""
    return "\\" not in name and all(part and not part.startswith(".") for part in name.split("/"))


def _sizes(files: Iterable[RemoteFile]) -> list[str]:
    return [f"{file.name} ({decimal(file.size)})" for file in files]


def _stage(hub: Hub, hub_id: str, commit: str, missing: list[RemoteFile], root: Path) -> dict[str, Path]:
    """Complete every missing file under `.partial`; by name, where each lies."""
    partials = root / ".partial"
    try:
        partials.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{root} cannot be written ({error.strerror}): choose another SPECMESH_MODELS_DIR") from error
    staged = {file.name: partials / f"{file.checksum} {file.name}".replace("/", " ") for file in missing}
    held = sum(path.stat().st_size for path in staged.values() if path.exists())
    needs = sum(file.size for file in missing) - held
    free = shutil.disk_usage(root).free
    if needs > free:
        raise PullError(f"the disk of {root} is full: {decimal(needs)} to come, {decimal(free)} free")
    for file in missing:
        with _bar(file.name, file.size) as advance:
            fetch(file, partial(hub.open, hub_id, commit, file.name), staged[file.name], advance)
    return staged


def _place(folder: Path, staged: dict[str, Path]) -> None:
    try:
        for name, path in staged.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(folder / name)
    except OSError as error:
        raise PullError(f"{folder} cannot be written: {error.strerror}") from error


@contextmanager
def _bar(name: str, size: int) -> Iterator[Advance]:
    """A progress bar for one file, where stderr is a terminal; the function it gives is told the bytes held."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(name, total=size)
        yield lambda held: progress.update(task, completed=held)
