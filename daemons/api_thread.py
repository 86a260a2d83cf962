"""The local API on a thread of its own, listening on a Unix domain socket."""

import errno
import fcntl
import os
import socket
import stat
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import uvicorn

from specmesh.api import create_app
from specmesh.errors import Busy, ConfigError
from specmesh.paths import check_socket_path, prepare_folder
from specmesh.requests import Backend


class Instance:
    """Holds the lock beside a socket: one daemon per socket path, also after a crash (flock, not a pid file)."""

    def __init__(self, path: Path) -> None:
        check_socket_path(path)
        prepare_folder(path)
        self._file = _locked(path.with_name(path.name + ".lock"), path)

    def close(self) -> None:
        """Let the path go."""
        self._file.close()


def _locked(lock: Path, path: Path) -> IO[str]:
    try:
        file = os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    except OSError as error:
        raise ConfigError(f"cannot write {lock}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        raise Busy(f"already running at {path} (pid {pid}): stop it or choose another --socket") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


class ApiThread:
    """Serves the API while the context is open; the socket is private to this user and removed at the end."""

    def __init__(self, path: Path, backend: Backend) -> None:
        self._path = path
        self._socket = _listen(path)
        config = uvicorn.Config(
            create_app(backend), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(5.0)
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, replacing a stale one but nothing else; the caller holds the instance's lock."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} exists and is not a socket: remove it or choose another --socket")
        path.unlink()
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {path}: {errno.errorcode.get(error.errno or 0, error)}") from None
    finally:
        os.umask(old)
    listener.listen(128)
    return listener
