"""The answer to a request: its choices, written as their events come."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specmesh.api.backend import Backend, Cancel, PauseClient, Submit
from specmesh.api.choice import Choice, nothing, usage_of
from specmesh.api.connection import ApiConnection
from specmesh.api.dialects.base import Renderer
from specmesh.api.generation import Generation
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import Account, Failed, Finished, Tokens
from specmesh.errors import InternalError, SpecmeshError

log = structlog.get_logger("specmesh.api")

PACE = 0.004
"""Seconds between two looks at the events of an answer.

Faster rounds are sent together: sending takes this thread as much time of the interpreter as a
round takes the engine's thread.
"""


QUIET_INTERVAL = 5.0
"""Seconds without a word after which a stream has a ping, in dialects that have one."""


class Answer(Response):
    """Writes an answer, a stream or whole. No task wakes up for a token.

    A stream has an event at the start, one for each round or for rounds that came together, and
    one at the end. An error before the first of them becomes a status code. A client that leaves
    cancels all choices.

    refuse: makes the response for an error before anything was written.
    tenant: the client for whose share the choices count. account: whose outputs they are.
    """

    def __init__(
        self,
        backend: Backend,
        generation: Generation,
        choices: Sequence[Choice],
        *,
        renderer: Renderer,
        refuse: Callable[[SpecmeshError], Response],
        headers: dict[str, str],
        tenant: Tenant = (),
        account: Account | None = None,
    ) -> None:
        media_type = "text/event-stream" if generation.stream else "application/json"
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._backend = backend
        self._generation = generation
        self._choices = choices
        self._renderer = renderer
        self._refuse = refuse
        self._tenant = tenant
        self._account = account
        self._open: list[Choice] = []  # choices that have not ended
        self._paused: list[Choice] = []  # those whose sessions wait for the reader
        self._timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._quiet = False  # nothing was written since the last look for a ping
        self._looked = 0.0
        self._text = ""  # to be written
        self._begun = False
        self._complete = False  # all text is known
        self._ended = False  # nothing more is written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until all is written or the client has left."""
        self._loop = asyncio.get_running_loop()
        self._scope = scope
        self._receive = receive
        self._send = send
        self._connection: ApiConnection = scope["state"]["connection"]
        self._connection.on_writable = self._look_soon
        self._open = list(self._choices)
        try:
            self._submit()
            # the server, too, has to learn that the answer is complete
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._ended = True
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            # the connection may outlive this answer
            self._connection.on_writable = nothing
            self._leave()

    def _submit(self) -> None:
        """Submit all choices together: apart, answers take each other's room, and all fail."""
        for choice in self._choices:
            choice.on_arrival = self._look_soon
        texts = [(choice.request, choice) for choice in self._choices]
        self._backend.submit(Submit(texts, self._tenant, self._account))

    def _look_soon(self) -> None:
        """Look for events once this turn's frames are read, and no sooner than the pace allows."""
        if self._timer is None:
            self._timer = self._loop.call_at(self._looked + PACE, self._look)

    def _look(self) -> None:
        """Write the events that have come.

        Any failure ends the answer, at last with its connection: no client waits in vain.
        """
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
        except Exception as error:  # noqa: BLE001  (not even an error could be sent)
            self._break_off(error)

    def _go_on(self) -> None:
        """Write the events that have come, or an error that ends the answer."""
        try:
            for choice in list(self._open):
                self._read(choice)
            if not self._open and not self._complete:
                self._complete = True
                self._text += self._end()
        except SpecmeshError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  (a defect; the client waits for an end)
            log_failure(error)
            self._fail(InternalError())
        else:
            if self._text or self._complete:
                self._write()

    def _pause(self) -> None:
        """Pause the sessions whose events wait for the reader."""
        for choice in self._open:
            if choice.arrived and choice not in self._paused:
                self._paused.append(choice)
                self._backend.submit(PauseClient(choice, paused=True))

    def _resume(self) -> None:
        for choice in self._paused:
            if choice in self._open:
                self._backend.submit(PauseClient(choice, paused=False))
        self._paused.clear()

    def _read(self, choice: Choice) -> None:
        """Read the events of a choice. Raises the daemon's error, after the events before it."""
        joins_rounds = not choice.request.rounds
        joins = joins_rounds
        events = choice.arrived
        choice.arrived = []
        for event in events:
            joined = joins
            joins = joins_rounds and isinstance(event, Tokens)
            if not (joined and joins):
                self._render(choice)
            if isinstance(event, Failed):
                self._open.remove(choice)
                raise self._generation.named(event.error)
            choice.add(event)
            if isinstance(event, Finished):
                self._open.remove(choice)
                break  # later events come too late
        self._render(choice)

    def _render(self, choice: Choice) -> None:
        """Add a choice's new events to the text of a stream."""
        if self._generation.stream:
            events = choice.take()
            if events:
                self._text += self._renderer.part(choice.index, events)

    def _end(self) -> str:
        """Return the whole answer, or the end of a stream."""
        usage = usage_of(self._choices)
        if self._generation.stream:
            return self._renderer.end(usage)
        return self._renderer.whole([choice.take() for choice in self._choices], usage)

    def _fail(self, error: SpecmeshError) -> None:
        """End the answer with an error."""
        self._leave()
        if self._begun:
            self._text += self._renderer.error(error)
            self._complete = True
            self._write()
        else:
            self._ended = True
            self._refusing = asyncio.ensure_future(self._send_refusal(error))

    async def _send_refusal(self, error: SpecmeshError) -> None:
        """Answer with the status of an error."""
        try:
            await self._refuse(error)(self._scope, self._receive, self._send)
        except Exception as failure:  # noqa: BLE001  (nobody awaits this task)
            self._break_off(failure)

    def _break_off(self, error: Exception) -> None:
        """End an answer that cannot be written, with its connection, which the client notices."""
        log_failure(error)
        self._ended = True
        self._leave()
        self._connection.cut()

    def _leave(self) -> None:
        """Cancel the choices that have not ended."""
        for choice in self._open:
            self._backend.submit(Cancel(choice))
        self._open.clear()

    def _ping(self) -> None:
        """Write a ping if nothing was written for a while, and look again after the next while."""
        if self._ended:
            return
        if self._quiet and not self._connection.behind:
            self._text += self._renderer.ping()
            self._write()
        self._quiet = True
        self._ping_timer = self._loop.call_later(QUIET_INTERVAL, self._ping)

    def _write(self) -> None:
        """Write the text, after the head of the answer."""
        self._quiet = False
        if not self._begun:
            self._write_head()
            if self._connection.behind:
                return
        body = self._text.encode()
        self._text = ""
        self._ended = self._complete
        more = not self._complete
        _send_now(self._send({"type": "http.response.body", "body": body, "more_body": more}))
        self._connection.wrote(len(body))

    def _write_head(self) -> None:
        self._begun = True
        merged: set[str] = set()
        for choice in self._choices:
            merged.update(choice.merged)
        if merged:
            self.headers["X-Specmesh-Merged"] = ", ".join(sorted(merged))
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        _send_now(self._send(head))
        if self._generation.stream and self._renderer.ping():
            self._ping_timer = self._loop.call_later(QUIET_INTERVAL, self._ping)


def log_failure(error: Exception) -> None:
    log.error("api_failed", error=f"{type(error).__name__}: {error}")


def _send_now(sending: Awaitable[None]) -> None:
    """Send without a task: an ASGI server's `send` waits only for a reader that is behind."""
    if next(sending.__await__(), None) is not None:
        raise RuntimeError("this server's send waits for something else")
