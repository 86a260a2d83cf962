"""The client of a daemon. Sockets, the clock and waiting are here; the rest decides."""

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
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
from specmesh.core.fields import Json
from specmesh.errors import Busy, DaemonUnreachable, RequestError, WentAway

OnProgress = Callable[[ReadingProgress], object]


class Client:
    """A client of one daemon, a verifier or a drafter.

    address: the path of its Unix socket, or its URL (http or https, with or without /v1); by
        default the first that answers of SPECMESH_SOCKET, the user's and the system's socket.
    timeout: seconds without a byte until a request has failed; None for no limit.
    api_key: the daemon's key; its Unix socket needs none.
    ca_file: path of the certificates that https trusts, in PEM: of an authority, or the proxy's
        own; by default the system's, or those of SSL_CERT_FILE.
    reconnect_timeout: seconds to wait for a daemon that goes away while it answers; the text goes
        on where it was. A daemon that is starting is waited for, up to 300 s.
    on_wait: called with a sentence when such waiting begins.

    Threads may share a client. Leaving its context ends the streams that it has opened.
    Raises ConfigError for an address, a key, a timeout or a file that cannot be one. Every method
    raises DaemonUnreachable if no daemon answers, WentAway if it ends meanwhile, TimedOut after
    `timeout`, Starting if it will answer soon, Refused without a valid key, and the daemon's own
    error if it refuses; all are SpecmeshError.
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
        self._on_wait = on_wait or _ignore
        self._connections = Connections("client", _cut)
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.Lock()  # of the streams, which a thread may add while one closes

    def generate(
        self,
        prompt: Prompt,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[TextOptions],
    ) -> Completion:
        """Return the text that continues a prompt.

        prompt: a text, or token ids of the target's vocabulary.
        on_progress: called while a prompt is read that takes over a second, at least every second.
        options: see TextOptions.
        Raises PromptTooLong without room for one token, RequestError for another option or prompt
        that cannot be served, and what every method raises.
        """
        with self.stream(prompt, on_progress=on_progress, **options) as stream:
            return stream.result()

    def stream(
        self,
        prompt: Prompt,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[TextOptions],
    ) -> "Stream":
        """Return the stream of a text: as `generate`, in pieces as they come.

        It is asked for with the first piece. Raises in its iteration what `generate` raises.
        """
        body = text_body(prompt, options, progress=on_progress is not None)
        return self._stream(body, on_progress)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Return the model's answer to a chat.

        messages: as OpenAI's API has them, such as {"role": "user", "content": "Hi"}.
        options: see ChatOptions. Without max_tokens the answer ends with the context.
        Raises what `generate` raises; NotOffered or RequestError for a model without a template.
        """
        with self.stream_chat(messages, on_progress=on_progress, **options) as stream:
            return stream.result()

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[ChatOptions],
    ) -> "Stream":
        """Return the stream of an answer to a chat: as `chat`, in pieces as they come."""
        body = chat_body(messages, options, progress=on_progress is not None)
        return self._stream(body, on_progress)

    def resume(self, text_id: str) -> "Stream":
        """Return the stream of an interrupted completion, from its beginning.

        text_id: its Completion.id.
        Raises in its iteration NoSuchText if the daemon has it no more.
        """
        return self._stream({"resume": {"id": text_id}}, None)

    def stats(self) -> Json:
        """Return the daemon's state: the object of `specmesh stats --json`."""
        return self.get("/stats")

    def health(self) -> Json:
        """Return {"status": "ok", "role": ...}, or the status "unavailable" with its "reason"."""
        return self.get("/health")

    def close(self) -> None:
        """End the streams that are open, also those that other threads read. No request follows."""
        self._connections.close()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, resource: str, body: Json | None = None) -> Json:
        """GET a JSON resource, or POST `body` to it; also one that answers 503 with a body."""
        exchange = self._exchange(resource, body, streams=False)
        for _ in self._exchanged(exchange, self._connections, waits=body is not None):
            pass
        return exchange.answer()

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """POST a streamed completion, or a chat for a body with messages; yield its chunks.

        Closing the iterator cancels it at the daemon. It is not resumed.
        """
        yield from self._completed(self._connections, body)

    def _completed(
        self, connections: Connections[socket.socket], body: Json
    ) -> Generator[Json, None, None]:
        body = body | {"stream": True}
        exchange = self._exchange(resource_of(body), body, streams=True)
        return self._exchanged(exchange, connections, waits=True)

    def _stream(self, body: Json, on_progress: OnProgress | None) -> "Stream":
        own = Connections("stream", _cut)
        ask = partial(self._completed, own)
        chunks = _answer(ask, Resumption(body, self._reconnect_timeout), self._on_wait, _ignore)
        stream = Stream(chunks, own, on_progress or _ignore)
        with self._lock:
            self._connections.check()
            self._streams.add(stream)
        return stream

    def _exchange(self, resource: str, body: Json | None, *, streams: bool) -> Exchange:
        address = self._address
        resource = address.base + resource
        return Exchange(resource, body, host=address.host, key=self._key, streams=streams)

    def _exchanged(
        self, exchange: Exchange, connections: Connections[socket.socket], *, waits: bool
    ) -> Generator[Json, None, None]:
        """Send a request on a connection of its own; yield the events of its answer."""
        connections.check()
        connection = self._connect(waits=waits)
        try:
            connections.add(connection)
            # a body that is too long is refused before all of it is read
            with contextlib.suppress(ConnectionError):
                connection.sendall(exchange.request)
            while not exchange.is_complete:
                yield from exchange.receive(connection.recv(RECEIVE_BYTES))
        except (OSError, WentAway) as error:
            connections.check()
            if isinstance(error, OSError):
                raise exchange.broken(error) from None
            raise
        finally:
            connections.discard(connection)
            connection.close()

    def _connect(self, *, waits: bool) -> socket.socket:
        address = self._address
        if isinstance(address, Sockets):
            return address.connect(self.timeout, waits=waits)
        return address.connect(self.timeout)


class Stream:
    """A text as it comes: an iterator of its pieces, and a context that cancels it.

    Leaving the context, or `close`, ends the text's session at the daemon at once. One thread
    reads it; any thread may close it.
    """

    def __init__(
        self,
        chunks: Generator[Json, None, None],
        connections: Connections[socket.socket],
        on_progress: OnProgress,
    ) -> None:
        self._collector = Collector()
        self._chunks = chunks
        self._connections = connections
        self._on_progress = on_progress

    @property
    def completion(self) -> Completion:
        """Return the text so far; its finish_reason is "" until it has ended."""
        return self._collector.completion()

    def result(self) -> Completion:
        """Read to the end, and return the whole text. Raises RequestError if it was cancelled."""
        for _ in self:
            pass
        completion = self.completion
        if not completion.finish_reason:
            self._connections.check()
        return completion

    def close(self) -> None:
        """Cancel the text, unless it has ended. There are no more pieces."""
        self._connections.close()
        with contextlib.suppress(ValueError):  # another thread reads it
            self._chunks.close()

    def __iter__(self) -> Iterator[TextPiece]:
        return self

    def __next__(self) -> TextPiece:
        try:
            for chunk in self._chunks:
                taken = self._collector.take(chunk)
                if isinstance(taken, ReadingProgress):
                    self._on_progress(taken)
                elif taken is not None:
                    return taken
        except RequestError:
            if not self._connections.is_closed:
                raise
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def answer(
    client: Client,
    body: Json,
    timeout: float,
    notify: Callable[[str], object] | None = None,
    waits: Callable[[], object] | None = None,
) -> Generator[Json, None, None]:
    """Yield the chunks of one answer, over as many connections as it takes.

    timeout: seconds to wait for a daemon that went away.
    notify: called once with the reason for which it waits.
    waits: called before each pause of a wait.
    See Resumption. Raises as Client.complete does.
    """
    resumption = Resumption(body, timeout)
    return _answer(client.complete, resumption, notify or _ignore, waits or _ignore)


def _answer(
    ask: Callable[[Json], Generator[Json, None, None]],
    resumption: Resumption,
    notify: Callable[[str], object],
    waits: Callable[[], object],
) -> Generator[Json, None, None]:
    while True:
        try:
            with contextlib.closing(ask(dict(resumption.body))) as chunks:
                for chunk in chunks:
                    resumption.note(chunk)
                    yield chunk
        except (DaemonUnreachable, Busy) as error:
            pause = resumption.after(error, time.monotonic())
        else:
            return
        if pause.notice:
            notify(pause.notice)
        waits()
        time.sleep(pause.seconds)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _ignore(*_: object) -> None:
    pass
