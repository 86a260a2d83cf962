"""Messages to a service manager: waiting, loading, ready, alive, stopping.

They follow systemd's protocol, sd_notify(3).
"""

import os
import socket
from collections.abc import Mapping

import structlog

log = structlog.get_logger("specmesh")

START_EXTENSION = 300.0  # seconds that each sign of life gives a start more time, at most


class Notifier:
    """Notifies the manager named in the environment (NOTIFY_SOCKET, WATCHDOG_USEC), if any.

    A message that cannot be sent is lost: a daemon does not depend on its manager.
    watchdog: seconds within which the manager expects a message; None if it does not watch.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.socket: socket.socket | None = None
        if self._address.startswith(("/", "\0")):
            # It is opened now: later there may be no descriptor left.
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.watchdog: float | None = None
        interval = environment.get("WATCHDOG_USEC", "")
        process = environment.get("WATCHDOG_PID", "")
        if self._address and interval.isdecimal() and process in ("", str(os.getpid())):
            self.watchdog = int(interval) / 1e6 or None

    def loading(self, share: float) -> None:
        """Ask for more time, and report the share of the model that is loaded."""
        self._send(
            f"STATUS=loading {share:.0%}", f"EXTEND_TIMEOUT_USEC={START_EXTENSION * 1e6:.0f}"
        )

    def waiting(self, reason: str) -> None:
        """Ask for more time, and report the thing that is missing."""
        extension = f"EXTEND_TIMEOUT_USEC={START_EXTENSION * 1e6:.0f}"
        self._send(f"STATUS=waiting: {' '.join(reason.split())}", extension)

    def ready(self, status: str) -> None:
        """Report that the daemon serves."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, seconds: float) -> None:
        """Report that the daemon ends, within so many seconds."""
        self._send("STOPPING=1", "STATUS=stopping", f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")

    def heartbeat(self) -> None:
        """Report that the daemon makes progress, if it is watched."""
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self.socket is None:
            return
        try:
            self.socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            log.debug("notify_failed", error=error.strerror)
