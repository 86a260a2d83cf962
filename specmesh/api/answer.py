"""An answer of the API, whole or as server-sent events, written as the events of its requests come."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specmesh.api.backend import Backend, Cancel, PauseClient, Submit
from specmesh.api.choices import Choice, nothing, usage_of, whole
from specmesh.api.shapes import error_body, refusal, server_sent, written
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import ClientEvent, Failed, Finished, Tokens
from specmesh.errors import InternalError, SpecmeshError

log = structlog.get_logger("specmesh.api")

ASKED_AT_ONCE = 8
"""Choices that are asked for in one turn of the event loop."""

PACE = 0.004
"""Seconds between two looks at what has come. Rounds faster than that are sent together: each costs this thread as much
time of the interpreter as the engine's needs for a round."""


class Connection(Protocol):
    """What an answer may know of its connection. behind: its reader takes so little that writing would have to wait.
    on_writable: called when that is over."""

    behind: bool
    on_writable: Callable[[], None]

    def wrote(self, size: int) -> None:
        """Note that an answer has so many bytes more."""

    def cut(self) -> None:
        """Close the connection now, whatever was not sent yet."""


class Answer(Response):
    """The answer to the requests of its choices. No task wakes up for a token. A stream has a chunk at the start, one
    per round or for what came together, one with finish_reason, and one with the usage where that was asked for
    (`tells_usage`). An error before anything was written becomes a status code, not a broken stream. A client that
    leaves cancels all."""

    def __init__(
        self,
        backend: Backend,
        choices: Sequence[Choice],
        headers: dict[str, str],
        *,
        stream: bool,
        tells_usage: bool,
        tenant: Tenant = (),
    ) -> None:
        super().__init__(
            headers=headers, media_type="text/event-stream" if stream else "application/json"
        )
        del self.headers["content-length"]
        self._backend, self._choices, self._stream, self._tells_usage = (
            backend,
            choices,
            stream,
            tells_usage,
        )
        self._tenant = tenant
        self._live: list[Choice] = []
        self._paused: list[Choice] = []  # of these: whose sessions wait for the reader
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0
        self._text = ""  # to be written
        self._begun = self._complete = self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop, self._scope, self._receive, self._send = (
            asyncio.get_running_loop(),
            scope,
            receive,
            send,
        )
        self._connection: Connection = scope["state"]["connection"]
        self._connection.on_writable = self._heard
        self._live = list(self._choices)
        try:
            await self._submit()
            while (await receive())["type"] != "http.disconnect":
                pass  # so that the server, too, learns that the answer is complete
        finally:
            self._ended = True
            self._connection.on_writable = (
                nothing  # the connection may outlive this answer for long
            )
            self._leave()

    async def _submit(self) -> None:
        """Ask for the choices; of many some at a time, so that others' requests come in between."""
        for number, choice in enumerate(self._choices):
            if not self._live:
                return  # one was refused, or the client has left
            choice.heard = self._heard
            self._backend.submit(Submit(choice.request, choice, self._tenant))
            if number % ASKED_AT_ONCE == ASKED_AT_ONCE - 1:
                await asyncio.sleep(0)

    def _heard(self) -> None:
        """Look at what has come, after the frames of this turn were sent; a little later where that was just done."""
        if self._timer is None:
            self._timer = self._loop.call_at(self._looked + PACE, self._look)

    def _look(self) -> None:
        """Write what has come. Whatever fails ends the answer, at last with its connection: its
        client never waits in vain."""
        self._timer = None
        if self._ended:
            return
        if self._connection.behind:
            self._pause()
            return
        self._looked = self._loop.time()
        try:
            self._go_on()
            if self._paused and not self._connection.behind:
                self._resume()
        except Exception as error:  # noqa: BLE001  (what could not be sent, not even an error)
            self._break_off(error)

    def _go_on(self) -> None:
        """Write what has come, or the error that ends the answer. Raise what keeps it from being
        written."""
        try:
            for choice in list(self._live):
                self._take(choice)
            if not self._live and not self._complete:
                self._complete = True
                self._text += self.end()
        except SpecmeshError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  (a defect; the client waits for an end)
            _log(error)
            self._fail(InternalError())
        else:
            if self._text or self._complete:
                self._write()

    def _pause(self) -> None:
        """Let sessions that have more to say than is read wait for the reader."""
        for choice in self._live:
            if choice.waits and choice not in self._paused:
                self._paused.append(choice)
                self._backend.submit(PauseClient(choice, paused=True))

    def _resume(self) -> None:
        for choice in self._paused:
            if choice in self._live:
                self._backend.submit(PauseClient(choice, paused=False))
        self._paused.clear()

    def _take(self, choice: Choice) -> None:
        """Take what has come for a choice; raise the daemon's error after what came before it."""
        previous: ClientEvent | None = None
        for event in choice.events():
            joins = (
                isinstance(event, Tokens)
                and isinstance(previous, Tokens)
                and not choice.request.rounds
            )
            if self._stream and not joins:
                self._text += self.part(choice)
            if isinstance(event, Failed):
                self._live.remove(choice)
                raise choice.named(event.error)
            choice.add(event)
            previous = event
            if isinstance(event, Finished):
                self._live.remove(choice)
                break  # what is said after it came too late
        if self._stream:
            self._text += self.part(choice)

    def part(self, choice: Choice) -> str:
        """What has come of a choice since the last part, as events of a stream."""
        return choice.chunk()

    def end(self) -> str:
        """The whole answer, or the events that end a stream."""
        if not self._stream:
            return written(whole(self._choices))
        last = self._choices[0].shape.chunk("", None, {}) | dict[str, object](
            choices=[], usage=usage_of(self._choices)
        )
        return (server_sent(last) if self._tells_usage else "") + "data: [DONE]\n\n"

    def failed(self, error: SpecmeshError) -> str:
        """The events that end a stream with an error."""
        return server_sent(error_body(error))

    def _fail(self, error: SpecmeshError) -> None:
        self._leave()
        if self._begun:
            self._text, self._complete = self._text + self.failed(error), True
            self._write()
        else:
            self._ended = True
            self._refusing = asyncio.ensure_future(self._refuse(error))

    async def _refuse(self, error: SpecmeshError) -> None:
        """Answer with an error's status."""
        try:
            await refusal(error)(self._scope, self._receive, self._send)
        except Exception as failure:  # noqa: BLE001  (nobody awaits this task)
            self._break_off(failure)

    def _break_off(self, error: Exception) -> None:
        """End an answer that cannot be written: its sessions, and its connection, which the client
        notices."""
        _log(error)
        self._ended = True
        self._leave()
        self._connection.cut()

    def _leave(self) -> None:
        for choice in self._live:
            self._backend.submit(Cancel(choice))
        self._live.clear()

    def _write(self) -> None:
        if not self._begun:
            self._begun = True
            merged = sorted({role for choice in self._choices for role in choice.merged})
            if merged:
                self.headers["X-Specmesh-Merged"] = ", ".join(merged)
            _at_once(
                self._send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
            )
            if self._connection.behind:
                return
        body, self._text, self._ended = self._text.encode(), "", self._complete
        more = not self._complete
        _at_once(self._send({"type": "http.response.body", "body": body, "more_body": more}))
        self._connection.wrote(len(body))


def _log(error: Exception) -> None:
    log.error("api_failed", error=f"{type(error).__name__}: {error}")


def _at_once(sending: Awaitable[None]) -> None:
    """Send without a task: an ASGI server's `send` waits only for a reader that is behind."""
    if next(sending.__await__(), None) is not None:
        raise RuntimeError("this server's send waits for something else")
