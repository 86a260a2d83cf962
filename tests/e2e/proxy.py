"""A TCP proxy between drafter and verifier that counts bytes and has the faults of a network."""

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass

from harness import T

CHUNK = 65536
RETRANSMISSION = 0.2
"""Seconds that a lost packet holds up what follows: TCP hides loss, and it shows as stalls."""

GREETING = 300
"""Bytes each way in which ZeroMQ greets, and the first HELLO and WELCOME are.

What comes later is damaged.
"""


@dataclass(kw_only=True)
class Proxy:
    """Listens on a loopback port of its own, `port`, and forwards to `target`.

    Runs on a thread until closed.

    delay: seconds that each way takes. jitter: seconds more, at most, at random; TCP keeps the
    order. loss: share of the data that comes only after a retransmission. bandwidth: bytes a second
    each way; 0 has no bound. piece: most bytes written at once; 0 writes all there is.

    damage: share of the data in which one bit is flipped, once a connection has been greeted;
    `flipped` counts. captured: the bytes that a listener would have, to the target and back.
    """

    target: int
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    bandwidth: int = 0
    piece: int = 0
    damage: float = 0.0

    def __post_init__(self) -> None:
        self.flipped = 0
        self.connections = 0
        self.captured = bytearray(), bytearray()
        self._random = random.Random(1)
        self._writers = set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._open = {True: asyncio.Event(), False: asyncio.Event()}
        self.release()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)

    def cut(self) -> None:
        """Break every connection as a reset does; new ones are taken."""
        self._run(self._cut())

    def hold(self, to_target: bool | None = None) -> None:
        """Forward nothing from now on, as a network that swallows packets.

        In one direction only, or in both.
        """
        for way, gate in self._open.items():
            if to_target in (way, None):
                self._loop.call_soon_threadsafe(gate.clear)

    def release(self) -> None:
        """Forward again, held data first, as TCP's retransmission does."""
        for gate in self._open.values():
            self._loop.call_soon_threadsafe(gate.set)

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(ConnectionError):  # Another one came first.
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._listening.result(10.0)
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()

    def _run(self, work: "Coroutine[object, object, T]") -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _listen(self) -> None:
        """Accept connections until one comes that finds the proxy closing.

        `asyncio.start_server` would lose those that it accepts while it is closed.
        """
        while True:
            accepted, _ = await self._loop.sock_accept(self._listener)
            if self._closing:
                accepted.close()
                self._listener.close()
                return
            reader, writer = await asyncio.open_connection(sock=accepted)
            self._writers.add(writer)
            self._start(self._connect(reader, writer))

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self.connections += 1
        self._writers.add(back)
        for source, sink, to_target in ((reader, back, True), (there, writer, False)):
            queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
            self._start(self._fetch(source, queue))
            self._start(self._deliver(queue, sink, to_target))

    def _start(self, work: "Coroutine[object, object, None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(
        self, source: asyncio.StreamReader, queue: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        """Queue data with the time of its arrival, in the order of sending."""
        data = b"more"
        while data:
            try:
                data = await source.read(CHUNK)
            except OSError:
                data = b""
            lost = RETRANSMISSION if self._random.random() < self.loss else 0.0
            late = self.delay + self._random.uniform(0.0, self.jitter) + lost
            queue.put_nowait((self._loop.time() + late, data))

    async def _deliver(
        self,
        queue: "asyncio.Queue[tuple[float, bytes]]",
        sink: asyncio.StreamWriter,
        to_target: bool,
    ) -> None:
        greeting = GREETING
        with contextlib.suppress(OSError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - self._loop.time())
                await self._open[to_target].wait()
                if not data:
                    break
                greeting -= len(data)
                if greeting < 0 and self._random.random() < self.damage:
                    damaged = bytearray(data)
                    damaged[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                    data = bytes(damaged)
                    self.flipped += 1
                await self._write(sink, data)
                self.captured[0 if to_target else 1].extend(data)
        sink.transport.abort()
        self._writers.discard(sink)

    async def _write(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        size = self.piece or len(data)
        for at in range(0, len(data), size):
            part = data[at : at + size]
            sink.write(part)
            await sink.drain()
            if self.bandwidth:
                await asyncio.sleep(len(part) / self.bandwidth)

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cut()
        await asyncio.sleep(0)  # Connections that were broken close in the loop's next turn.
