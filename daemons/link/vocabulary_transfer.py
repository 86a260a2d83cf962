"""Vocabularies that were fetched once, on disk by fingerprint.

A file holds exactly the bytes that the fingerprint is the SHA-256 of (PROTOCOL.md section 6.1), so its name tells
whether it is whole. What is damaged counts as absent. Nothing here is needed: where the folder cannot be read or
written, vocabularies are fetched each time.
"""

import base64
import hashlib
import os
import re
import tempfile
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh.core.vocabulary.vocabulary import Vocabulary, framed
from specmesh.errors import RemoteProtocolError
from specmesh.wire.messages import Vocab, Welcome

CHUNK_BYTES = 128 * 1024  # about how many bytes of pieces one VOCAB carries
MAX_VOCAB = 2**20  # most tokens a vocabulary is believed to have
MAX_VOCAB_BYTES = 64 * 2**20  # most bytes its pieces are taken to need, in base64


def vocabulary_chunk(vocabulary: Vocabulary, start: int) -> Vocab:
    """The VOCAB answer from id `start` on; empty past the end."""
    pieces: list[str] = []
    size = 0
    for piece in vocabulary.pieces[start:]:
        pieces.append(base64.b64encode(piece).decode())
        size += len(pieces[-1]) + 3
        if size >= CHUNK_BYTES:
            break
    return Vocab(start, pieces)


class VocabularyDownload:
    """Collects VOCAB answers in order and checks the whole against WELCOME's fingerprint."""

    def __init__(self, welcome: Welcome) -> None:
        """Begin; raises RemoteProtocolError for a size no vocabulary has."""
        if welcome.n_vocab > MAX_VOCAB:
            raise RemoteProtocolError(f"the verifier claims a vocabulary of {welcome.n_vocab} tokens")
        self._welcome = welcome
        self._pieces: list[bytes] = []
        self._size = 0

    def next_request(self) -> Vocab:
        return Vocab(len(self._pieces))

    def add(self, answer: Vocab) -> Vocabulary | None:
        """Take an answer in; the vocabulary once complete. Raises RemoteProtocolError where it is not as promised."""
        if answer.start != len(self._pieces) or not answer.pieces:
            return None
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except ValueError:  # binascii.Error is one, and what is not ASCII raises another
            raise RemoteProtocolError("the verifier's vocabulary is not base64") from None
        self._size += sum(map(len, answer.pieces))
        if len(self._pieces) > self._welcome.n_vocab or self._size > MAX_VOCAB_BYTES:
            raise RemoteProtocolError("the verifier sends more vocabulary than it has")
        if len(self._pieces) < self._welcome.n_vocab:
            return None
        vocabulary = Vocabulary(tuple(self._pieces), frozenset(self._welcome.eog_ids))
        if vocabulary.fingerprint() != self._welcome.vocab_fingerprint:
            raise RemoteProtocolError("the verifier's vocabulary does not match its own fingerprint")
        return vocabulary


log = structlog.get_logger("specmesh.drafter")

MAX_FILES = 16  # most files kept; the ones longest unused go first
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".vocabulary"
_MAX_BYTES = MAX_VOCAB_BYTES + 4 * MAX_VOCAB


def default_folder() -> Path:
    """Where this user's vocabularies are kept; it may not exist yet."""
    return user_cache_path("specmesh") / "vocabularies"


class VocabularyCache:
    """A folder of vocabularies. No call raises."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, fingerprint: str, n_vocab: int) -> tuple[bytes, ...] | None:
        """The pieces with this fingerprint; None where they are not here, not whole or not `n_vocab`."""
        path = self._path(fingerprint)
        if path is None:
            return None
        try:
            if path.stat().st_size > _MAX_BYTES:
                return None
            raw = path.read_bytes()
        except OSError:
            return None
        pieces = _pieces(raw) if hashlib.sha256(raw).hexdigest() == fingerprint else None
        if pieces is None or len(pieces) != n_vocab:
            log.warning("vocabulary_cache_damaged", file=str(path))
            return None
        self._touch(path)
        return pieces

    def store(self, fingerprint: str, pieces: tuple[bytes, ...]) -> None:
        """Keep pieces, whose fingerprint was checked: whole or not at all, whatever interrupts."""
        path = self._path(fingerprint)
        if path is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(path, b"".join(framed(pieces)))
            self._drop_oldest()
        except OSError as error:
            log.warning("vocabulary_not_cached", folder=str(self._folder), reason=error.strerror)

    def _path(self, fingerprint: str) -> Path | None:
        """The file of a fingerprint; None for what is none: a peer's text never names a path."""
        return self._folder / f"{fingerprint}{_SUFFIX}" if _FINGERPRINT.fullmatch(fingerprint) else None

    def _write(self, path: Path, raw: bytes) -> None:
        number, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(raw)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _drop_oldest(self) -> None:
        files = sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[MAX_FILES:]:
            file.unlink(missing_ok=True)

    def _touch(self, path: Path) -> None:
        try:
            path.touch()
        except OSError:
            return  # a folder that can be read only: then nothing is dropped from it either


def _pieces(raw: bytes) -> tuple[bytes, ...] | None:
    """Pieces out of a file's bytes; None where they do not end where the file does."""
    pieces: list[bytes] = []
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if end > len(raw) or at + 4 > len(raw):
            return None
        pieces.append(raw[at + 4 : end])
        at = end
    return tuple(pieces)
