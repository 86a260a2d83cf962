"""`specmesh models pull`: choose a GGUF model's files in a repository of the Hugging Face hub and download them.

OWNER/NAME lies in a folder of that name; `.partial` beside it holds unfinished downloads. All files of a model move to
their places together, after the last one has been verified. huggingface_hub's own downloads begin anew when they are
started again, so only its transfer is used: the next one goes on where it broke off.
"""

import errno
import fcntl
import hashlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # httpx's
    OfflineModeIsEnabled,
)
from huggingface_hub.file_download import http_get  # pyright: ignore[reportUnknownVariableType]  # of any headers
from huggingface_hub.utils import build_hf_headers, logging  # pyright: ignore[reportUnknownVariableType]  # likewise
from rich.filesize import decimal

from specmesh.errors import Busy, ConfigError, PullError, RequestError
from specmesh.models.files import is_gguf, parts

_TIMEOUT = 30.0
_COMPANIONS = ("mmproj", "imatrix")
"""GGUF files beside a model that are no language models: projectors of images, statistics for quantising."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. checksum: its SHA-256 in hexadecimal."""

    name: str
    size: int
    checksum: str


def pull(hub_id: str, file: str | None, root: Path) -> Path:
    """Get a model and return the path for `--model`. Files that are there already are verified, not transferred again.
    file: one GGUF file of the repository; None: the only one. Raise ConfigError (no access), RequestError (no such
    model or file, several to choose from), Busy (another pull of the same), PullError."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # what goes wrong is said once, by our errors
    commit, listed = _listing(hub_id)  # this checks the id, of which a folder's name is made
    folder, files = root / hub_id, choose(hub_id, listed, file)
    missing = [file for file in files if not matches(folder / file.name, file)]
    with _disk_errors(root):
        partials = root / ".partial"
        partials.mkdir(parents=True, exist_ok=True)
        staged = [partials / f"{file.checksum} {file.name}".replace("/", " ") for file in missing]
        for one, path in zip(missing, staged, strict=True):
            _fetch(
                one,
                hf_hub_url(hub_id, one.name, revision=commit, endpoint=constants.ENDPOINT),
                path,
            )
        for one, path in zip(missing, staged, strict=True):
            (folder / one.name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(folder / one.name)
    return folder / files[0].name


def _listing(hub_id: str) -> tuple[str, list[RemoteFile]]:
    """Return the newest commit, and the large files of the repository: the hub tells the SHA-256 of these."""
    api = HfApi(constants.ENDPOINT, library_name="specmesh")
    with _refusals(hub_id):
        info = api.model_info(hub_id, files_metadata=True, timeout=_TIMEOUT)
    large = [(file.rfilename, file.lfs) for file in info.siblings or () if file.lfs is not None]
    return info.sha or "main", [RemoteFile(name, lfs.size, lfs.sha256) for name, lfs in large]


def choose(hub_id: str, files: list[RemoteFile], name: str | None) -> list[RemoteFile]:
    """Return a model's files, the one for `--model` first. Raise RequestError where there is no such file, no model, or
    more than one."""
    known = {file.name: file for file in files if _is_safe(file.name)}
    if name is None:
        last_parts = {name: name.rpartition("/")[2] for name in known}
        models = [
            name
            for name, last in last_parts.items()
            if is_gguf(last) and not last.startswith(_COMPANIONS)
        ]
        if len(models) != 1:
            sizes = "".join(f"\n  {size}" for size in _sizes(known[name] for name in models))
            raise RequestError(f"{hub_id} has {len(models)} GGUF models, name one of them:{sizes}")
        [name] = models
    if name not in known:
        raise RequestError(
            f"{hub_id} has no file {name}: it has {', '.join(_sizes(known.values())) or 'none'}"
        )
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


def matches(path: Path, file: RemoteFile) -> bool:
    """Whether a file on the disk has the hub's size and checksum."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with _disk_errors(path), path.open("rb") as held:
        return hashlib.file_digest(held, "sha256").hexdigest() == file.checksum


def _fetch(file: RemoteFile, url: str, path: Path) -> None:
    """Complete and verify the file at `path`; one that is not the hub's is removed."""
    with path.open("ab") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"another pull of {file.name} is running", "wait for it") from error
        # A compressed answer would count other bytes than the file has.
        headers = build_hf_headers(library_name="specmesh") | {"Accept-Encoding": "identity"}
        if out.tell() < file.size:
            with _refusals(file.name, out):
                http_get(url, out, resume_size=out.tell(), headers=headers)
    if not matches(path, file):
        size = path.stat().st_size
        path.unlink()
        raise PullError(
            f"{file.name} came with {size} bytes of another checksum; the hub says {file.size} bytes and "
            f"{file.checksum}: removed; pull it again"
        )


@contextmanager
def _refusals(what: str, out: BinaryIO | None = None) -> Generator[None]:
    """Say what the hub, or its library, refuses. out: the file that is transferred, in which what came is kept."""
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
            raise RequestError(
                f"{what} is not on {constants.ENDPOINT} (404): check the name"
            ) from error
        raise PullError(
            f"{what}: {constants.ENDPOINT} answered {code}", "try again later"
        ) from error
    except HTTPError as error:
        kept = (
            f"; {out.tell()} bytes are kept: the same command goes on from there"
            if out is not None
            else ""
        )
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise PullError(f"{what}: {constants.ENDPOINT} does not answer: {reason}{kept}") from error


@contextmanager
def _disk_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise PullError(
                f"the disk of {path} is full", "make room; what came is kept"
            ) from error
        raise PullError(
            f"{error.filename or path} cannot be written: {error.strerror or error}"
        ) from error
