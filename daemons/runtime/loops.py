"""A daemon's two loops. The engine's thread: events into its core, steps through its engine, effects out; no lock is
taken, nothing is waited for and no other thread answers between two steps that follow each other. The I/O, on one event
loop: what other threads hand over, frames, and what is due.
"""

import asyncio
import ctypes
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from math import inf
from typing import Generic, Protocol, TypeVar

from specmesh.api.backend import AskStats, Submit
from specmesh.core.events import Wait
from specmesh.core.requests import Failed
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.errors import EngineError, SpecmeshError

STEP_PATIENCE = 180.0  # seconds until a step is stuck: a part of a prompt takes a large model on a slow CPU a minute

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")
S = TypeVar("S")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
T = TypeVar("T")


class Core(Protocol[E_contra, F, S, R_contra]):
    """What decides. Only the engine's thread calls it."""

    def handle(self, event: E_contra, now: float, /) -> list[F]:
        """Take in what happened at `now`, which may be a while ago: the core hears nothing during a step."""
        ...

    def next_step(self, now: float, /) -> S | Wait:
        """Return the step that begins now, or until when there is none."""
        ...

    def finish(
        self, step: S, result: R_contra | SpecmeshError, started: float, ended: float, /
    ) -> list[F]:
        """Take in what came of a step, or why nothing did; what happened meanwhile was handled before."""
        ...


class ModelThread(threading.Thread):
    """The one thread on which a model is loaded, measured and steps: MLX streams and OpenMP workers stay with theirs. A
    thread's OpenMP workers stay as long as it does. Where a process has more of them than cores libgomp has all sleep
    at barriers where they would spin, which took a fifth of the speed of a target on all cores (bench/RESULTS.md). It
    does not keep the process from ending: a step may last for ever."""

    def __init__(self) -> None:
        super().__init__(name="engine", daemon=True)
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.start()

    def do(self, work: Callable[[], F]) -> "Future[F]":
        """Have `work` done after what is being done."""
        done: Future[F] = Future()

        def settle() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001  (who waits for it hears it)
                done.set_exception(error)

        self._work.put(settle)
        return done

    def end(self) -> None:
        """End after what was to be done."""
        self._work.put(None)

    def run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class EngineLoop(Generic[E, F, S, R]):
    """Runs `core` and `run`, its engine, on the model's thread. time_up: the event that a core hears when it has waited
    in vain, if it ever does. deliver: called on that thread with the effects of a turn, or the defect that has ended
    it; it must not block."""

    def __init__(
        self,
        core: Core[E, F, S, R],
        run: Callable[[S], R],
        time_up: E | None,
        deliver: Callable[[list[F] | BaseException], None],
        thread: ModelThread,
    ) -> None:
        self._core, self._run, self._time_up = core, run, time_up
        self._deliver = deliver
        self._inbox: deque[tuple[E, float]] = deque()
        self._arrived = threading.Event()
        self._ending = False
        self.step_since: float | None = None  # when the step that runs began; any thread may look
        self.patience = STEP_PATIENCE
        self._thread = thread

    def start(self) -> None:
        self._thread.do(self._serve)

    def put(self, event: E, at: float) -> None:
        """Hand over an event that happened at `at`; from any thread."""
        self._inbox.append((event, at))
        self._arrived.set()

    @property
    def stuck(self) -> bool:
        """Return True if a step has run for too long."""
        since = self.step_since
        return since is not None and time.monotonic() - since > self.patience

    @property
    def behind(self) -> int:
        """Events that the core has not heard."""
        return len(self._inbox)

    def close(self, timeout: float, free: Callable[[], object]) -> bool:
        """End after the step that runs, `free` the engine, and end the thread; return True if that was within `timeout`
        seconds."""
        self._ending = True
        self._arrived.set()
        freed = self._thread.do(free)
        self._thread.end()
        return bool(wait([freed], timeout).done)

    def _serve(self) -> None:
        try:
            self._turn_until_closed()
        except (
            BaseException
        ) as error:  # whatever ends this thread, the loop that waits for it hears it
            self._deliver(error)
            raise

    def _turn_until_closed(self) -> None:
        core, effects = self._core, list[F]()
        while not self._ending:
            if self._inbox:
                effects += self._heard()
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
        except Exception as error:  # noqa: BLE001  (whatever an engine's library raises ends its sessions)
            result = EngineError(f"{type(error).__name__}: {error}")
        self.step_since, ended = None, time.monotonic()
        effects = self._heard() if self._inbox else []
        effects += self._core.finish(step, result, started, ended)
        return effects

    def _heard(self) -> list[F]:
        effects = list[F]()
        for _ in range(len(self._inbox)):  # what comes meanwhile waits, or no step would begin
            effects += self._core.handle(*self._inbox.popleft())
        return effects

    def _wait(self, until: float) -> bool:
        """Wait for an event; return False where none came in time."""
        self._arrived.clear()
        if self._inbox or self._ending:
            return True
        return self._arrived.wait(None if until == inf else max(until - time.monotonic(), 0.0))


LOOK_INTERVAL = 0.1  # seconds between two looks for what is due
CLOSING = 2.0  # seconds that a step, or a prompt being encoded, may take after the end
# seconds that tokens for clients wait for more where they come fast: a chunk costs the loop's thread 0.4 ms, and the
# engine's thread as much of the interpreter, or of a core. Streams still move 25 times a second
DOZE = 40e-3
FAST = 2.5e-3  # seconds per effect below which they come fast: a token of a lone text has two
FAST_ON_CPU = DOZE / 2  # the same where steps need the cores: 2.5 % of a step of 12 ms

# write(2) without letting go of the interpreter: an engine's thread would wait for the loop that it has just woken
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class Mailbox(Generic[T]):
    """Items in order, which any thread puts. `fileno` is readable from then on until `take`. dozing: the loop looks
    soon anyway, so only what is urgent wakes it."""

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
        if self._late is not None:  # nobody is to be woken any more, and the pipe may be closed
            self.end(self._late)
            return
        if (
            urgent or not self.dozing
        ):  # asked after the item is there: who stops dozing looks afterwards
            _write(
                self._writer, b"\0", 1
            )  # where the pipe is full it fails, and the loop wakes just as well

    def wake(self) -> None:
        _write(self._writer, b"\0", 1)

    def take(self) -> list[T]:
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)
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
    """Takes turns on one event loop: for items of the mailbox, for frames, and to look for what is due. mailbox: takes
    orders from any thread, also before `serve` and after it. drain: seconds for sessions to finish after `stop`.
    refusal: what requests that come later get. fast: seconds per item below which what may wait does. progress:
    it changes while the loop gets on, and no step hangs; any thread may read it."""

    def __init__(self, drain: float, refusal: SpecmeshError, fast: float = FAST) -> None:
        self.mailbox = Mailbox[T]()
        self._drain, self._refusal, self._fast = drain, refusal, fast
        self._stopping: float | None = None
        self._due = False  # to be looked for at the end of this turn
        self._heard = -inf  # when it was woken last
        self.progress: int = 0
        self.doze = DOZE

    _ended: asyncio.Future[None]
    _timer: asyncio.TimerHandle | None = None

    async def serve(self) -> bool:
        """Serve on the running event loop until stopped and drained; return True where the engine is idle and may be
        freed. Raises what a turn raises."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.add_reader(self.mailbox.fileno(), self._turn, self._hear)
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

    def _turn(self, act: Callable[[], None]) -> None:
        """Take a turn, unless it is over; an error in it ends the daemon."""
        if self._ended.done():
            return
        try:
            act()
            if self._due:
                self._look()
            if not self._ended.done():
                self._settle()
        except Exception as error:  # noqa: BLE001  (raised anew by `serve`)
            self._ended.set_exception(error)

    def _hear(self, *, dozed: bool = False) -> None:
        """Take what has come. Where that comes fast, look for it after a doze instead of being woken by each."""
        if dozed:
            self.mailbox.dozing = False
        items, now = self.mailbox.take(), time.monotonic()
        for item in items:
            self._take(item, now)
        if self._stopping is not None or not (items or dozed):  # woken for something else
            self._due = True
        count = sum(len(item) if isinstance(item, list) else 1 for item in items)  # pyright: ignore[reportUnknownArgumentType]  # of anything
        if count * self._fast > now - self._heard and not self.mailbox.dozing:
            self.mailbox.dozing = True
            asyncio.get_running_loop().call_later(
                self.doze, self._turn, partial(self._hear, dozed=True)
            )
        self._heard = now

    def _look(self) -> None:
        """Do what is due, and see to it that it is looked for again."""
        now, self._due = time.monotonic(), False
        if self._stopping is not None and (self._drained() or now >= self._stopping + self._drain):
            self._ended.set_result(None)
            return
        self._tick(now)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._turn, self._look)

    def _late(self, item: T) -> None:
        if isinstance(item, Submit):
            item.client.on_event(Failed(self._refusal))
        elif isinstance(item, AskStats):
            item.tell(self.snapshot(time.monotonic()))

    # --- what the daemons do

    @abstractmethod
    def snapshot(self, now: float) -> Snapshot: ...

    @abstractmethod
    def _begin(self) -> None:
        """Start threads, and listen for frames."""

    @abstractmethod
    def _take(self, item: T, now: float, /) -> None:
        """Carry an item of the mailbox out."""

    @abstractmethod
    def _settle(self) -> None:
        """End a turn: see to frames that came meanwhile."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Do what is due, and advance `progress`."""

    @abstractmethod
    def _drained(self) -> bool:
        """Refuse what waits; return whether those that run have ended."""

    @abstractmethod
    def _leave(self) -> None:
        """Tell clients and peers of the end."""

    @abstractmethod
    def _close(self) -> bool:
        """End the threads, from another one; return whether the engine is idle."""
