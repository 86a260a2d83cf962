"""What drafters remember on disk: vocabularies of verifiers."""

import contextlib
import hashlib
import re
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh.core.vocabulary.vocabulary import MAX_VOCAB, MAX_VOCAB_BYTES, framed, unframed
from specmesh.paths import write_whole

log = structlog.get_logger("specmesh")

MAX_FILES = 16  # vocabularies kept on disk; the ones longest unused go first

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".vocabulary"
_MAX_FILE_BYTES = MAX_VOCAB_BYTES + 4 * MAX_VOCAB


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
