"""The thread of a daemon's engine."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class ModelThread(threading.Thread):
    """The one thread on which a model is loaded, measured and run.

    - MLX streams and OpenMP workers belong to the thread that made them, and the workers live as
      long as it. With more workers than cores, libgomp has all of them sleep at barriers instead
      of spin; that took a fifth of the speed of a target on all cores (bench/RESULTS.md).
    - A step may last for ever, so the thread does not keep the process from ending.
    """

    def __init__(self) -> None:
        super().__init__(name="engine", daemon=True)
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.start()

    def do(self, work: Callable[[], T]) -> "Future[T]":
        """Have `work` done, after the work before it."""
        done: Future[T] = Future()

        def settle() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001  (the future raises it)
                done.set_exception(error)

        self._work.put(settle)
        return done

    def end(self) -> None:
        """End after the work that was handed over."""
        self._work.put(None)

    def run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
