"""The API on a thread of its own, listening on a Unix domain socket and, where asked for, a TCP port."""

import asyncio
import itertools
import os
import resource
import socket
import stat
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path

import h11
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from specmesh.api.app import create_app, guarded
from specmesh.api.backend import Backend
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.other_end import hears_nothing, other_end
from specmesh.api.request_parser import RequestParser, SmallParts
from specmesh.api.shapes import refusal
from specmesh.config import Port
from specmesh.errors import Busy, ConfigError
from specmesh.paths import SYSTEM_DIR
from specmesh.security.addresses import listen

log = structlog.get_logger("specmesh.api")

BACKLOG = 2048  # connections that wait to be accepted
PATIENCE = 30.0
# What a reader that has stopped is sent at most before its session waits; its own kernel's besides.
SEND_BUFFER = 64 * 1024  # bytes of an answer that are sent and not acknowledged
UNSENT = 16 * 1024  # bytes that the kernel keeps besides
WAITING = 32 * 1024  # bytes that wait here for the kernel
MOST_UNREAD = 64 * 1024  # bytes in the kernel of a client of this machine, which can be asked
UNREAD_INTERVAL = 16 * 1024  # bytes that are written between two such questions
READ_INTERVAL = 0.05  # seconds between two, while the client reads nothing
ANSWERS_END = 2.0  # seconds that answers get to end once the daemon has
SERVERS_END = 5.0  # seconds that all that is served gets to end
_FULL = refusal(Busy("the API has as many connections as may be, all with requests", "try again"))
_FULL.headers["Connection"] = "close"
_numbers = itertools.count(1)  # of connections


def _most_connections() -> int:
    """A third of the descriptors for the port and for the socket each; the rest is for drafters, models, logs. Beyond
    1024 select() takes none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max((min(soft, 1024) if soft > 0 else 1024) // 3, 1)


class ApiConnection(H11Protocol):
    """One connection of a listener, closed once its time is over. Beyond `most` the one that has waited longest for a
    request is closed; where all have one, the newest is refused."""

    most = _most_connections()
    last: object = None  # the request then
    full = False  # the transport takes no more
    crowded = False  # a client of this machine has too much in its kernel
    written = 0  # bytes since that was last looked for
    half_closed = False  # its client sends no more, and waits for the answer to what it has sent
    behind = False  # its reader takes so little that writing would have to wait; looked at for each token
    on_writable: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn: h11.Connection = RequestParser(h11.SERVER)
        self._socket: socket.socket = transport.get_extra_info("socket")
        _set_options(self._socket)
        transport.set_write_buffer_limits(WAITING)
        # An answer may look at its connection, and counts for it where clients share something.
        self.app_state = {"connection": self, "tenant": (next(_numbers),)}
        self.fine, self.left, self.last = self.loop.time(), 0, self.cycle
        there: list[ApiConnection] = [
            one
            for one in self.connections
            if isinstance(one, ApiConnection) and not one.transport.is_closing()
        ]
        beyond = len(there) - self.most
        if beyond > 0:
            oldest = min((one for one in there if not one.answering), key=lambda one: one.fine)
            if oldest is not self:
                oldest.cut()
                beyond -= 1
            if beyond > 0:
                self.app = _FULL

    def pause_writing(self) -> None:
        super().pause_writing()
        self.full = self.behind = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self.full = False
        self._read_on()

    def wrote(self, size: int) -> None:
        """Note that an answer has so many bytes more: now and then see whether they are read. The
        kernel of a client takes megabytes before it takes no more."""
        self.written += size
        if self.written >= UNREAD_INTERVAL and not self.crowded:
            self.written = 0
            self._see_what_is_read()

    def _see_what_is_read(self) -> None:
        """Note whether the client has too much before it, and look again as long as it has."""
        if self.transport.is_closing():
            return
        most = MOST_UNREAD // 2 if self.crowded else MOST_UNREAD
        self.crowded = self._unread() > most
        if self.crowded:
            self.behind = True
            self.loop.call_later(READ_INTERVAL, self._see_what_is_read)
        elif self.behind:
            self._read_on()

    def _read_on(self) -> None:
        self.behind = self.full or self.crowded
        if not self.behind:
            self.on_writable()

    def _unread(self) -> int:
        """Return the bytes in the kernel of a client of this machine, 0 where they are unknown."""
        end = other_end(self._socket)
        return 0 if end is None else end.unread

    @property
    def answering(self) -> bool:
        """The request has come whole, and is not answered to the end."""
        return (
            self.conn.their_state in (h11.DONE, h11.MUST_CLOSE) and not self.cycle.response_complete
        )

    @property
    def gone(self) -> bool:
        """Whether nobody is at the other end any more; any thread may ask."""
        return self.transport.is_closing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read as a request, and close the connection."""
        why = sys.exception()
        text = str(why) if isinstance(why, SmallParts) else msg
        super().send_400_response(text)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the client sends no more; return True where it waits for an answer."""
        self.half_closed = self.answering and self._is_there()
        if self.half_closed:
            self._ask_for_reset()
        return self.half_closed

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.half_closed and not self.answering:
            self.transport.close()

    def _is_there(self) -> bool:
        """Return False where the client has closed its end, not only said that it sends no more."""
        end = other_end(self._socket)
        return not hears_nothing(self._socket) if end is None else end.held

    def _ask_for_reset(self) -> None:
        """Send what a client has to skip, where nothing else shows whether it is still there: a
        closed one answers with a reset."""
        unknown = self._socket.family != socket.AF_UNIX and other_end(self._socket) is None
        if unknown and not self.cycle.response_started and self.scope["http_version"] == "1.1":
            more = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(more))

    def cut(self) -> None:
        """Close the connection now, whatever was not sent yet."""
        self.transport.abort()

    def check(self, patience: float) -> None:
        """Close the connection if for so long it has neither made a request, waited for an answer nor read some of
        one."""
        left, now = self.transport.get_write_buffer_size(), self.loop.time()
        if self.crowded:
            left += self._unread()
        if left < self.left or (self.answering and not left) or self.cycle is not self.last:
            self.fine = now
        self.left, self.last = left, self.cycle
        if now - self.fine >= patience or (self.half_closed and not self._is_there()):
            self.cut()


def _set_options(connection: socket.socket) -> None:
    """Bound what the kernel keeps of an answer, and let nothing wait there for what was written
    before: a body would wait 40 ms for its head to be acknowledged. asyncio sees to that only where
    a socket names its protocol, which those of `socket.create_server` do not."""
    options = [(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)]
    if connection.family != socket.AF_UNIX:
        options.append((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            options.append((socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT))
    with suppress(OSError):  # it may have ended already
        for option in options:
            connection.setsockopt(*option)


class _Server(uvicorn.Server):
    """Serves one listener. At the end it cuts connections whose answers do not end."""

    def __init__(self, app: ASGIApp, patience: float) -> None:
        self._patience = patience
        config = uvicorn.Config(
            app,
            http=ApiConnection,
            ws="none",
            log_config=None,
            log_level="error",  # its warnings are about what strangers send
            access_log=False,
            lifespan="off",
            backlog=1,  # as often asyncio tries, and logs, where there is no descriptor for a connection
            timeout_keep_alive=3600,  # `patience` says when
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        for connection in list[object](self.server_state.connections) if counter % 10 == 0 else ():
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
    """The API while it is served, by `loop`: at its socket, and at a port once `serve_port` has
    it."""

    def __init__(self, app: Starlette, patience: float) -> None:
        self._app, self._patience = app, patience
        self.loop = asyncio.new_event_loop()
        self._servers = list[_Server]()
        self._ended = list[Future[None]]()

    def serve_port(self, port: Port, host: str) -> None:
        """Serve a TCP port too, at this number of its host, behind an `ApiGuard`. Raises as
        `listen` does."""
        listener = listen(host, port.port, "--http")
        self.serve(guarded(self._app, port), listener)

    def serve_socket(self, path: Path, system: Path) -> None:
        """Serve the socket. Raises ConfigError if it cannot listen."""
        self.serve(self._app, _listen(path, system))

    def serve(self, app: ASGIApp, listener: socket.socket) -> None:
        server = _Server(app, self._patience)
        self._servers.append(server)
        serving = server.serve(sockets=[listener])
        self._ended.append(asyncio.run_coroutine_threadsafe(serving, self.loop))

    def run(self) -> None:
        """Run the loop until `close`, on its thread."""
        self.loop.set_exception_handler(_log_error)
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()

    def close(self) -> None:
        """End all servers and then the loop."""
        for server in self._servers:
            server.should_exit = True
        wait(self._ended, SERVERS_END)
        self.loop.call_soon_threadsafe(self.loop.stop)


@contextmanager
def serving_api(
    path: Path,
    backend: Backend,
    port: Port | None = None,
    responses: int = 0,
    patience: float = PATIENCE,
    system: Path = SYSTEM_DIR,
) -> Generator[Api]:
    """Serve the API while the context is open, on a thread of its own; the socket is private,
    but in the system's folder, and removed at the end. Raises ConfigError where it cannot
    listen. `port` is served too. patience: seconds for a request to come whole, to the next one
    after an answer, and for a reader to take some of what waits for it."""
    api = Api(create_app(backend, KeptResponses(responses)), patience)
    api.serve_socket(path, system)
    thread = threading.Thread(target=api.run, name="io", daemon=True)
    try:
        thread.start()
        if port is not None:
            api.serve_port(port, port.host)
        yield api
    finally:
        api.close()
        thread.join(SERVERS_END)
        path.unlink(missing_ok=True)


def _log_error(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what asyncio cannot do, such as accept a connection without a descriptor; that it
    tries every second."""
    log.error("api_trouble", what=context["message"], error=repr(context.get("exception")))


def _listen(path: Path, system: Path) -> socket.socket:
    """A listening socket at `path`, replacing a stale one but nothing else; the caller holds the instance's lock. It is
    for this user only and, in the system's folder, for the members of the service's group."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(
                f"{path} exists and is not a socket", "remove it or choose another --socket"
            )
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(
            f"cannot replace {path} ({error.strerror})", "choose another --socket"
        ) from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o117 if path.parent == system else 0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {path}: {error.strerror}") from None
    finally:
        os.umask(old)
    listener.listen(BACKLOG)
    return listener
