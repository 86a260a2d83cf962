"""The API on a thread of its own, at a Unix domain socket and perhaps at a TCP port."""

import asyncio
import socket
import threading
from collections.abc import Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from specmesh.api.app import create_app
from specmesh.api.backend import Backend
from specmesh.api.connection import ApiConnection
from specmesh.api.guard import guarded
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.listener import BACKLOG, listen_at
from specmesh.config import Port
from specmesh.paths import SYSTEM_DIR
from specmesh.security.addresses import listen

log = structlog.get_logger("specmesh.api")

PATIENCE = 30.0  # seconds that a client may do nothing
ANSWERS_END = 2.0  # seconds that answers get to end after the daemon has ended
SERVERS_END = 5.0  # seconds that all servers get to end
CHECK_TICKS = 10  # ticks of uvicorn between two checks of all connections; it has ten a second


class _Server(uvicorn.Server):
    """Serves one listener. At the end it cuts connections whose answers do not end."""

    def __init__(self, app: ASGIApp, patience: float) -> None:
        self._patience = patience
        config = uvicorn.Config(
            app,
            http=ApiConnection,
            ws="none",
            log_config=None,
            log_level="error",  # warnings are about bytes that strangers send
            access_log=False,
            lifespan="off",
            backlog=1,  # tries, each logged, to accept without a free descriptor
            timeout_keep_alive=3600,  # `patience` rules
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        if counter % CHECK_TICKS == 0:
            for connection in list[object](self.server_state.connections):
                if isinstance(connection, ApiConnection):
                    connection.check(self._patience)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(ANSWERS_END, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Api:
    """The API while `loop` serves its `app`: at its socket, and perhaps at a port."""

    def __init__(self, app: Starlette, patience: float) -> None:
        self.app = app
        self._patience = patience
        self.loop = asyncio.new_event_loop()
        self._servers: list[_Server] = []
        self._ended: list[Future[None]] = []

    def serve_port(self, port: Port, listener: socket.socket) -> None:
        """Serve a listener of TCP too, behind an `ApiGuard`."""
        self.serve(guarded(self.app, port), listener)

    def serve(self, app: ASGIApp, listener: socket.socket) -> None:
        """Serve a listener."""
        server = _Server(app, self._patience)
        self._servers.append(server)
        serving = server.serve(sockets=[listener])
        self._ended.append(asyncio.run_coroutine_threadsafe(serving, self.loop))

    def run(self) -> None:
        """Run the loop on its thread until `close`."""
        self.loop.set_exception_handler(_log_error)
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()

    def close(self) -> None:
        """End all servers, then the loop."""
        for server in self._servers:
            server.should_exit = True
        wait(self._ended, SERVERS_END)
        self.loop.call_soon_threadsafe(self.loop.stop)


@contextmanager
def serving_api(
    path: Path,
    backend: Backend,
    port: Port | None = None,
    *,
    listener: socket.socket | None = None,
    responses: int = 0,
    patience: float = PATIENCE,
    system: Path = SYSTEM_DIR,
) -> Generator[Api]:
    """Serve the API on a thread of its own while the context is open.

    path: of the socket. It is private, but for one in the system's folder, and removed at the end.
    port: served too.
    listener: at `path`, if there is one already.
    responses: most responses that are kept.
    patience: seconds for a request to come whole, until the next request after an answer, and for
        a reader to take some of the bytes that wait for it.
    Raises ConfigError if it cannot listen.
    """
    api = Api(create_app(backend, KeptResponses(responses)), patience)
    api.serve(api.app, listener or listen_at(path, system))
    thread = threading.Thread(target=api.run, name="io", daemon=True)
    try:
        thread.start()
        if port is not None:
            api.serve_port(port, listen(port.host, port.port, "--http"))
        yield api
    finally:
        api.close()
        thread.join(SERVERS_END)
        path.unlink(missing_ok=True)


def _log_error(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log a failure of asyncio, such as a connection without a descriptor: it tries again."""
    log.error("api_trouble", what=context["message"], error=repr(context.get("exception")))
