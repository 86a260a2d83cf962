"""A thread for work that takes too long for an event loop: tenants take turns at it."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from specmesh.core.fair_queue import FairQueue, Tenant
from specmesh.errors import Busy

ROOM = 64 * 2**20
"""Bytes that what waits for one thread may take together."""

WAIT_SECONDS = 12.0
"""Seconds after which what waits is refused: its client had better try again."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Work that waits; each of its members settles the future of its result."""

    since: float  # when it came
    do: Callable[[], None]
    refuse: Callable[[], None]
    cancel: Callable[[], object]


class FairWorker:
    """Does one piece of work after the other. Python code on its thread lets others run every
    switch interval; a long call into C that keeps the interpreter's lock does not."""

    def __init__(self, name: str, room: int = ROOM) -> None:
        self._pool, self._lock = ThreadPoolExecutor(1, name), threading.Lock()
        self._waiting = FairQueue[_Piece](room)

    def submit(self, tenant: Tenant, cost: int, work: Callable[[], Result]) -> "Future[Result]":
        """Have `work` done when it is its tenant's turn; from any thread. cost: bytes that it keeps
        until then. Where there is no room, the tenant that takes most of it gives way: a future of
        its raises Busy, as does that of what has waited for WAIT_SECONDS. One that was cancelled is
        not begun."""
        done = Future[Result]()
        now, do = time.monotonic(), partial(_do, done, work)
        piece = _Piece(now, do, partial(_refuse, done), done.cancel)
        with self._lock:
            crowding = self._waiting.push(tenant, piece, cost)
        if crowding is not None:
            crowding.refuse()
        if crowding is not piece:
            self._pool.submit(self._next)
        return done

    async def run(self, tenant: Tenant, cost: int, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, or raise what it raises, without holding up the event
        loop."""
        return await asyncio.wrap_future(self.submit(tenant, cost, work))

    def close(self) -> "Future[object]":
        """Begin nothing more; the returned future is done once nothing is under way."""
        with self._lock:
            while self._waiting:
                self._waiting.pop().cancel()
        ended = self._pool.submit(object)
        self._pool.shutdown(wait=False)
        return ended

    def _next(self) -> None:
        with self._lock:
            piece = self._waiting.pop() if self._waiting else None
        if piece is None:
            return
        if time.monotonic() - piece.since > WAIT_SECONDS:
            piece.refuse()
        else:
            piece.do()


def _do(done: "Future[Result]", work: Callable[[], Result]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  (who waits for it raises it)
        done.set_exception(
            error.with_traceback(None)
        )  # which holds this frame, and that the future
    else:
        done.set_result(result)


def _refuse(done: "Future[Result]") -> None:
    if done.set_running_or_notify_cancel():
        error = Busy("too many long requests wait to be read", "try again, or ask for less")
        done.set_exception(error)
