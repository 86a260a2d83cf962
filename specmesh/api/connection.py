"""One connection to the API: its bounds, its patience, and its reader."""

import itertools
import resource
import socket
import sys
from asyncio import Transport
from collections.abc import Callable
from contextlib import suppress

import h11
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specmesh.api.dialects.message_errors import is_for_messages, message_refusal
from specmesh.api.error_body import refusal
from specmesh.api.other_end import has_no_peer, other_end, user_of
from specmesh.api.request_parser import RequestParser, SmallParts
from specmesh.errors import Busy

# The most that a reader which has stopped is sent before its session waits, in bytes. The buffer
# of its own kernel comes on top.
SEND_BUFFER = 64 * 1024  # sent and not acknowledged
UNSENT = 16 * 1024  # in our kernel, not sent yet
WAITING = 32 * 1024  # for our kernel
MOST_UNREAD = 64 * 1024  # in the kernel of a client of this machine, where that can be seen

UNREAD_INTERVAL = 16 * 1024  # bytes written between two looks at the client's kernel
READ_INTERVAL = 0.05  # seconds between two looks while the client reads nothing

SELECT_LIMIT = 1024
"""select() takes no more descriptors."""

_FULL = Busy("the API has as many connections as may be, all with requests", "try again")
_numbers = itertools.count(1)  # of connections


def _most_connections() -> int:
    """Return a third of the descriptors: one for the port, one for the socket, one for the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = SELECT_LIMIT
    if soft > 0:
        descriptors = min(soft, SELECT_LIMIT)
    return max(descriptors // 3, 1)


class ApiConnection(H11Protocol):
    """One connection of a listener.

    It is closed when its time is over. Beyond `most` connections the one that has waited longest
    for a request is closed; if all have one, the newest is refused.

    behind: its reader takes so little that writing would have to wait. Each token asks.
    on_writable: called once that is over.
    fine_at: time at which its client last did something.
    """

    most = _most_connections()
    behind = False
    on_writable: Callable[[], None] = staticmethod(lambda: None)
    _last_cycle: object = None  # the request at the last check
    _full = False  # the transport takes no more
    _crowded = False  # a client of this machine has too much in its kernel
    _written = 0  # bytes since the last look at that
    half_closed = False  # the client sends no more, and waits for the answer to its request

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Set up the connection, and make room for it."""
        super().connection_made(transport)
        self.conn: h11.Connection = RequestParser(h11.SERVER)
        self._socket: socket.socket = transport.get_extra_info("socket")
        _set_options(self._socket)
        transport.set_write_buffer_limits(WAITING)
        # an answer looks at its connection, and counts for it where clients share something
        state: dict[str, object] = {"connection": self, "tenant": (next(_numbers),)}
        user = user_of(self._socket)
        if user is not None:
            state["account"] = ("user", user)
        self.app_state = state
        self.fine_at = self.loop.time()
        self._left = 0
        self._last_cycle = self.cycle
        self._make_room()

    def _make_room(self) -> None:
        """Close the connection that has waited longest if there are too many."""
        connections = list[object](self.connections)
        every = [other for other in connections if isinstance(other, ApiConnection)]
        there = [connection for connection in every if not connection.gone]
        beyond = len(there) - self.most
        if beyond <= 0:
            return
        idle = [connection for connection in there if not connection.answering]
        oldest = min(idle, key=lambda connection: connection.fine_at)
        if oldest is not self:
            oldest.cut()
            beyond -= 1
        if beyond > 0:
            self.app = refuse_full

    def pause_writing(self) -> None:
        """Note that the transport takes no more."""
        super().pause_writing()
        self._full = True
        self.behind = True

    def resume_writing(self) -> None:
        """Note that the transport takes more."""
        super().resume_writing()
        self._full = False
        self._read_on()

    def wrote(self, size: int) -> None:
        """Note that an answer has written so many bytes more.

        Now and then it looks whether they are read: the kernel of a client takes megabytes before
        it takes no more.
        """
        self._written += size
        if self._written >= UNREAD_INTERVAL and not self._crowded:
            self._written = 0
            self._look_at_reader()

    def _look_at_reader(self) -> None:
        """Note whether the client has too much unread, and look again as long as it has."""
        if self.gone:
            return
        most = MOST_UNREAD // 2 if self._crowded else MOST_UNREAD
        self._crowded = self._unread() > most
        if self._crowded:
            self.behind = True
            self.loop.call_later(READ_INTERVAL, self._look_at_reader)
        elif self.behind:
            self._read_on()

    def _read_on(self) -> None:
        self.behind = self._full or self._crowded
        if not self.behind:
            self.on_writable()

    def _unread(self) -> int:
        """Return the bytes in the kernel of a client of this machine, 0 if they are unknown."""
        end = other_end(self._socket)
        if end is None:
            return 0
        return end.unread

    @property
    def answering(self) -> bool:
        """Return True if a request has come whole, and is not answered to the end."""
        came_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return came_whole and not self.cycle.response_complete

    @property
    def gone(self) -> bool:
        """Return True if the connection is closed or closing, from any thread."""
        return self.transport.is_closing()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, and close the connection."""
        why = sys.exception()
        text = str(why) if isinstance(why, SmallParts) else msg
        super().send_400_response(text)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the client sends no more; return True if it waits for an answer."""
        self.half_closed = self.answering and self._is_there()
        if self.half_closed:
            self._provoke_reset()
        return self.half_closed

    def on_response_complete(self) -> None:
        """Close the connection of a client that sends no more."""
        super().on_response_complete()
        if self.half_closed and not self.answering:
            self.transport.close()

    def _is_there(self) -> bool:
        """Return False if the client has closed its end; it may also just send no more."""
        end = other_end(self._socket)
        if end is not None:
            return end.held
        return not has_no_peer(self._socket)

    def _provoke_reset(self) -> None:
        """Send bytes that a client has to skip, if nothing else shows whether it is there.

        A client that has closed its end answers with a reset.
        """
        if self._socket.family == socket.AF_UNIX or other_end(self._socket) is not None:
            return
        if not self.cycle.response_started and self.scope["http_version"] == "1.1":
            more = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(more))

    def cut(self) -> None:
        """Close the connection now, with all that was not sent yet."""
        self.transport.abort()

    def check(self, patience: float) -> None:
        """Close the connection if its client has done nothing for so many seconds.

        It may make a request, wait for an answer, or read some of one.
        """
        now = self.loop.time()
        left = self.transport.get_write_buffer_size()
        if self._crowded:
            left += self._unread()
        reads = left < self._left
        waits = self.answering and not left
        asks = self.cycle is not self._last_cycle
        if reads or waits or asks:
            self.fine_at = now
        self._left = left
        self._last_cycle = self.cycle
        has_left = self.half_closed and not self._is_there()
        if has_left or now - self.fine_at >= patience:
            self.cut()


async def refuse_full(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request of a connection that is one too many, and close it."""
    for_messages = is_for_messages(scope["path"], Headers(scope=scope))
    response = message_refusal(_FULL) if for_messages else refusal(_FULL)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)


def _set_options(connection: socket.socket) -> None:
    """Bound the bytes of an answer in the kernel, and send each write at once.

    Otherwise a body waits 40 ms until its head is acknowledged. asyncio prevents that only for
    sockets that name their protocol, which those of `socket.create_server` do not.
    """
    options = [(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)]
    if connection.family != socket.AF_UNIX:
        options.append((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            options.append((socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT))
    with suppress(OSError):  # the connection may have ended already
        for option in options:
            connection.setsockopt(*option)
