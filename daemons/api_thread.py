"""The API on a thread of its own, listening on a Unix domain socket and, where asked for, a TCP port."""

import asyncio
import errno
import os
import socket
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from specmesh.api.app import create_app
from specmesh.api.guard import Guard
from specmesh.api.port import Port
from specmesh.errors import ConfigError
from specmesh.paths import SYSTEM_DIR
from specmesh.requests import Backend


class ApiThread:
    """Serves the API while the context is open; the socket is private and removed at the end.

    Raises ConfigError where it cannot listen. `port` is served behind a `Guard`; `defaults`: see `create_app`.
    """

    def __init__(
        self,
        path: Path,
        backend: Backend,
        port: Port | None = None,
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self._path = path
        app = create_app(backend, defaults)
        over_tcp = [(_server(Guard(app, port.keys)), _listen_tcp(port))] if port is not None else []
        self._listeners = [(_server(app), _listen(path)), *over_tcp]
        self._thread = threading.Thread(target=self._serve, name="api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server, _ in self._listeners:
            server.should_exit = True
        self._thread.join(5.0)
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        asyncio.run(self._serve_all())

    async def _serve_all(self) -> None:
        await asyncio.gather(*(server.serve(sockets=[listener]) for server, listener in self._listeners))


def _server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
    return uvicorn.Server(config)


def _listen_tcp(port: Port) -> socket.socket:
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    try:
        return socket.create_server((port.host, port.port), family=family)
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, str(error))
        where = f"{port.host}:{port.port}"
        raise ConfigError(
            f"cannot listen at {where} ({reason}): is the port taken? Choose another --http", "http"
        ) from None


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, replacing a stale one but nothing else; the caller holds the instance's lock.

    It is for this user only and, in the system's folder, for the members of the service's group.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} exists and is not a socket: remove it or choose another --socket")
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot replace {path} ({error.strerror}): choose another --socket") from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o117 if path.parent == SYSTEM_DIR else 0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {path}: {errno.errorcode.get(error.errno or 0, error)}") from None
    finally:
        os.umask(old)
    listener.listen(128)
    return listener
