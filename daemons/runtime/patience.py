"""Waiting for things that are not there yet, such as an address, a disk, a GPU or an RPC server."""

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
SLICE = 0.2  # seconds between two looks whether the process is to end


class Patience:
    """A process that may wait for things that are not there yet.

    waiting_for: the thing that it waits for now; empty while it does not.
    before_waiting: called before each wait.
    """

    def __init__(self, notifier: Notifier, stopping: Callable[[], bool], *, waits: bool) -> None:
        """Begin without waiting.

        notifier: of the manager, which then gives more time.
        stopping: returns True once the process is asked to end, which ends a wait soon.
        waits: False if the process does not wait at all.
        """
        self._notifier = notifier
        self._stopping = stopping
        self._waits = waits
        self.waiting_for = ""
        self.before_waiting: Callable[[], object] = lambda: None

    def until_there(self, make: Callable[[], T]) -> T:
        """Return the result of `make` once all that it needs is there.

        Raise NotThereYet at once if this process does not wait, SystemExit if it is asked to end.
        """
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

    def result_of(self, work: Callable[[], T], meaning: str) -> T:
        """Return the result of `work`, which may never end, so another thread does it.

        meaning: describes the work in the log if it takes long.
        Raise SystemExit if the process is asked to end meanwhile.
        """
        future: Future[T] = on_thread(work)
        retries = Retries()
        long = time.monotonic() + SLOW_LOOK
        wait([future], SLICE)
        while not future.done():
            self._go_on()
            self.before_waiting()
            wait([future], SLICE)
            if time.monotonic() > long:
                self._note(retries, meaning)
        return future.result()

    def _missed(self, retries: Retries, reason: str) -> None:
        self._note(retries, reason)
        self.before_waiting()
        again = time.monotonic() + retries.pause
        while (left := again - time.monotonic()) > 0:
            self._go_on()
            time.sleep(min(left, SLICE))
        self._go_on()

    def _note(self, retries: Retries, reason: str) -> None:
        self.waiting_for = reason
        if retries.missed(reason, time.monotonic()):
            log.warning("waiting", what=reason)
            self._notifier.waiting(reason)

    def _go_on(self) -> None:
        if self._stopping():
            raise SystemExit(0)
