"""`specmesh models pull`: downloads of GGUF models from the Hugging Face hub.

The files of OWNER/NAME go to a folder of that name; the folder `.partial` next to it holds
unfinished downloads. All files of a model move to their places together, after the last one has
been verified. huggingface_hub's own downloads begin anew when they are started again, so only its
transfer is used: the next download goes on from the end of the last one.
"""

import errno
import fcntl
import hashlib
import io
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # httpx's
    OfflineModeIsEnabled,
)
from huggingface_hub.file_download import http_get  # pyright: ignore[reportUnknownVariableType]
from huggingface_hub.utils import (
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    disable_progress_bars,
    logging,
)
from rich.filesize import decimal

from specmesh.errors import Busy, ConfigError, PullError, RequestError
from specmesh.models.files import is_gguf, parts

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_TIMEOUT = 30.0
_HASHED = 2**20  # bytes that are hashed at once
_COMPANIONS = ("mmproj", "imatrix")
"""Names of GGUF files that are no language models: projectors of images, quantising statistics."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. checksum: its SHA-256 in hexadecimal."""

    name: str
    size: int
    checksum: str

    @property
    def last_name(self) -> str:
        """Return its name without folders."""
        return self.name.rpartition("/")[2]


Report = Callable[[str, int, int], object]
"""Called with a title, the bytes that are done, and all bytes."""


def pull(hub_id: str, file: str | None, root: Path, report: Report) -> Path:
    """Download a model and return the path for `--model`.

    Files that exist already are verified, not transferred again. Raises ConfigError (no access),
    RequestError (no such model or file, several to choose from), Busy (another pull of the same),
    PullError.

    file: one GGUF file of the repository. None: the only one.
    report: called while a file is transferred or verified.
    """
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        disable_progress_bars()  # `report` shows the progress
    else:  # the user wants the library's own bars, or none
        report = _no_report
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # our own errors report failures
    commit, listed = _listing(hub_id)  # this checks the id, which names a folder
    folder = root / hub_id
    files = choose(hub_id, listed, file)
    partials = root / ".partial"
    staged = dict[Path, Path]()
    for each in files:
        if not matches(folder / each.name, each, report):
            name = f"{each.checksum} {each.name}".replace("/", " ")
            staged[folder / each.name] = partials / name
    with _disk_errors(root):
        partials.mkdir(parents=True, exist_ok=True)
        for each in files:
            path = staged.get(folder / each.name)
            if path is not None:
                url = hf_hub_url(hub_id, each.name, revision=commit, endpoint=constants.ENDPOINT)
                _fetch(each, url, path, report)
        for place, path in staged.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
    return folder / files[0].name


def _no_report(title: str, done: int, size: int) -> None:
    """Report nothing."""


def _listing(hub_id: str) -> tuple[str, list[RemoteFile]]:
    """Return the newest commit, and the large files, of which the hub has the SHA-256."""
    api = HfApi(constants.ENDPOINT, library_name="specmesh")
    with _refusals(hub_id):
        info = api.model_info(hub_id, files_metadata=True, timeout=_TIMEOUT)
    files = list[RemoteFile]()
    for file in info.siblings or ():
        if file.lfs is not None:
            files.append(RemoteFile(file.rfilename, file.lfs.size, file.lfs.sha256))
    return info.sha or "main", files


def choose(hub_id: str, files: list[RemoteFile], name: str | None) -> list[RemoteFile]:
    """Return a model's files, the one for `--model` first.

    Raises RequestError if there is no such file, no model, or more than one.
    """
    known = {file.name: file for file in files if _is_safe(file.name)}
    if name is None:
        models = list(filter(_is_model, known))
        if len(models) != 1:
            sizes = [f"\n  {_with_size(known[model])}" for model in models]
            count = f"{len(models)} GGUF models"
            raise RequestError(f"{hub_id} has {count}, name one of them:{''.join(sizes)}")
        [name] = models
    if name not in known:
        existing = ", ".join(map(_with_size, known.values())) or "none"
        raise RequestError(f"{hub_id} has no file {name}: it has {existing}")
    names = [part.as_posix() for part in parts(Path(name))]
    for part in names:
        if part not in known:
            raise RequestError(f"{hub_id} lacks {part}, a part of {name}")
    return [known[part] for part in names]


def _is_safe(name: str) -> bool:
    """Return True if a name from the hub stays inside the folder and is not hidden."""
    return "\\" not in name and all(part and not part.startswith(".") for part in name.split("/"))


def _is_model(name: str) -> bool:
    last = name.rpartition("/")[2]
    return is_gguf(last) and not last.startswith(_COMPANIONS)


def _with_size(file: RemoteFile) -> str:
    return f"{file.name} ({decimal(file.size)})"


def matches(path: Path, file: RemoteFile, report: Report) -> bool:
    """Return True if a file on the disk has the hub's size and checksum."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    digest = hashlib.sha256()
    title = f"verifying {file.last_name}"
    with _disk_errors(path), path.open("rb") as held:
        while block := held.read(_HASHED):
            digest.update(block)
            report(title, held.tell(), file.size)
    return digest.hexdigest() == file.checksum


class _Reported(io.BufferedWriter):
    """A file that reports its length after each write."""

    def __init__(self, path: Path, file: RemoteFile, report: Report) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._title = f"downloading {file.last_name}"
        self._size = file.size
        self._report = report

    def write(self, data: "ReadableBuffer", /) -> int:
        written = super().write(data)
        self._report(self._title, self.tell(), self._size)
        return written


def _fetch(file: RemoteFile, url: str, path: Path, report: Report) -> None:
    """Complete and verify the file at `path`; remove it if it differs from the hub's."""
    with _Reported(path, file, report) as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another pull of {file.name} is running", "wait for it") from error
        # A compressed answer would count other bytes than the file has.
        headers = build_hf_headers(library_name="specmesh") | {"Accept-Encoding": "identity"}
        if out.tell() < file.size:
            with _refusals(file.name, out):
                http_get(url, out, resume_size=out.tell(), headers=headers)
    if not matches(path, file, report):
        size = path.stat().st_size
        path.unlink()
        raise PullError(
            f"{file.name} came with {size} bytes of another checksum; the hub says {file.size} "
            f"bytes and {file.checksum}: removed; pull it again"
        )


@contextmanager
def _refusals(what: str, out: BinaryIO | None = None) -> Generator[None]:
    """Raise errors of the hub and its library as ours.

    what: the repository or file.
    out: the file that is transferred, which keeps the bytes that came.
    """
    try:
        yield
    except HFValidationError as error:
        raise RequestError(f"{what!r} is no name on the hub: give OWNER/NAME") from error
    except OfflineModeIsEnabled as error:
        raise PullError("HF_HUB_OFFLINE is set", "unset it to download") from error
    except HfHubHTTPError as error:
        code = error.response.status_code
        if code in (401, 403):
            hint = "check the name, accept the model's terms on the hub, or set HF_TOKEN"
            raise ConfigError(f"{what}: the hub does not give it to you ({code})", hint) from error
        if code == 404:
            reason = f"{what} is not on {constants.ENDPOINT} (404): check the name"
            raise RequestError(reason) from error
        reason = f"{what}: {constants.ENDPOINT} answered {code}"
        raise PullError(reason, "try again later") from error
    except HTTPError as error:
        kept = ""
        if out is not None:
            kept = f"; {out.tell()} bytes are kept: the same command goes on from there"
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise PullError(f"{what}: {constants.ENDPOINT} does not answer: {reason}{kept}") from error


@contextmanager
def _disk_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            reason = f"the disk of {path} is full"
            raise PullError(reason, "make room; what came is kept") from error
        place = error.filename or path
        raise PullError(f"{place} cannot be written: {error.strerror or error}") from error
