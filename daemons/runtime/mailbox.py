"""A queue into a poll loop: any thread puts, the loop polls its descriptor."""

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# write(2) without letting go of the interpreter: an engine's thread would wait for the loop that it has just woken
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class Mailbox(Generic[T]):
    """Items in order. `fileno` becomes readable when some are added and stays so until `quiet`."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._late: Callable[[T], object] | None = None
        self._reader, self.wakeup_fd = os.pipe()  # a byte written there wakes the loop, see `signal.set_wakeup_fd`
        os.set_blocking(self._reader, False)
        os.set_blocking(self.wakeup_fd, False)

    def fileno(self) -> int:
        return self._reader

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._late is not None:
            self.end(self._late)
        self.wake()

    def wake(self) -> None:
        _write(self.wakeup_fd, b"\0", 1)  # where the pipe is full it fails, and the loop wakes just as well

    def drain(self) -> list[T]:
        """Take all items; from the loop's thread."""
        items: list[T] = []
        with contextlib.suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        return items

    def end(self, late: Callable[[T], object]) -> None:
        """The loop has ended: what is here, and what comes later, goes to `late`, on the thread that brings it."""
        self._late = late
        for item in self.drain():
            late(item)

    def quiet(self) -> None:
        """Forget the wake-ups so far; call it after the descriptor was readable and before `drain`."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.wakeup_fd)
