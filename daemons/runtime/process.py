"""The parts that the processes of both daemons share: signals, the watchdog, cores."""

import ctypes
import faulthandler
import gc
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Self, TypeVar

import structlog
import zmq

from specmesh.daemons.runtime.notifier import Notifier
from specmesh.daemons.runtime.patience import Patience
from specmesh.logs import end_bar, flush, leave

log = structlog.get_logger("specmesh")

T = TypeVar("T")

SWITCH_INTERVAL = 2e-4
"""Seconds of a thread's turn while others wait; with the default of 5 ms the API stalls steps."""
MOST_DIGITS = 640  # of a number in JSON, Python's least limit: reading takes their number squared
COLLECT_EVERY = (2_000, 5, 5)
"""Thresholds of the collector, see gc.set_threshold.

By default it runs several times a round. With 20,000 objects instead of 2,000 the remains of
sessions pile up between two runs, and memory under load grew twice as fast.
"""
SIGNAL_INTERVAL = 1.0  # seconds after which a signal is handled at last
LOADING_GRACE = 4.0  # seconds that loading a model may go on after SIGTERM
ENDING = 8.0  # seconds that sockets and models may take to close, once the loop has ended
MARGIN = 20.0  # seconds after a daemon's drain in which its service manager can count on its end
STUCK = 70  # exit code of a process whose loop no longer turns (EX_SOFTWARE)


@contextmanager
def watchdog(
    progress: Callable[[], int],
    notifier: Notifier,
    interval: float = 5.0,
    checks: int = 24,
    end: Callable[[int], object] = leave,
) -> Generator[None]:
    """Watch on a thread that `progress` changes.

    - A manager that watches is notified of each change.
    - Without one, a process is ended after so many checks without a change. It counts checks, not
      seconds, so that a process that was stopped or slept is not found stuck when it wakes.
    """
    if notifier.watchdog is not None:
        interval = notifier.watchdog / 2
    closing = threading.Event()

    def watch() -> None:
        seen = -1
        same = 0
        while not closing.wait(interval):
            now = progress()
            if now != seen:
                notifier.heartbeat()
                seen = now
                same = 0
                continue
            same += 1
            if notifier.watchdog is None and same >= checks:
                meaning = "the loop no longer turns: ending"
                log.critical("stuck", seconds=same * interval, meaning=meaning)
                end(STUCK)
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def leave_within(seconds: float) -> None:
    """End this process then, unless it has ended by itself; safe in a signal handler."""
    timer = threading.Timer(seconds, leave, (0,))
    timer.daemon = True
    timer.start()


def give_memory_back() -> None:
    """Give the system what a start has freed, where glibc allocates.

    Libraries load on threads, and what threads have freed stays theirs otherwise.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class DaemonProcess:
    """This process as a daemon, while the context is open.

    - The first SIGTERM or SIGINT asks for a clean end, the second ends it at once.
    - The end of its terminal (SIGHUP) asks for a clean end.

    stopping: it was asked to end. ends: contexts that end with it.
    idle: False if a step still runs at the end; then no library is taken down under it.
    """

    def __init__(self, drain: float, *, waits: bool = False) -> None:
        """Take over the signals.

        drain: seconds that sessions get to finish.
        waits: the process waits for things that are not there yet.
        """
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.disable()  # until it serves or waits: what a start makes stays
        sys.set_int_max_str_digits(MOST_DIGITS)
        gc.set_threshold(*COLLECT_EVERY)
        # If a library ends the process, its last lines show the call of ours. Other threads run on
        # meanwhile: to write their stacks too may end it by another signal.
        faulthandler.enable(all_threads=False)
        self.notifier = Notifier()
        self._drain = drain
        self.stopping = False
        self._insisted = False
        self.patience = Patience(self.notifier, lambda: self.stopping, waits=waits)
        self._stop: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
                signal.signal(number, self._asked_to_stop)
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.ends = ExitStack()
        self.idle = True

    def __enter__(self) -> Self:
        self.notifier.loading(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()
        self.context.term()
        flush()
        if not self.idle:
            leave(0)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call `stop` once the process is asked to end, at once if it was already."""
        self._stop = stop
        if self.stopping:
            stop()

    def _asked_to_stop(self, number: int, _: FrameType | None) -> None:
        hung_up = number == signal.SIGHUP  # a shell repeats it, and the end of a login adds SIGTERM
        if self._insisted and not hung_up:
            end_bar()
            os._exit(128 + number)
        self._insisted = self._insisted or not hung_up
        if self.stopping:
            return
        self.stopping = True
        self.notifier.stopping(self._drain + MARGIN)
        if self._stop is not None:
            self._stop()
        else:
            leave_within(LOADING_GRACE)  # some libraries cannot be made to stop loading

    @property
    def name(self) -> str:
        """Return the name of this process in stats and logs."""
        return f"{platform.node() or 'unknown'}:{os.getpid()}"

    def wait(self, future: Future[T]) -> T:
        """Return the result of another thread, and handle signals until then.

        Python runs their handlers on the main thread only, which a signal that came just before a
        wait does not wake.
        """
        while not future.done():
            wait([future], SIGNAL_INTERVAL)
        return future.result()

    @contextmanager
    def watched(self, progress: Callable[[], int], status: str) -> Generator[None]:
        """Report ready, and watch the loop; progress: changes while it turns."""
        gc.collect()
        gc.freeze()  # these objects stay until the end: no collection looks at them again
        gc.enable()
        give_memory_back()
        with watchdog(progress, self.notifier):
            self.notifier.ready(status)
            try:
                yield
            finally:
                if self.stopping:
                    leave_within(ENDING)
