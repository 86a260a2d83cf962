"""Waiting for things that are not there yet: an address, a disk, a GPU, another machine's RPC
server."""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

import structlog

from specmesh.core.retries import Retries
from specmesh.daemons.link.names import on_thread
from specmesh.daemons.runtime.notifier import Notifier
from specmesh.errors import NotThereYet

log = structlog.get_logger("specmesh")

T = TypeVar("T")

SLOW_LOOK = 3.0  # seconds after which a look is slow enough for a line of the log
SLICE = 0.2  # seconds of a pause after which it is looked whether the process is to end


class Patience:
    """A process that waits, or does not, for things that are not there yet. waiting_for: the thing
    that it waits for now; empty while it does not. stopping: returns True once the process is
    asked to end, which ends a wait soon. A manager is notified of a wait, and gives more time."""

    def __init__(self, notifier: Notifier, stopping: Callable[[], bool], *, waits: bool) -> None:
        self._notifier, self._stopping, self._waits = notifier, stopping, waits
        self.waiting_for = ""

    def until_there(self, make: Callable[[], T]) -> T:
        """Return the result of `make` once all that it needs is there. Raises NotThereYet at
        once if this process does not wait, SystemExit if it is asked to end meanwhile."""
        retries = Retries()
        while True:
            try:
                made = make()
            except NotThereYet as error:
                if not self._waits:
                    raise
                self._missed(retries, error.what)
            else:
                if self.waiting_for:
                    log.info("there_now", what=self.waiting_for)
                    self.waiting_for = ""
                    self._notifier.loading(0.0)
                return made

    def hear(self, work: Callable[[], T], what: str) -> T:
        """Return the result of `work`, on another thread: it may never end. what: names it, if it
        takes long. Raises SystemExit if the process is asked to end meanwhile."""
        future: Future[T] = on_thread(work)
        retries, long = Retries(), time.monotonic() + SLOW_LOOK
        while not future.done():
            self._go_on()
            wait([future], SLICE)
            if time.monotonic() > long:
                self._note(retries, what)
        return future.result()

    def _missed(self, retries: Retries, what: str) -> None:
        self._note(retries, what)
        again = time.monotonic() + retries.pause
        while (left := again - time.monotonic()) > 0:
            self._go_on()
            time.sleep(min(left, SLICE))
        self._go_on()

    def _note(self, retries: Retries, what: str) -> None:
        self.waiting_for = what
        if retries.missed(what, time.monotonic()):
            log.warning("waiting", what=what)
            self._notifier.waiting(what)

    def _go_on(self) -> None:
        if self._stopping():
            raise SystemExit(0)
