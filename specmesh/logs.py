"""Logging of the daemons: structlog to stderr. A line that cannot be written is dropped."""

import atexit
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

from specmesh.terminal import bar_eraser, has_styles


@contextmanager
def _absent(package: str) -> Generator[None]:
    """Let imports of a package fail, as if it were not installed, unless it is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


# structlog would import rich for a form of tracebacks that no log here has: a tenth of a start.
with _absent("rich"):
    import structlog

STDERR = 2
MAX_QUEUED_LINES = 10_000
FLUSH_TIMEOUT_S = 1.0


class LogWriter:
    """Writes lines in order.

    Any thread may write, and a signal handler too: no lock is waited for.
    """

    def __init__(self, descriptor: int = STDERR) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, line: str) -> None:
        if self._lines.qsize() < MAX_QUEUED_LINES:
            self._lines.put(line)

    debug = info = warning = error = critical = write

    def flush(self) -> None:
        """Wait until all lines so far were written or dropped, at most FLUSH_TIMEOUT_S."""
        reached = threading.Event()
        self._lines.put(reached)
        reached.wait(FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            item = self._lines.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                line = f"{bar_eraser()}{item}\n"
                self._write(memoryview(line.encode(errors="backslashreplace")))

    def _write(self, left: memoryview) -> None:
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process of this terminal or pipe may have made it so
                select.select([], [self._descriptor], [])
            except OSError:
                return


least = logging.INFO  # the level from which on lines are logged
_writer: LogWriter | None = None


def configure(level: str) -> None:
    """Set logging up: lines for a person if stderr is a terminal, else JSON objects."""
    global _writer, least
    _writer, least = LogWriter(), logging.getLevelNamesMapping()[level.upper()]
    atexit.register(flush)
    console = structlog.dev.ConsoleRenderer(colors=has_styles(sys.stderr))
    render = console if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: _writer,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[LibraryHandler()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def flush() -> None:
    if _writer is not None:
        _writer.flush()


def leave(code: int) -> NoReturn:
    """Write the log, then end this process at once, whatever its threads do."""
    flush()
    end_bar()
    os._exit(code)


def end_bar() -> None:
    """Erase a bar of this process; safe in a signal handler."""
    with suppress(OSError):
        os.write(STDERR, bar_eraser().encode())


class LibraryHandler(logging.Handler):
    """Makes events of ours from lines of Python's own logging, warnings included."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict[str, str]()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = f"{type(error).__name__}: {error}"
        structlog.get_logger(record.name).log(
            record.levelno, "library", line=record.getMessage(), **fields
        )
