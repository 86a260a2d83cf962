"""A TCP proxy that delays each direction, as a process of its own.

    python bench/delay_proxy.py PORT DELAY JITTER

In the process of either end it would lie: a busy loop that reads its socket late would hide a part
of the delay. It has threads that sleep, because an event loop's timers are rounded up to whole
milliseconds. What its threads take to wake, half a millisecond and more in both directions, it
measures first and sleeps so much less.
"""

import argparse
import contextlib
import random
import socket
import threading
import time
from queue import SimpleQueue
from statistics import median

CHUNK, TRIALS = 65536, 20
MOST_LATE = 0.5e-3
"""Seconds that threads take to wake; what is later is due to other work on this machine."""


def serve(target: int, delay: float, jitter: float) -> None:
    """Print a port, and forward its connections to `target` in order.

    Each way takes `delay` to `delay + jitter` seconds.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        delay = max(delay - min(_late(delay) / 2, MOST_LATE), 0.0)
        print(server.getsockname()[1], flush=True)
        while True:
            near = server.accept()[0]
            try:
                far = socket.create_connection(("127.0.0.1", target))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _join(near, far, delay, jitter)


def _late(delay: float) -> float:
    """Seconds by which a round trip through both directions takes longer than twice the delay."""
    (client, near), (far, server) = socket.socketpair(), socket.socketpair()
    _join(near, far, delay, 0.0)
    taken = list[float]()
    for _ in range(TRIALS):
        begun = time.monotonic()
        client.sendall(b"there")
        server.sendall(server.recv(CHUNK))
        client.recv(CHUNK)
        taken.append(time.monotonic() - begun)
    client.close()
    server.close()
    return median(taken) - 2 * delay


def _join(near: socket.socket, far: socket.socket, delay: float, jitter: float) -> None:
    for source, sink in ((near, far), (far, near)):
        queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        threading.Thread(target=_fetch, args=(source, queue, delay, jitter), daemon=True).start()
        threading.Thread(target=_deliver, args=(queue, sink), daemon=True).start()


def _fetch(
    source: socket.socket, queue: "SimpleQueue[tuple[float, bytes]]", delay: float, jitter: float
) -> None:
    data = b"more"
    while data:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        late = random.uniform(0.0, jitter)
        queue.put((time.monotonic() + delay + late, data))


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
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("target", metavar="PORT", type=int)
    parser.add_argument("delay", metavar="DELAY", type=float, help="seconds, each way")
    parser.add_argument("jitter", metavar="JITTER", type=float, help="most seconds more")
    with contextlib.suppress(KeyboardInterrupt):
        serve(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
