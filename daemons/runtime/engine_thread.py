"""The target model on a thread of its own, so that the loop hears the wire while a step runs."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.scheduling.kv_slots import KVCopy, KVCut, KVOrder
from specmesh.engines.base import CpuEngine, VerifyEngine
from specmesh.errors import EngineError, SpecmeshError

T = TypeVar("T")


def on_own_thread(work: Callable[[], T]) -> T:
    """Do what an engine does before it serves on a thread that ends with it.

    A thread's OpenMP workers stay as long as it does. Where a process has more of them than cores libgomp has all sleep
    at barriers where they would spin, which took a fifth of the speed of a target on all cores (bench/RESULTS.md).
    """
    with ThreadPoolExecutor(1, "engine") as thread:
        return thread.submit(work).result()


EngineJob = tuple[tuple[KVOrder, ...], Sequence[Span], int | None]
"""Orders to carry out, spans to decode then; and, where that changes, with how many CPU threads from now on."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Per span its logits (valid until the next job), and when the decode began and ended."""

    logits: list[NDArray[np.float32] | None]
    started: float
    ended: float


class EngineThread:
    """Runs one job at a time; each result, or why there is none, goes to `deliver`, on this thread."""

    def __init__(self, engine: VerifyEngine, deliver: Callable[[Decoded | SpecmeshError], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._jobs: queue.SimpleQueue[EngineJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: EngineJob) -> None:
        """Start a job; the one before must have been delivered."""
        self._jobs.put(job)

    def close(self, timeout: float) -> bool:
        """End the thread after the job it is in; return True if it ended within `timeout` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._deliver(self._do(*job))
            except SpecmeshError as error:
                self._deliver(error)
            except Exception as error:  # noqa: BLE001  (whatever it is, the loop waits for an answer)
                self._deliver(EngineError(f"{type(error).__name__}: {error}"))

    def _do(self, orders: tuple[KVOrder, ...], spans: Sequence[Span], threads: int | None) -> Decoded:
        if threads is not None and isinstance(self._engine, CpuEngine):
            self._engine.use_threads(threads)
        self._prepare(orders)
        started = time.monotonic()
        logits = self._engine.decode(spans)
        return Decoded(logits, started, time.monotonic())

    def _prepare(self, orders: tuple[KVOrder, ...]) -> None:
        """Carry all of them out, then raise the first error, if any: one sequence's must not stop another's."""
        failed: SpecmeshError | None = None
        for order in orders:
            try:
                match order:
                    case KVCut(seq, length):
                        self._engine.trim(seq, length)
                    case KVCopy(seq, source, length):
                        self._engine.copy(seq, source, length)
                    case _:
                        assert_never(order)
            except SpecmeshError as error:
                failed = failed or error
        if failed is not None:
            raise failed
