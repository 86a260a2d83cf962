"""One daemon per socket path. Light, so that the lock is there before what a daemon takes long to import."""

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import IO, Self

from specmesh.errors import Busy, ConfigError
from specmesh.paths import check_socket_path, is_own, lock_of, prepare_folder

TRIES, PAUSE = 5, 0.02  # and seconds between them: a client that looks for a daemon holds the lock for a moment too

_UNUSABLE = "cannot write {} ({}): remove it or choose another --socket"


class InstanceLock:
    """The lock beside a socket: one daemon per socket path, also after a crash (flock, not a pid file).

    From then on clients know that a daemon is starting there, see `specmesh.client`. Raises Busy where another one
    holds it, ConfigError where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        check_socket_path(path)
        prepare_folder(path)
        self._lock = lock_of(path)
        while not _is_at(file := _locked(self._lock, path), self._lock):
            file.close()  # whoever held it has gone and taken its file along
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lock.unlink(missing_ok=True)  # while it is locked: nobody else's can be meant
        self._file.close()


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _locked(lock: Path, path: Path) -> IO[str]:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(lock, flags, 0o600), "r+", errors="replace")
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or "it is no file"
        raise ConfigError(_UNUSABLE.format(lock, why)) from None
    if not _flocked(file):
        pid = file.read(32).strip() or "unknown"
        file.close()
        raise Busy(f"already running at {path} (pid {pid}): stop it or choose another --socket")
    if not is_own(file.fileno()):
        file.close()
        raise ConfigError(_UNUSABLE.format(lock, "it is a link, or another user's"))
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _flocked(file: IO[str]) -> bool:
    for attempt in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE if attempt + 1 < TRIES else 0)
        else:
            return True
    return False
