"""A daemon's I/O on one event loop: what other threads hand over, frames, and what is due."""

import asyncio
import ctypes
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from specmesh.api.requests import AskStats, refuse
from specmesh.core.snapshot import Snapshot
from specmesh.errors import SpecmeshError

T = TypeVar("T")

LOOK_INTERVAL = 0.1  # seconds between two looks for what is due
FLUSH_INTERVAL = 5e-3  # the same while frames wait for a peer that did not keep up
# seconds that tokens for clients wait for more where they come faster: waking up costs the loop's thread a tenth of a
# millisecond, and as much of the interpreter, which the engine's thread needs between two steps
DOZE = 5e-3

# write(2) without letting go of the interpreter: an engine's thread would wait for the loop that it has just woken
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class Mailbox(Generic[T]):
    """Items in order, which any thread puts. `fileno` is readable from then on until `drain`.

    dozing: the loop looks soon anyway, so only what is urgent wakes it."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._late: Callable[[T], object] | None = None
        self.dozing = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        return self._reader

    def put(self, item: T, *, urgent: bool = True) -> None:
        self._items.append(item)
        if self._late is not None:
            self.end(self._late)
        if urgent or not self.dozing:  # asked after the item is there: who stops dozing looks afterwards
            _write(self._writer, b"\0", 1)  # where the pipe is full it fails, and the loop wakes just as well

    def wake(self) -> None:
        _write(self._writer, b"\0", 1)

    def drain(self) -> list[T]:
        """Take all items; only once `fileno` is readable."""
        os.read(self._reader, 4096)
        return self.take()

    def take(self) -> list[T]:
        items = list[T]()
        while self._items:
            items.append(self._items.popleft())
        return items

    def end(self, late: Callable[[T], object]) -> None:
        """The loop has ended: what is here, and what comes later, goes to `late`, on the thread that brings it."""
        self._late = late
        while self._items:
            late(self._items.popleft())

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


class DaemonLoop(ABC, Generic[T]):
    """Takes turns on one event loop: for items of the mailbox, for frames, and to look for what is due.

    drain: seconds for sessions to finish after `stop`. refusal: what requests that come later are told. progress: it
    changes while the loop gets on, and no step hangs; any thread may read it.
    """

    def __init__(self, mailbox: Mailbox[T], drain: float, refusal: SpecmeshError) -> None:
        self._mailbox, self._drain, self._refusal = mailbox, drain, refusal
        self._stopping: float | None = None
        self._due = False  # to be looked for at the end of this turn
        self._heard = -inf  # when it was woken last
        self.progress = 0

    _ended: asyncio.Future[None]
    _timer: asyncio.TimerHandle | None = None

    async def serve(self) -> bool:
        """Serve on the running event loop until stopped and drained; return True where the engine is idle and may be
        freed. Raises what a turn raises."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_reader(self._mailbox.fileno(), self._turn, self._hear)
        self._turn(self._begin)
        self._turn(self._look)
        try:
            await self._ended
        finally:
            loop.remove_reader(self._mailbox.fileno())
            if self._timer is not None:
                self._timer.cancel()
            self._mailbox.end(self._late)
            self._leave()
            idle = await asyncio.to_thread(self._close)
        return idle

    def stop(self) -> None:
        """Take no new requests and end after those that run; safe in a signal handler."""
        if self._stopping is None:
            self._stopping = time.monotonic()
            self._mailbox.wake()

    def _turn(self, act: Callable[[], None]) -> None:
        """Take a turn, unless it is over; an error in it ends the daemon."""
        if self._ended.done():
            return
        try:
            act()
            if self._due:
                self._look()
            self._settle()
        except Exception as error:  # noqa: BLE001  (raised anew by `serve`)
            self._ended.set_exception(error)

    def _hear(self) -> None:
        items, now = self._mailbox.drain(), time.monotonic()
        for item in items:
            self._take(item, now)
        if not items or self._stopping is not None:  # woken for something else
            self._due = True
        if now - self._heard < DOZE and not self._mailbox.dozing:
            self._doze()
        self._heard = now

    def _doze(self) -> None:
        self._mailbox.dozing = True
        asyncio.get_running_loop().call_later(DOZE, self._turn, self._dozed)

    def _dozed(self) -> None:
        self._mailbox.dozing = False
        items, now = self._mailbox.take(), time.monotonic()
        for item in items:
            self._take(item, now)
        if items:
            self._doze()

    def _look(self) -> None:
        """Do what is due, and see to it that it is looked for again."""
        now, self._due = time.monotonic(), False
        if self._stopping is not None and self._drained(now):
            self._ended.set_result(None)
            return
        pause = self._tick(now)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause, self._turn, self._look)

    def _late(self, item: T) -> None:
        refuse(item, self._refusal)
        if isinstance(item, AskStats):
            item.tell(self.snapshot(time.monotonic()))

    # --- what the daemons do

    @abstractmethod
    def snapshot(self, now: float) -> Snapshot: ...

    @abstractmethod
    def _begin(self) -> None:
        """Start threads, and listen for frames."""

    @abstractmethod
    def _take(self, item: T, now: float) -> None:
        """Carry an item of the mailbox out."""

    @abstractmethod
    def _settle(self) -> None:
        """End a turn: see to frames that came meanwhile."""

    @abstractmethod
    def _tick(self, now: float) -> float:
        """Do what is due, and advance `progress`; return in how many seconds to look again."""

    @abstractmethod
    def _drained(self, now: float) -> bool:
        """Refuse what waits; return whether those that run have ended, or taken too long."""

    @abstractmethod
    def _leave(self) -> None:
        """Tell clients and peers of the end."""

    @abstractmethod
    def _close(self) -> bool:
        """End the threads, from another one; return whether the engine is idle."""
