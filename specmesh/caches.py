"""What daemons remember on disk: step times of a target, vocabularies of verifiers. No call raises."""

import contextlib
import hashlib
import json
import re
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh import __version__
from specmesh.core.draft_length.calibration import step_table
from specmesh.core.vocabulary.vocabulary import MAX_VOCAB, MAX_VOCAB_BYTES, framed, unframed
from specmesh.paths import write_whole

log = structlog.get_logger("specmesh")

MAX_FILES = 16  # vocabularies kept on disk; the ones longest unused go first

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".vocabulary"
_MAX_FILE_BYTES = MAX_VOCAB_BYTES + 4 * MAX_VOCAB

_SAMPLE = 2**20  # bytes at either end of a model file that identify it


class VocabularyCache:
    """Vocabularies on disk, by fingerprint. No call raises: where the folder is of no use, they are fetched each time.

    A file holds exactly the bytes that the fingerprint is the SHA-256 of (PROTOCOL.md section 6.1), so its name tells
    whether it is whole. What is damaged counts as absent.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or user_cache_path("specmesh") / "vocabularies"

    def load(self, fingerprint: str, n_vocab: int) -> tuple[bytes, ...] | None:
        """Return the pieces with this fingerprint; None where they are not here, not whole or not `n_vocab`."""
        path = self._path(fingerprint)
        if path is None:
            return None
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                return None
            raw = path.read_bytes()
        except OSError:
            return None
        pieces = unframed(raw) if hashlib.sha256(raw).hexdigest() == fingerprint else None
        if pieces is None or len(pieces) != n_vocab:
            log.warning("vocabulary_cache_damaged", file=str(path))
            return None
        with contextlib.suppress(OSError):  # in a folder that can only be read nothing is removed either
            path.touch()
        return pieces

    def store(self, fingerprint: str, pieces: tuple[bytes, ...]) -> None:
        """Keep pieces, whose fingerprint was checked: whole or not at all, whatever interrupts."""
        path = self._path(fingerprint)
        if path is None:
            return
        try:
            write_whole(path, b"".join(framed(pieces)))
            files = self._folder.glob(f"*{_SUFFIX}")
            for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[MAX_FILES:]:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("vocabulary_not_cached", folder=str(self._folder), reason=error.strerror)

    def _path(self, fingerprint: str) -> Path | None:
        """The file of a fingerprint; None for what is none: a peer's text never names a path."""
        return self._folder / f"{fingerprint}{_SUFFIX}" if _FINGERPRINT.fullmatch(fingerprint) else None


class CostCache:
    """The step times of one model file in one setting, on disk. No call raises."""

    def __init__(self, model: Path, setting: str, folder: Path | None = None) -> None:
        folder = folder or user_cache_path("specmesh") / "steps"
        identity = _identity(model)
        name = hashlib.sha256(f"{identity} {setting} {__version__}".encode()).hexdigest()[:32]
        self._path = folder / f"{name}.json" if identity else None

    def load(self) -> dict[int, float] | None:
        """Seconds by rows; None where nothing usable is remembered."""
        if self._path is None:
            return None
        try:
            return step_table(json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def store(self, table: dict[int, float]) -> None:
        """Keep seconds by rows."""
        if self._path is None or not table:
            return
        try:
            write_whole(self._path, json.dumps(table).encode())
        except OSError as error:
            log.warning("step_times_not_kept", folder=str(self._path.parent), reason=error.strerror)


def _identity(model: Path) -> str:
    """What tells a model file from others without reading all of it; empty for what is no file."""
    try:
        size = model.stat().st_size
        with model.open("rb") as file:
            head = file.read(_SAMPLE)
            file.seek(max(size - _SAMPLE, 0))
            return f"{size} {hashlib.sha256(head + file.read(_SAMPLE)).hexdigest()}"
    except OSError:
        return ""
