"""A daemon's two loops.

- On the engine's thread: events into the core, steps through the engine, effects out. Between two
  steps that follow each other it takes no lock, waits for nothing and needs no other thread.
- On one event loop, the I/O: items that other threads hand over, frames, and work that is due.
"""

import asyncio
import ctypes
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from math import inf
from typing import Generic, Protocol, TypeVar

from specmesh.api.backend import AskStats, Submit
from specmesh.core.events import Wait
from specmesh.core.requests import Failed
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.daemons.runtime.model_thread import ModelThread
from specmesh.errors import EngineError, SpecmeshError

STEP_PATIENCE = 180.0
"""Seconds until a step is stuck.

A part of a prompt may take a large model on a slow CPU a minute.
"""

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")
S = TypeVar("S")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
T = TypeVar("T")


class Core(Protocol[E_contra, F, S, R_contra]):
    """A state machine that makes all decisions. Only the engine's thread calls it."""

    def handle(self, event: E_contra, now: float, /) -> list[F]:
        """Take an event of the time `now`, which may be a step's length ago."""
        ...

    def next_step(self, now: float, /) -> S | Wait:
        """Return the step that begins now, or until when to wait."""
        ...

    def finish(
        self, step: S, result: R_contra | SpecmeshError, started: float, ended: float, /
    ) -> list[F]:
        """Take a step's result, or its error; the events until `ended` were handled before."""
        ...


class EngineLoop(Generic[E, F, S, R]):
    """Runs a core and its engine on the model's thread.

    step_since: when the step that runs began. Any thread may read it.
    inbox: events that the core has not handled, with their times. Only `put` adds to it.
    """

    def __init__(
        self,
        core: Core[E, F, S, R],
        run: Callable[[S], R],
        time_up: E | None,
        deliver: Callable[[list[F] | BaseException], None],
        thread: ModelThread,
    ) -> None:
        """Begin with a thread that does nothing yet.

        run: runs a step on the engine.
        time_up: the event of a wait that has ended in vain; None for a core that waits for ever.
        deliver: called on the thread with the effects of a turn, or the defect that ended it. It
            must not block.
        """
        self._core = core
        self._run = run
        self._time_up = time_up
        self._deliver = deliver
        self.inbox: deque[tuple[E, float]] = deque()
        self._arrived = threading.Event()
        self._ending = False
        self.step_since: float | None = None
        self.patience = STEP_PATIENCE
        self._thread = thread

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.do(self._serve)

    def put(self, event: E, at: float) -> None:
        """Hand over an event that happened at `at`; from any thread."""
        self.inbox.append((event, at))
        self._arrived.set()

    @property
    def stuck(self) -> bool:
        """Return True if a step has run for too long."""
        since = self.step_since
        return since is not None and time.monotonic() - since > self.patience

    def close(self, timeout: float, free: Callable[[], object]) -> bool:
        """End after the step that runs, `free` the engine, and end the thread.

        Return True if that took no longer than `timeout` seconds.
        """
        self._ending = True
        self._arrived.set()
        freed = self._thread.do(free)
        self._thread.end()
        return bool(wait([freed], timeout).done)

    def _serve(self) -> None:
        try:
            self._turn_until_closed()
        except BaseException as error:  # the loop that waits for this thread raises it
            self._deliver(error)
            raise

    def _turn_until_closed(self) -> None:
        core = self._core
        effects = list[F]()
        while not self._ending:
            if self.inbox:
                effects += self._handled()
            step = core.next_step(time.monotonic())
            if effects:
                self._deliver(effects)  # its reader works while the engine does
            if isinstance(step, Wait):
                effects = []
                if not self._wait(step.until) and self._time_up is not None:
                    effects = core.handle(self._time_up, time.monotonic())
            else:
                effects = self._stepped(step)

    def _stepped(self, step: S) -> list[F]:
        self.step_since = started = time.monotonic()
        result: R | SpecmeshError
        try:
            result = self._run(step)
        except SpecmeshError as error:
            result = error
        except Exception as error:  # noqa: BLE001  (an engine's library may raise anything)
            result = EngineError(f"{type(error).__name__}: {error}")
        ended = time.monotonic()
        self.step_since = None
        effects = self._handled() if self.inbox else []
        effects += self._core.finish(step, result, started, ended)
        return effects

    def _handled(self) -> list[F]:
        """Return the effects of the events until now; later ones wait, or no step would begin."""
        effects = list[F]()
        for _ in range(len(self.inbox)):
            effects += self._core.handle(*self.inbox.popleft())
        return effects

    def _wait(self, until: float) -> bool:
        """Wait for an event; return False if none came in time."""
        self._arrived.clear()
        if self.inbox or self._ending:
            return True
        if until == inf:
            return self._arrived.wait()
        return self._arrived.wait(max(until - time.monotonic(), 0.0))


LOOK_INTERVAL = 0.1  # seconds between two looks for what is due
CLOSING = 2.0  # seconds that a step, or a prompt being encoded, may take after the end
DOZE = 40e-3
"""Seconds that tokens for clients wait for more, while they come fast.

A chunk costs the loop's thread 0.4 ms, and the engine's thread as much of the interpreter or of a
core. Streams still move 25 times a second.
"""
FAST = 2.5e-3  # seconds per effect below which they come fast; a token of one text has two
FAST_ON_CPU = DOZE / 2  # the same if steps need the cores: 2.5 % of a step of 12 ms

# write(2) that keeps the interpreter: an engine's thread would wait for the loop that it has woken.
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class Mailbox(Generic[T]):
    """Items in order, which any thread puts.

    `fileno` is readable from then on until `take`.
    dozing: the loop looks soon anyway, so only urgent items wake it.
    wake: wakes the loop. If the pipe is full this fails, and the loop wakes all the same.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._late: Callable[[T], object] | None = None
        self.dozing = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self.wake = partial(_write, self._writer, b"\0", 1)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reader

    def put(self, item: T, *, urgent: bool = True) -> None:
        """Add an item, and wake the loop unless it looks soon anyway."""
        self._items.append(item)
        if self._late is not None:  # nobody is to be woken any more, and the pipe may be closed
            self.end(self._late)
            return
        # The item is there already: a loop that stops dozing looks for items afterwards.
        if urgent or not self.dozing:
            self.wake()

    def take(self) -> list[T]:
        """Return the items that are there."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)
        items = list[T]()
        while self._items:
            items.append(self._items.popleft())
        return items

    def end(self, late: Callable[[T], object]) -> None:
        """Give the items that come after the loop to `late`, on the thread that puts them."""
        self._late = late
        while self._items:
            late(self._items.popleft())

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


class DaemonLoop(ABC, Generic[T]):
    """Takes turns on one event loop: for items of the mailbox, frames, and work that is due.

    mailbox: takes orders from any thread, also before `serve` and after it.
    progress: changes while the loop turns and no step is stuck. Any thread may read it.
    doze: seconds that items wait for more, while they come fast.
    """

    def __init__(self, drain: float, refusal: SpecmeshError, fast: float = FAST) -> None:
        """Begin before `serve`.

        drain: seconds for sessions to finish after `stop`.
        refusal: the error of requests that come later.
        fast: seconds per item below which items that are not urgent wait for more.
        """
        self.mailbox = Mailbox[T]()
        self._drain = drain
        self._refusal = refusal
        self._fast = fast
        self._stopping: float | None = None
        self._due = False  # work may be due at the end of this turn
        self._woken_at = -inf
        self.progress: int = 0
        self.doze = DOZE

    _ended: asyncio.Future[None]
    _timer: asyncio.TimerHandle | None = None

    async def serve(self) -> bool:
        """Serve on the running event loop until stopped and drained.

        Return True if the engine is idle and may be freed. Raise the error of a turn.
        """
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_reader(self.mailbox.fileno(), self._turn, self._take_items)
        self._turn(self._begin)
        self._turn(self._look)
        try:
            await self._ended
        finally:
            loop.remove_reader(self.mailbox.fileno())
            if self._timer is not None:
                self._timer.cancel()
            self.mailbox.end(self._late)
            self._leave()
            idle = await asyncio.to_thread(self._close)
        return idle

    def stop(self) -> None:
        """Take no new requests and end after those that run; safe in a signal handler."""
        if self._stopping is None:
            self._stopping = time.monotonic()
            self.mailbox.wake()

    def _turn(self, act: Callable[[], bool | None]) -> None:
        """Take a turn, unless it is over; an error in it ends the daemon.

        act: returns True if work may be due.
        """
        if self._ended.done():
            return
        try:
            if act():
                self._due = True
            while self._due and not self._ended.done():
                self._look()
        except Exception as error:  # noqa: BLE001  (raised anew by `serve`)
            self._ended.set_exception(error)

    def _take_items(self, *, dozed: bool = False) -> None:
        """Take the items. While they come fast, look for them after a doze, not at each."""
        if dozed:
            self.mailbox.dozing = False
        items = self.mailbox.take()
        now = time.monotonic()
        count = 0
        for item in items:
            self._take(item, now)
            if isinstance(item, list):
                count += len(item)  # pyright: ignore[reportUnknownArgumentType]
            else:
                count += 1
        if self._stopping is not None or not (items or dozed):  # it was woken for something else
            self._due = True
        if count * self._fast > now - self._woken_at and not self.mailbox.dozing:
            self.mailbox.dozing = True
            look = partial(self._take_items, dozed=True)
            asyncio.get_running_loop().call_later(self.doze, self._turn, look)
        self._woken_at = now

    def _look(self) -> None:
        """Do the work that is due, and look again after LOOK_INTERVAL."""
        now = time.monotonic()
        self._due = False
        if self._stopping is not None and (self._drained() or now >= self._stopping + self._drain):
            self._ended.set_result(None)
            return
        self._tick(now)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._turn, self._look)

    def _late(self, item: T) -> None:
        if isinstance(item, Submit):
            for _, client in item.texts:
                client.on_event(Failed(self._refusal))
        elif isinstance(item, AskStats):
            item.tell(self.snapshot(time.monotonic()))

    # --- the parts that differ between the daemons

    @abstractmethod
    def snapshot(self, now: float) -> Snapshot:
        """Return the content of `specmesh stats --json`."""

    @abstractmethod
    def _begin(self) -> None:
        """Start threads, and listen for frames."""

    @abstractmethod
    def _take(self, item: T, now: float, /) -> None:
        """Carry out an item of the mailbox."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Do the work that is due, and advance `progress`."""

    @abstractmethod
    def _drained(self) -> bool:
        """Refuse the requests that wait; return whether the sessions have ended."""

    @abstractmethod
    def _leave(self) -> None:
        """Notify clients and peers of the end."""

    @abstractmethod
    def _close(self) -> bool:
        """End the threads, from another one; return whether the engine is idle."""
