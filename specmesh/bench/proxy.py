"""A TCP proxy that delays each direction, as a process of its own: `python -m specmesh.bench.proxy PORT DELAY JITTER`.

In the process of either end it would lie: a busy loop that reads its socket late would hide a part of the delay.
"""

import asyncio
import contextlib
import random
import sys

CHUNK = 65536


class DelayingProxy:
    """Forwards connections to a port of this machine; each way takes `delay` seconds, up to `jitter` more, in order."""

    def __init__(self, target: int, delay: float, jitter: float) -> None:
        self._target, self._delay, self._jitter = target, delay, jitter
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Print the port listened on, and forward until cancelled."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        async with server:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, back), (there, writer)):
            queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
            for work in (self._fetch(source, queue), self._deliver(queue, sink)):
                task = asyncio.ensure_future(work)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _fetch(self, source: asyncio.StreamReader, queue: "asyncio.Queue[tuple[float, bytes]]") -> None:
        loop, data = asyncio.get_running_loop(), b"more"
        while data:
            try:
                data = await source.read(CHUNK)
            except OSError:
                data = b""
            late = random.uniform(0.0, self._jitter)  # noqa: S311 - a network, no secret
            queue.put_nowait((loop.time() + self._delay + late, data))

    async def _deliver(self, queue: "asyncio.Queue[tuple[float, bytes]]", sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


def main() -> None:
    """PORT to forward to, seconds of delay and of jitter each way."""
    target, delay, jitter = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(DelayingProxy(target, delay, jitter).serve())


if __name__ == "__main__":
    main()
