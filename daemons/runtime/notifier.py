"""Messages to a service manager: waiting, loading, ready, alive, stopping; by systemd's protocol,
see sd_notify(3)."""

import os
import socket
from collections.abc import Mapping

import structlog

log = structlog.get_logger("specmesh")

START_EXTENSION = 300.0  # seconds that each sign of life gives a start more time, at most


class Notifier:
    """Tells the manager named in the environment (NOTIFY_SOCKET, WATCHDOG_USEC); without one
    does nothing. What cannot be sent is lost: a daemon does not depend on who looks after it.
    watchdog: seconds after which the manager wants to hear something; None where it does not
    watch this process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        spoken_to = self._address[:1] in (
            "/",
            "\0",
        )  # opened now: later there may be no descriptor left
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if spoken_to else None
        watched, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        ours = self._address and watched.isdecimal() and process in ("", str(os.getpid()))
        self.watchdog = (int(watched) / 1e6 or None) if ours else None

    def loading(self, share: float) -> None:
        """Ask for more time: `share` of the model is loaded so far."""
        self._send(
            f"STATUS=loading {share:.0%}", f"EXTEND_TIMEOUT_USEC={START_EXTENSION * 1e6:.0f}"
        )

    def waiting(self, what: str) -> None:
        """Ask for more time: something is not there yet."""
        extension = f"EXTEND_TIMEOUT_USEC={START_EXTENSION * 1e6:.0f}"
        self._send(f"STATUS=waiting: {' '.join(what.split())}", extension)

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, seconds: float) -> None:
        self._send("STOPPING=1", "STATUS=stopping", f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")

    def heartbeat(self) -> None:
        if self.watchdog is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self.socket is None:
            return
        try:
            self.socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            log.debug("notify_failed", error=error.strerror)
