"""The asynchronous client of a daemon: asyncio's streams and clock around the same decisions."""

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self, Unpack

from specmesh.client.address import Sockets, address_of, checked_key, checked_timeout
from specmesh.client.connections import Connections
from specmesh.client.http_exchange import RECEIVE_BYTES, Exchange
from specmesh.client.pieces import Collector, Completion, ReadingProgress, TextPiece
from specmesh.client.request_bodies import (
    ChatOptions,
    Message,
    Prompt,
    TextOptions,
    chat_body,
    resource_of,
    text_body,
)
from specmesh.client.resume import RECONNECT_TIMEOUT, Resumption
from specmesh.client.sync import OnProgress
from specmesh.core.fields import Json
from specmesh.errors import Busy, DaemonUnreachable, RequestError, WentAway


class AsyncClient:
    """`Client` for asyncio: the same parameters, methods, results and errors.

    Its methods are coroutines, its streams asynchronous iterators and contexts. Tasks of one loop
    may share a client. A task that is cancelled cancels the text that it waits for.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        *,
        api_key: str = "",
        ca_file: str | os.PathLike[str] | None = None,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        on_wait: Callable[[str], object] | None = None,
    ) -> None:
        self.timeout = checked_timeout(timeout)
        self._address = address_of(address, ca_file)
        self._key = checked_key(api_key)
        self._reconnect_timeout = reconnect_timeout
        self._on_wait = on_wait
        self._connections = Connections("client", _cut)
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()

    async def generate(
        self,
        prompt: Prompt,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[TextOptions],
    ) -> Completion:
        """Return the text that continues a prompt. See Client.generate."""
        async with self.stream(prompt, on_progress=on_progress, **options) as stream:
            return await stream.result()

    def stream(
        self,
        prompt: Prompt,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[TextOptions],
    ) -> "AsyncStream":
        """Return the stream of a text. See Client.stream."""
        body = text_body(prompt, options, progress=on_progress is not None)
        return self._stream(body, on_progress)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Return the model's answer to a chat. See Client.chat."""
        async with self.stream_chat(messages, on_progress=on_progress, **options) as stream:
            return await stream.result()

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[ChatOptions],
    ) -> "AsyncStream":
        """Return the stream of an answer to a chat. See Client.stream_chat."""
        body = chat_body(messages, options, progress=on_progress is not None)
        return self._stream(body, on_progress)

    def resume(self, text_id: str) -> "AsyncStream":
        """Return the stream of an interrupted completion. See Client.resume."""
        return self._stream({"resume": {"id": text_id}}, None)

    async def stats(self) -> Json:
        """Return the daemon's state: the object of `specmesh stats --json`."""
        return await self._get("/stats")

    async def health(self) -> Json:
        """Return {"status": "ok", "role": ...}, or the status "unavailable" with its "reason"."""
        return await self._get("/health")

    async def close(self) -> None:
        """End the streams that are open, also those that other tasks read. No request follows."""
        self._connections.close()
        for stream in self._streams.copy():
            await stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _get(self, resource: str) -> Json:
        exchange = self._exchange(resource, None, streams=False)
        async for _ in self._exchanged(exchange, self._connections, waits=False):
            pass
        return exchange.answer()

    def _stream(self, body: Json, on_progress: OnProgress | None) -> "AsyncStream":
        self._connections.check()
        own = Connections("stream", _cut)
        stream = AsyncStream(self._answer(body, own), own, on_progress)
        self._streams.add(stream)
        return stream

    async def _answer(
        self, body: Json, connections: Connections[asyncio.StreamWriter]
    ) -> AsyncGenerator[Json, None]:
        """Yield the chunks of one answer, over as many connections as it takes."""
        resumption = Resumption(body, self._reconnect_timeout)
        clock = asyncio.get_running_loop().time
        while True:
            try:
                answer = self._complete(resumption.body, connections)
                async with contextlib.aclosing(answer) as chunks:
                    async for chunk in chunks:
                        resumption.note(chunk)
                        yield chunk
            except (DaemonUnreachable, Busy) as error:
                pause = resumption.after(error, clock())
            else:
                return
            if self._on_wait is not None and pause.notice:
                self._on_wait(pause.notice)
            await asyncio.sleep(pause.seconds)

    def _complete(
        self, body: Json, connections: Connections[asyncio.StreamWriter]
    ) -> AsyncGenerator[Json, None]:
        body = body | {"stream": True}
        exchange = self._exchange(resource_of(body), body, streams=True)
        return self._exchanged(exchange, connections, waits=True)

    def _exchange(self, resource: str, body: Json | None, *, streams: bool) -> Exchange:
        address = self._address
        resource = address.base + resource
        return Exchange(resource, body, host=address.host, key=self._key, streams=streams)

    async def _exchanged(
        self, exchange: Exchange, connections: Connections[asyncio.StreamWriter], *, waits: bool
    ) -> AsyncGenerator[Json, None]:
        """Send a request on a connection of its own; yield the events of its answer."""
        connections.check()
        reader, writer = await self._connect(waits=waits)
        try:
            connections.add(writer)
            # a body that is too long is refused before all of it is read
            with contextlib.suppress(ConnectionError):
                writer.write(exchange.request)
                async with asyncio.timeout(self.timeout):
                    await writer.drain()
            while not exchange.is_complete:
                async with asyncio.timeout(self.timeout):
                    data = await reader.read(RECEIVE_BYTES)
                for chunk in exchange.receive(data):
                    yield chunk
        except (OSError, WentAway) as error:
            connections.check()
            if isinstance(error, OSError):
                raise exchange.broken(error) from None
            raise
        finally:
            connections.discard(writer)
            _cut(writer)

    async def _connect(self, *, waits: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._address
        if isinstance(address, Sockets):
            connection = address.connect(0, waits=waits)
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        else:
            try:
                async with asyncio.timeout(self.timeout):
                    opening = asyncio.open_connection(address.name, address.port, ssl=address.tls)
                    reader, writer = await opening
            except OSError as error:
                raise address.unreachable(error) from None
        return reader, writer


class AsyncStream:
    """A text as it comes: an asynchronous iterator of its pieces, and a context that cancels it.

    Leaving the context, or `close`, ends the text's session at the daemon at once. One task reads
    it; any task may close it.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[Json, None],
        connections: Connections[asyncio.StreamWriter],
        on_progress: OnProgress | None,
    ) -> None:
        self._collector = Collector()
        self._chunks = chunks
        self._connections = connections
        self._on_progress = on_progress

    @property
    def completion(self) -> Completion:
        """Return the text so far; its finish_reason is "" until it has ended."""
        return self._collector.completion()

    async def result(self) -> Completion:
        """Read to the end, and return the whole text. Raises RequestError if it was cancelled."""
        async for _ in self:
            pass
        completion = self.completion
        if not completion.finish_reason:
            self._connections.check()
        return completion

    async def close(self) -> None:
        """Cancel the text, unless it has ended. There are no more pieces."""
        self._connections.close()
        with contextlib.suppress(RuntimeError):  # another task reads it
            await self._chunks.aclose()

    def __aiter__(self) -> AsyncIterator[TextPiece]:
        return self

    async def __anext__(self) -> TextPiece:
        try:
            async for chunk in self._chunks:
                taken = self._collector.take(chunk)
                if isinstance(taken, TextPiece):
                    return taken
                if isinstance(taken, ReadingProgress) and self._on_progress is not None:
                    self._on_progress(taken)
        except RequestError:
            if not self._connections.is_closed:
                raise
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _cut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
