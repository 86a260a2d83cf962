"""A TCP proxy that delays each direction, as a process of its own: `python -m specmesh.bench.proxy PORT DELAY JITTER`.

In the process of either end it would lie: a busy loop that reads its socket late would hide a part of the delay. It has
threads that sleep, because an event loop's timers are rounded up to whole milliseconds.
"""

import contextlib
import random
import socket
import sys
import threading
import time
from queue import SimpleQueue

CHUNK = 65536


class DelayingProxy:
    """Forwards connections to a port of this machine; each way takes `delay` seconds, up to `jitter` more, in order."""

    def __init__(self, target: int, delay: float, jitter: float) -> None:
        self._target, self._delay, self._jitter = target, delay, jitter

    def serve(self) -> None:
        """Print the port listened on, and forward for ever."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            sys.stdout.write(f"{server.getsockname()[1]}\n")
            sys.stdout.flush()
            while True:
                self._forward(server.accept()[0])

    def _forward(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            threading.Thread(target=self._fetch, args=(source, queue), daemon=True).start()
            threading.Thread(target=_deliver, args=(queue, sink), daemon=True).start()

    def _fetch(self, source: socket.socket, queue: "SimpleQueue[tuple[float, bytes]]") -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            late = random.uniform(0.0, self._jitter)  # noqa: S311 - a network, no secret
            queue.put((time.monotonic() + self._delay + late, data))


def _deliver(queue: "SimpleQueue[tuple[float, bytes]]", sink: socket.socket) -> None:
    """Send what is due when it is; what ends one way ends the connection."""
    with contextlib.suppress(OSError):
        while True:
            due, data = queue.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            if not data:
                break
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """PORT to forward to, seconds of delay and of jitter each way."""
    target, delay, jitter = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    with contextlib.suppress(KeyboardInterrupt):
        DelayingProxy(target, delay, jitter).serve()


if __name__ == "__main__":
    main()
