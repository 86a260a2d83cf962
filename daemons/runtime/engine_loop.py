"""The engine's thread, of either daemon: events into its core, steps through its engine, effects out.

No lock is taken, nothing is waited for and no other thread answers between two steps that follow each other.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, TypeVar

from specmesh.core.events import Wait
from specmesh.errors import EngineError, SpecmeshError

STEP_PATIENCE = 180.0  # seconds until a step is stuck: a part of a prompt takes a large model on a slow CPU a minute

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")
S = TypeVar("S")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Core(Protocol[E_contra, F, S, R_contra]):
    """What decides. Only the engine's thread calls it."""

    def handle(self, event: E_contra, now: float, /) -> list[F]:
        """Take in what happened at `now`, which may be a while ago: the core hears nothing during a step."""

    def next_step(self, now: float, /) -> S | Wait:
        """Return the step that begins now, or until when there is none."""

    def finish(self, step: S, result: R_contra | SpecmeshError, started: float, ended: float, /) -> list[F]:
        """Take in what came of a step, or why nothing did; what happened meanwhile was handled before."""


@dataclass(frozen=True, slots=True)
class CoreSays(Generic[F]):
    """The effects of one turn."""

    effects: list[F]


@dataclass(frozen=True, slots=True)
class Crashed:
    """The engine's thread has ended by a defect of ours."""

    error: BaseException


class ModelThread:
    """The one thread on which a model is loaded, measured and steps: MLX streams and OpenMP workers stay with theirs.

    A thread's OpenMP workers stay as long as it does. Where a process has more of them than cores libgomp has all sleep
    at barriers where they would spin, which took a fifth of the speed of a target on all cores (bench/RESULTS.md).
    It does not keep the process from ending: a step may last for ever.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ended = False
        threading.Thread(target=self._serve, name="engine", daemon=True).start()

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
        self._work.put(lambda: setattr(self, "_ended", True))

    def _serve(self) -> None:
        while not self._ended:
            self._work.get()()


class EngineLoop(Generic[E, F, S, R]):
    """Runs `core` and `run`, its engine, on the model's thread.

    time_up: the event that a core hears when it has waited in vain, if it ever does. deliver: called on that thread, so
    it must not block.
    """

    def __init__(
        self,
        core: Core[E, F, S, R],
        run: Callable[[S], R],
        time_up: E | None,
        deliver: Callable[[CoreSays[F] | Crashed], None],
        thread: ModelThread,
    ) -> None:
        self._core, self._run, self._time_up = core, run, time_up
        self._deliver = deliver
        self._inbox: deque[tuple[E, float]] = deque()
        self._arrived = threading.Event()
        self._ending = False
        self.step_since: float | None = None  # when the step that runs began; any thread may look
        self._thread = thread
        self._served: Future[None] = Future()

    def start(self) -> None:
        self._served = self._thread.do(self._serve)

    def put(self, event: E, at: float) -> None:
        """Hand over an event that happened at `at`; from any thread."""
        self._inbox.append((event, at))
        self._arrived.set()

    @property
    def stuck(self) -> bool:
        """Return True if a step has run for too long."""
        since = self.step_since
        return since is not None and time.monotonic() - since > STEP_PATIENCE

    @property
    def behind(self) -> int:
        """Events that the core has not heard."""
        return len(self._inbox)

    def close(self, timeout: float) -> bool:
        """End after the step that runs; return True if that was within `timeout` seconds."""
        self._ending = True
        self._arrived.set()
        return bool(wait([self._served], timeout).done)

    def _serve(self) -> None:
        try:
            self._turn_until_closed()
        except BaseException as error:
            self._deliver(Crashed(error))
            raise

    def _turn_until_closed(self) -> None:
        core, effects = self._core, list[F]()
        while not self._ending:
            if self._inbox:
                effects += self._heard()
            step = core.next_step(time.monotonic())
            if effects:
                self._deliver(CoreSays(effects))  # its reader works while the engine does
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
        except Exception as error:  # noqa: BLE001  (whatever an engine's library raises, its sessions are told)
            result = EngineError(f"{type(error).__name__}: {error}")
        self.step_since, ended = None, time.monotonic()
        return self._heard() + self._core.finish(step, result, started, ended)

    def _heard(self) -> list[F]:
        effects = list[F]()
        while self._inbox:
            effects += self._core.handle(*self._inbox.popleft())
        return effects

    def _wait(self, until: float) -> bool:
        """Wait for an event; return False where none came in time."""
        self._arrived.clear()
        if self._inbox or self._ending:
            return True
        return self._arrived.wait(None if until == inf else max(until - time.monotonic(), 0.0))
