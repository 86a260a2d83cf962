"""An answer of the API, whole or as server-sent events, written as the events of its requests come."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, cast

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specmesh.api.choices import Event
from specmesh.api.requests import Backend, Cancel, Submit
from specmesh.api.shapes import error_body, refusal, server_sent
from specmesh.core.requests import ClientEvent, Failed, Finished, Request, Tokens
from specmesh.errors import InternalError, SpecmeshError

log = structlog.get_logger("specmesh.api")

PACE = 0.004
"""Seconds between two looks at what has come. Rounds faster than that are sent together: each costs this thread as much
time of the interpreter as the engine's needs for a round."""


class Connection(Protocol):
    """What an answer may know of its connection. on_writable: called when writing need no longer wait."""

    flow: "Flow"
    on_writable: Callable[[], None]


class Flow(Protocol):
    """write_paused: the reader takes so little that writing would have to wait."""

    write_paused: bool


def _nothing() -> None:
    pass


class LocalClient:
    """A client of this daemon's API. heard: called once events have come, and not again before they are taken."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[ClientEvent] = deque()
        self._heard = heard
        self._woken = False

    def on_event(self, event: ClientEvent) -> None:
        """Queue an event; wake the loop once per batch."""
        self._events.append(event)
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._heard)  # frames of the same turn are sent first

    def take(self) -> list[ClientEvent]:
        """Return the events since the last call, in order."""
        self._woken = False
        events = list(self._events)
        self._events.clear()
        return events


class Form(Protocol):
    """What an answer's events become; `add` and `end` return what is to be written now."""

    media_type: str

    def add(self, number: int, event: Event) -> str: ...

    def end(self) -> str: ...


class Answer(Response):
    """The answer to requests, one for each choice. No task wakes up for a token.

    An error before anything was written becomes a status code, not a broken stream. A client that leaves cancels all.
    """

    def __init__(self, backend: Backend, requests: Sequence[Request], form: Form, headers: dict[str, str]) -> None:
        super().__init__(headers=headers, media_type=form.media_type)
        del self.headers["content-length"]
        self._backend, self._requests, self._form = backend, requests, form
        self._joins = not requests[0].rounds
        self._live: dict[int, LocalClient] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._written = float("-inf")
        self._text = ""  # to be written
        self._begun = self._complete = self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop, self._scope, self._receive, self._send = asyncio.get_running_loop(), scope, receive, send
        self._connection: Connection | None = scope.get("state", {}).get("connection")
        if self._connection is not None:
            self._connection.on_writable = self._heard
        self._live = {number: LocalClient(self._heard) for number in range(len(self._requests))}
        try:
            for number, client in self._live.items():
                self._backend.submit(Submit(self._requests[number], client))
            while (await receive())["type"] != "http.disconnect":
                pass  # so it is told too that the answer is complete
        finally:
            self._ended = True
            if self._connection is not None:
                self._connection.on_writable = _nothing  # the connection may outlive this answer for long
            self._leave()

    def _heard(self) -> None:
        """Write what has come, or a little later what comes by then."""
        wait = self._written + PACE - self._loop.time()
        if wait <= 0:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._ended or self._behind:
            return
        self._written = self._loop.time()
        try:
            for number, event in self._take():
                self._text += self._form.add(number, event)
            if not self._live and not self._complete:
                self._complete = True
                self._text += self._form.end()
        except SpecmeshError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  (a defect; the client waits for an end)
            log.error("api_failed", error=f"{type(error).__name__}: {error}")
            self._fail(InternalError())
        else:
            if self._text or self._complete:
                self._write()

    def _take(self) -> Iterator[tuple[int, Event]]:
        """Yield what has come, with the number of its choice. Where nobody asked for rounds, ids that follow ids join
        them. Raise the daemon's error after what came before it."""
        for number, client in list(self._live.items()):
            last: Tokens | None = None
            for event in client.take():
                if self._joins and isinstance(event, Tokens):
                    last = event if last is None else last.joined(event)
                    continue
                if last is not None:
                    yield number, last
                    last = None
                if isinstance(event, Failed):
                    del self._live[number]
                    raise event.error
                yield number, event
                if isinstance(event, Finished):
                    del self._live[number]
                    break  # what is said after it came too late
            if last is not None:
                yield number, last

    @property
    def _behind(self) -> bool:
        """Whether its reader is: nothing is written before the connection says that it can be."""
        return self._connection is not None and self._connection.flow.write_paused

    def _fail(self, error: SpecmeshError) -> None:
        self._leave()
        if self._begun:
            self._text, self._complete = self._text + server_sent(error_body(error)), True
            self._write()
        else:
            self._ended = True
            self._refusing = asyncio.ensure_future(refusal(error)(self._scope, self._receive, self._send))

    def _leave(self) -> None:
        """Cancel those that have not ended."""
        for client in self._live.values():
            self._backend.submit(Cancel(client))
        self._live.clear()

    def _write(self) -> None:
        if not self._begun:
            self._begun = True
            _at_once(self._send({"type": "http.response.start", "status": 200, "headers": self.raw_headers}))
            if self._behind:
                return
        text, self._text, self._ended = self._text, "", self._complete
        _at_once(self._send({"type": "http.response.body", "body": text.encode(), "more_body": not self._complete}))


def _at_once(sending: Awaitable[None]) -> None:
    """Send without a task: an ASGI server's `send` waits only for a reader that is behind."""
    with suppress(StopIteration):
        cast("Coroutine[None, None, None]", sending).send(None)
        raise RuntimeError("this server's send waits for something else")
