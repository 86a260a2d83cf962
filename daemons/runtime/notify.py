"""What a service manager is told: ready, loading, alive, stopping. systemd's datagram protocol, see sd_notify(3)."""

import os
import socket
import threading
from collections.abc import Callable, Mapping

import structlog

from specmesh.logs import leave

log = structlog.get_logger("specmesh")

LOADING_EXTENSION = 300.0  # seconds that each sign of progress gives a start more time, at most
STUCK = 70  # exit code of a process whose loop no longer turns (EX_SOFTWARE)


class Notifier:
    """Tells the manager named in the environment (NOTIFY_SOCKET, WATCHDOG_USEC); without one does nothing.

    What cannot be sent is lost: a daemon does not depend on who looks after it.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog = _watchdog_seconds(environment) if self._address else None
        self._socket: socket.socket | None = None
        if self._address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def loading(self, share: float) -> None:
        """Ask for more time: `share` of the model is loaded so far."""
        self._send(f"STATUS=loading {share:.0%}", f"EXTEND_TIMEOUT_USEC={LOADING_EXTENSION * 1e6:.0f}")

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, seconds: float) -> None:
        self._send("STOPPING=1", "STATUS=stopping", f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")

    def heartbeat(self) -> None:
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.debug("notify_failed", error=error.strerror)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Seconds after which the manager wants to hear something; None where it does not watch this process."""
    microseconds, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or (process and process != str(os.getpid())):
        return None
    return int(microseconds) / 1e6


class Watchdog:
    """Watches on a thread of its own that `progress` changes: tells systemd so, elsewhere ends a process that is stuck.

    It counts its own checks, not seconds, so that a process that was stopped or slept is not found stuck when it wakes.
    """

    def __init__(
        self,
        progress: Callable[[], int],
        notifier: Notifier,
        interval: float = 5.0,
        checks: int = 24,
        end: Callable[[int], object] = leave,
    ) -> None:
        self._progress, self._notifier = progress, notifier
        self._interval = notifier.watchdog / 2 if notifier.watchdog is not None else interval
        self._checks, self._end = checks, end
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        seen, same = -1, 0
        while not self._closing.wait(self._interval):
            now = self._progress()
            if now != seen:
                self._notifier.heartbeat()
                seen, same = now, 0
                continue
            same += 1
            if self._notifier.watchdog is None and same >= self._checks:
                log.critical("stuck", seconds=same * self._interval, meaning="the loop no longer turns: ending")
                self._end(STUCK)
                return
