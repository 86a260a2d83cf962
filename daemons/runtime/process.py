"""What the processes of both daemons share: signals, the watchdog, cores."""

import faulthandler
import gc
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Self, TypeVar

import structlog
import zmq

from specmesh import __version__
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.events import Noted
from specmesh.core.fields import Json
from specmesh.core.statistics.daemon import DaemonFacts
from specmesh.daemons.runtime.notifier import Notifier
from specmesh.daemons.runtime.patience import Patience
from specmesh.engines.base import DraftEngine, VerifyEngine
from specmesh.host import host_id, physical_cores
from specmesh.logs import flush, leave

log = structlog.get_logger("specmesh")

T = TypeVar("T")

SWITCH_INTERVAL = 2e-4  # seconds of a thread's turn while others wait: at the default of 5 ms the API would stall steps

MOST_DIGITS = 640  # of a number in JSON, Python's least limit: reading takes their number squared

# see gc.set_threshold: by default there are several a round; with 20,000 objects instead of 2,000 what sessions leave
# piles up between two, and memory under load grew twice as fast
COLLECT_EVERY = (2_000, 5, 5)

HEARING = 1.0  # seconds after which a signal is heard at last
LOADING_GRACE = 4.0  # seconds that loading a model may go on after SIGTERM
ENDING = (
    8.0  # seconds that sockets and models may take to close after SIGTERM, once the loop has ended
)
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
    """Watch on a thread that `progress` changes: tell systemd so, elsewhere end a process that is stuck. It counts its
    own checks, not seconds, so that a process that was stopped or slept is not found stuck when it wakes."""
    interval = notifier.watchdog / 2 if notifier.watchdog is not None else interval
    closing = threading.Event()

    def watch() -> None:
        seen, same = -1, 0
        while not closing.wait(interval):
            now = progress()
            if now != seen:
                notifier.heartbeat()
                seen, same = now, 0
                continue
            same += 1
            if notifier.watchdog is None and same >= checks:
                log.critical(
                    "stuck", seconds=same * interval, meaning="the loop no longer turns: ending"
                )
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


def facts(
    engine: VerifyEngine | DraftEngine, model: Json, address: str, *, encrypted: bool
) -> DaemonFacts:
    """Return what stats tell of this process."""
    return DaemonFacts(
        version=__version__,
        pid=os.getpid(),
        model=model,
        address=address,
        encrypted=encrypted,
        offloaded_bytes=engine.offloaded_bytes,
    )


class DaemonProcess:
    """This process as a daemon, while the context is open. drain: seconds that its sessions get
    after SIGTERM or SIGINT, the first of which asks for a clean end; the second ends at once.
    The end of its terminal (SIGHUP) asks for a clean end too. stopping: it was asked. ends: what
    ends with it. idle: False where a step still runs at the end, under which no library is taken
    down. waits: for what is not there yet."""

    def __init__(self, drain: float, *, waits: bool = False) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        sys.set_int_max_str_digits(MOST_DIGITS)
        gc.set_threshold(*COLLECT_EVERY)
        # Where a library ends the process, its last lines say in which call of ours. Other threads run on meanwhile: to
        # write their stacks too may end it by another signal.
        faulthandler.enable(all_threads=False)
        self.notifier, self._drain = Notifier(), drain
        self.stopping = self._insisted = False
        self.patience = Patience(self.notifier, lambda: self.stopping, waits=waits)
        self._stop: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
                signal.signal(number, self._asked_to_stop)
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.ends, self.idle = ExitStack(), True

    def __enter__(self) -> Self:
        self.notifier.loading(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()
        self.context.term()
        flush()  # what went wrong is logged after what led there
        if not self.idle:
            leave(0)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call `stop` when asked to, or now where that was before."""
        self._stop = stop
        if self.stopping:
            stop()

    def _asked_to_stop(self, number: int, _: FrameType | None) -> None:
        hung_up = number == signal.SIGHUP  # a shell repeats it, and the end of a login adds SIGTERM
        if self._insisted and not hung_up:
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
        """What this machine and process are called in stats and logs."""
        return f"{platform.node() or 'unknown'}:{os.getpid()}"

    def wait(self, future: Future[T]) -> T:
        """Return what another thread makes, and hear signals until then: on this thread alone, and waiting wakes up for
        none that came just before it."""
        while not future.done():
            wait([future], HEARING)
        return future.result()

    @contextmanager
    def watched(self, progress: Callable[[], int], status: str) -> Generator[None]:
        """While the loop runs: ready, and looked after. progress: changes while the loop gets on."""
        gc.collect()
        gc.freeze()  # what is here stays until the end: no collection looks at it again
        with watchdog(progress, self.notifier):
            self.notifier.ready(status)
            try:
                yield
            finally:
                if self.stopping:
                    leave_within(ENDING)


def thread_share(
    engine: VerifyEngine | DraftEngine, *, drafter: bool, explicit: bool
) -> ThreadShare:
    """Return the share of the host's cores that this process's engine uses; 0 off the CPU.

    Threads do not follow the load if they are `explicit`, or if the target is reproducible: the
    sums of some kernels depend on them.
    """
    info = engine.info
    reproducible = info.capabilities.width is not None
    follows = info.threads > 0 and not explicit and not reproducible
    return ThreadShare(info.threads, physical_cores(), host_id(), drafter=drafter, follows=follows)


def note(noted: Noted | None) -> None:
    """Tell the log, if there is something."""
    if noted is not None:
        getattr(log, noted.level)(noted.name, **noted.fields)
