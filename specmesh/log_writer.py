"""Log lines on their way out, on a thread of their own: a full disk or a reader that stands still is not the caller's
trouble."""

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import TextIO

MAX_WAITING = 10_000
"""Most lines kept for a stream that does not take them; further ones are dropped."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks at a file that others write to as well."""

FLUSH_PATIENCE = 1.0
"""Seconds that `flush` waits at most."""


class LogWriter:
    """Writes lines to a stream in the order they came. On the writer's thread, `tell` is called with how many were
    dropped in all, once lines can be written again, and `prepare`, which must not raise, before each line and every
    LOOK_INTERVAL.

    Any thread may write, and a signal handler too: nothing here waits for a lock.
    """

    def __init__(self, stream: TextIO, tell: Callable[[int], None], prepare: Callable[[], None] | None = None) -> None:
        self._stream, self._tell, self._prepare = stream, tell, prepare
        try:
            self._file: int | None = stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._file = None
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._refused = self._failed = self._told = 0
        self._cut = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines that could not be written so far."""
        return self._refused + self._failed

    def write(self, line: str) -> None:
        """Take a line, without its end; returns at once."""
        if self._lines.qsize() < MAX_WAITING:
            self._lines.put(line)
        else:
            self._refused += 1

    def flush(self, seconds: float = FLUSH_PATIENCE) -> bool:
        """Wait until all lines so far were written or dropped, but not longer than `seconds`; whether they were."""
        reached = threading.Event()
        self._lines.put(reached)
        return reached.wait(seconds)

    def _run(self) -> None:
        works = True
        item: str | threading.Event | None
        while True:
            try:
                item = self._lines.get(timeout=LOOK_INTERVAL if self._prepare is not None else None)
            except queue.Empty:
                item = None
            if self._prepare is not None:
                self._prepare()
            if isinstance(item, threading.Event):
                item.set()
            elif item is not None:
                works = self._written(item)
                self._failed += not works
            if works and self.dropped > self._told and self._lines.empty():
                self._told = self.dropped
                self._tell(self._told)

    def _written(self, line: str) -> bool:
        start = "\n" if self._cut else ""
        left = memoryview(f"{start}{line}\n".encode(errors="backslashreplace"))
        size = len(left)
        try:
            while left:
                left = left[self._put(left) :]
        except (OSError, ValueError):
            self._cut |= 0 < len(left) < size  # half a line is out, and the next must not continue it
            return False
        self._cut = False
        return True

    def _put(self, raw: memoryview) -> int:
        """Write some of these bytes; how many."""
        if self._file is None:
            self._stream.write(bytes(raw).decode())
            return len(raw)
        while True:
            with contextlib.suppress(BlockingIOError):  # whoever shares a terminal or pipe may have made it so
                return os.write(self._file, raw)
            select.select([], [self._file], [])
