"""A thread for work that takes too long for an event loop: tenants take turns at it."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, cast

from specmesh.core.fair_queue import FairQueue, Tenant
from specmesh.errors import Busy

ROOM = 64 * 2**20
"""Bytes of all pieces of work that wait for one thread."""

WAIT_SECONDS = 12.0
"""Seconds after which a waiting piece is refused: its client had better try again."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Work that waits. since: seconds of the monotonic clock at which it came."""

    since: float
    work: Callable[[], object]
    done: "Future[object]"

    def do(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001  (the caller of its result raises it)
            # a traceback holds this frame, which holds the future
            self.done.set_exception(error.with_traceback(None))
        else:
            self.done.set_result(result)

    def refuse(self) -> None:
        if self.done.set_running_or_notify_cancel():
            error = Busy("too many long requests wait to be read", "try again, or ask for less")
            self.done.set_exception(error)


class FairWorker:
    """Does one piece of work after the other.

    Python code on its thread lets others run every switch interval; a long call into C that keeps
    the interpreter's lock does not.
    """

    def __init__(self, name: str, room: int = ROOM) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._waiting = FairQueue[_Piece](room)
        self._closed = False

    def submit(self, tenant: Tenant, cost: int, work: Callable[[], Result]) -> "Future[Result]":
        """Do `work` when it is its tenant's turn, and return the future of its result.

        cost: bytes that it keeps until then.
        Any thread may call it. Work whose future is cancelled is not begun. The future raises Busy
        for work that has waited for WAIT_SECONDS. It also does if there is no room, for work of
        the tenant that takes most of it. After `close` it is cancelled.
        """
        done = Future[Result]()
        piece = _Piece(time.monotonic(), work, cast("Future[object]", done))
        with self._lock:
            if self._closed:
                done.cancel()
                return done
            crowding = self._waiting.push(tenant, piece, cost)
            if crowding is not piece:
                self._pool.submit(self._next)
        if crowding is not None:
            crowding.refuse()
        return done

    async def run(self, tenant: Tenant, cost: int, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, or raise its error; the event loop goes on meanwhile."""
        return await asyncio.wrap_future(self.submit(tenant, cost, work))

    def close(self) -> "Future[object]":
        """Begin nothing more; return a future that is done once nothing is under way."""
        with self._lock:
            self._closed = True
            cancelled = list[_Piece]()
            while self._waiting:
                cancelled.append(self._waiting.pop())
            ended = self._pool.submit(object)
            self._pool.shutdown(wait=False)
        for piece in cancelled:
            piece.done.cancel()
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
