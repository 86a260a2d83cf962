"""The one thread that makes every MLX call.

MLX's streams belong to the thread that made them: a model loaded on one thread fails on another, or computes on a
stream nobody waits for. So an engine owns a thread, and whoever calls the engine waits for it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from specmesh.errors import EngineError

T = TypeVar("T")


class _Call(Generic[T]):
    """Work on its way to the thread; `done` is released when `value` or `error` is there."""

    __slots__ = ("done", "error", "value", "work")

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.value: list[T] = []
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def perform(self) -> None:
        try:
            self.value.append(self.work())
        except BaseException as error:  # noqa: BLE001 - raised again where the work was asked for
            self.error = error
        finally:
            self.done.release()


class MlxThread:
    """Runs work in the order it is asked for; any thread may ask. About 20 microseconds per call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._gate = threading.Lock()  # nothing is queued behind the end
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="mlx", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], T]) -> T:
        """What `work()` returns or raises, called on the thread. Raises EngineError after `close`."""
        call: _Call[T] = _Call(work)
        with self._gate:
            if self._closed:
                raise EngineError("the model is closed")
            self._calls.put(call)  # type: ignore[arg-type]
        call.done.acquire()
        if call.error is not None:
            try:
                raise call.error
            finally:
                call.error = None  # or the error would hold this frame, and this frame the error
        return call.value[0]

    def close(self) -> None:
        """End the thread once it has done what was asked before; a second call does nothing."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._calls.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.perform()
            del call  # the next one may be long in coming: hold neither its arrays nor its error until then
