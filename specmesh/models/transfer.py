"""One file from the hub to the disk: resumed where it broke off, its checksum verified, and only then in its place."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from specmesh.errors import PullError, TransferInterrupted
from specmesh.models.hub import RemoteBody, RemoteFile

Open = Callable[[int], AbstractContextManager[RemoteBody]]
"""Opens a file's bytes from an offset."""

Advance = Callable[[int], None]
"""Told the bytes held whenever they change."""

WORTH_RECONNECTING = 1 << 20
"""A connection that broke after as many bytes is opened again; one that brought less is given up."""

_CHUNK = 1 << 20


def fetch(file: RemoteFile, opened: Open, path: Path, advance: Advance) -> None:
    """Complete and verify the file at `path`. Raise PullError, or TransferInterrupted where another attempt can go on.

    The file's size must be known. What came stays, unless its checksum is wrong: then it is removed.
    """
    assert file.size is not None, "the caller asks for the size"
    with _disk_errors(path), os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", 0) as out:
        target = _Partial(out, file.size, file.checksum)
        advance(target.held)
        while target.held < file.size:
            _receive(file, opened, target, advance)
        found = target.checksum()
    if target.held > file.size or (file.checksum and found != file.checksum):
        path.unlink()
        raise PullError(
            f"{file.name} has {target.held} bytes and checksum {found}, the hub says {file.size} bytes and "
            f"{file.checksum}: removed; pull it again"
        )


def matches(path: Path, file: RemoteFile) -> bool:
    """Whether a file on the disk has the hub's size, and its checksum where the hub tells one."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if not file.checksum:
        return True
    with _disk_errors(path), path.open("rb") as held:
        digest = hashlib.file_digest(held, partial(_digest, file.checksum, file.size or 0))
    return _named(file.checksum, digest.hexdigest()) == file.checksum


def _receive(file: RemoteFile, opened: Open, target: "_Partial", advance: Advance) -> None:
    """One connection's worth; returns where another is worth trying or none is needed."""
    before = target.held
    try:
        with opened(before) as body:
            if body.start != before:
                target.restart()
                before = 0
            for chunk in body.chunks:
                target.append(chunk)
                advance(target.held)
                if target.held > target.size:
                    return
    except TransferInterrupted as error:
        cause = str(error)
    else:
        cause = f"{file.name}: the server ended it too soon"
    if target.held < target.size and target.held - before < WORTH_RECONNECTING:
        raise TransferInterrupted(
            f"{cause}; {target.held} of {target.size} bytes are kept: the same command goes on from there"
        )


class _Partial:
    """A file that grows, and the digest of what it holds."""

    def __init__(self, out: BinaryIO, size: int, checksum: str) -> None:
        self._out = out
        self._checksum = checksum
        self.size = size
        self.held = 0
        self._state = _digest(checksum, size)
        while self.held <= size and (chunk := out.read(_CHUNK)):
            self._state.update(chunk)
            self.held += len(chunk)
        if self.held > size:
            self.restart()

    def append(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._out.write(view) :]
        self._state.update(chunk)
        self.held += len(chunk)

    def restart(self) -> None:
        self._out.seek(0)
        self._out.truncate()
        self._state = _digest(self._checksum, self.size)
        self.held = 0

    def checksum(self) -> str:
        return _named(self._checksum, self._state.hexdigest())


def _digest(checksum: str, size: int) -> "hashlib._Hash":
    """git's object id is a SHA-1 over a heading and the bytes; it tells damage, not malice."""
    if checksum.startswith("git:"):
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()


def _named(checksum: str, value: str) -> str:
    return f"git:{value}" if checksum.startswith("git:") else f"sha256:{value}"


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise PullError(f"the disk of {path.parent} is full: make room; what came is kept") from error
        raise PullError(f"{error.filename or path} cannot be written: {error.strerror or error}") from error
