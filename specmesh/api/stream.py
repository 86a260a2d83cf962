"""Answers as server-sent events."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Protocol, cast

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from specmesh.api.answer import PACE, Chunks, Generations, error_body
from specmesh.api.shapes import Json, server_sent
from specmesh.errors import Busy, SpecmeshError

_DONE = "data: [DONE]\n\n"


def _nothing() -> None:
    pass


class Flow(Protocol):
    """write_paused: the reader takes so little that writing would have to wait."""

    write_paused: bool


class Connection(Protocol):
    """What an answer may know of its connection. on_writable: called when writing need no longer wait."""

    flow: Flow
    on_writable: Callable[[], None]


class TokenStream(Response):
    """An answer of several chunks, which are written as their events come: no task wakes up for a token.

    crowd: whether somebody waits for a session; an answer whose reader stands still for `patience` seconds then ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generations: Generations,
        chunks: Chunks,
        crowd: Callable[[], Awaitable[bool]],
        patience: float,
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generations, self._chunks = generations, chunks
        self._crowd, self._patience = crowd, patience
        self._timer: asyncio.TimerHandle | None = None
        self._written = 0.0
        self._unread_since = math.inf
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop, self._send = asyncio.get_running_loop(), send
        self._connection: Connection | None = scope.get("state", {}).get("connection")
        if self._connection is not None:
            self._connection.on_writable = self._heard
        watch = asyncio.create_task(self._watch())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._generations.heard = self._heard
            self._flush()
            while (await receive())["type"] != "http.disconnect":
                pass  # so it is told too that the answer is complete
        finally:
            self._ended = True
            if self._connection is not None:
                self._connection.on_writable = _nothing  # the connection may outlive this answer for long
            watch.cancel()
            self._generations.leave()

    def _heard(self) -> None:
        """Write what has come, or a little later what comes by then."""
        wait = self._written + PACE - self._loop.time()
        if wait <= 0:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._ended:
            return
        if self._connection is not None and self._connection.flow.write_paused:
            self._unread_since = min(self._unread_since, time.monotonic())
            return
        self._unread_since, self._written = math.inf, self._loop.time()
        text, last = "", ""
        try:
            for number, event in self._generations.take():
                text += self._chunks.of(number, event)
            if self._generations.over():
                last = _DONE
        except SpecmeshError as error:
            self._generations.leave()
            last = server_sent(error_body(error))
        except Exception:  # a defect: nobody waits for what a callback raises, but the client waits for an end
            self._write(text, more=False)
            raise
        if text or last:
            self._write(text + last, more=not last)

    def _write(self, text: str, *, more: bool = True) -> None:
        """Send at once: an ASGI server's `send` waits only for a reader that is behind."""
        self._ended = not more
        body: Message = {"type": "http.response.body", "body": text.encode(), "more_body": more}
        sending = cast("Coroutine[None, None, None]", self._send(body))
        with suppress(StopIteration):
            sending.send(None)
            raise RuntimeError("this server's send waits for something else")

    async def _watch(self) -> None:
        """End the answer of a reader that stands still while others wait for a session."""
        unread = 0.0
        while unread < self._patience or not await self._crowd():
            await asyncio.sleep(self._patience)
            unread = time.monotonic() - self._unread_since
        why = f"this stream was not read for {unread:.0f} s while others waited for a session: ask again"
        self._generations.fail(Busy(why))


async def as_events(first: Json, others: AsyncGenerator[Json, None]) -> AsyncIterator[str]:
    """Values as server-sent events, then [DONE]."""
    async with aclosing(others):
        yield server_sent(first)
        async for value in others:
            yield server_sent(value)
    yield _DONE
