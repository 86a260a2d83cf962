"""Logging of the daemons: structlog to stderr. A line that cannot be written is dropped and counted."""

import atexit
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import structlog

from specmesh.errors import ConfigError
from specmesh.paths import open_own

MAX_LOG_BYTES = 16 * 2**20
"""Bytes at which the file is begun anew; as many are kept of what came before."""
_STDOUT, _STDERR = 1, 2


class LogFile:
    """Leads stdout and stderr to a file, also those of libraries and a dying interpreter. Raises ConfigError."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._terminal = os.dup(_STDERR) if os.isatty(_STDERR) else None
        try:
            self._begin(path)
        except OSError as error:
            raise ConfigError(f"--log-file {path} cannot be written ({error.strerror}): name another") from None

    def keep_small(self) -> None:
        """Rotate a full file to FILE.1.

        Whatever writes meanwhile reaches one file or the other. If that fails, because no descriptor is left, the file
        is emptied at twice the limit: it must neither stop the daemon nor fill the disk.
        """
        with self._lock, suppress(OSError):
            size = os.fstat(_STDERR).st_size
            if size < MAX_LOG_BYTES:
                return
            new = self._path.with_name(f"{self._path.name}.new")
            try:
                self._begin(new)
            except OSError:
                if size >= 2 * MAX_LOG_BYTES:
                    os.ftruncate(_STDERR, 0)
                new.unlink(missing_ok=True)

    def close(self) -> None:
        """Give stderr back to the terminal, if it was one: whoever sits there shall see how the command ends."""
        if self._terminal is not None:
            os.dup2(self._terminal, _STDERR)

    def _begin(self, path: Path) -> None:
        file = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if path != self._path:
                self._path.replace(f"{self._path}.1")
                path.replace(self._path)
            os.dup2(file, _STDOUT)
            os.dup2(file, _STDERR)
        finally:
            os.close(file)


MAX_QUEUED_LINES = 10_000
POLL_INTERVAL_S = 1.0
FLUSH_TIMEOUT_S = 1.0


class LogWriter:
    """Writes lines to stderr in order. Any thread may write, and a signal handler too: nothing here waits for a lock.

    On the writer's thread it calls `prepare`, which must not raise, before each line and every POLL_INTERVAL_S.
    """

    def __init__(self, prepare: Callable[[], None] | None) -> None:
        self._prepare = prepare
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._cut = False
        self.dropped = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, line: str) -> None:
        if self._lines.qsize() < MAX_QUEUED_LINES:
            self._lines.put(line)
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Wait until all lines so far were written or dropped, but not longer than FLUSH_TIMEOUT_S."""
        reached = threading.Event()
        self._lines.put(reached)
        reached.wait(FLUSH_TIMEOUT_S)

    def _run(self) -> None:
        told, works = 0, True
        while True:
            item = None
            with suppress(queue.Empty):
                item = self._lines.get(timeout=None if self._prepare is None else POLL_INTERVAL_S)
            if self._prepare is not None:
                self._prepare()
            if isinstance(item, threading.Event):
                item.set()
            elif item is not None:
                works = self._written(item)
                self.dropped += not works
            if works and self.dropped > told and self._lines.empty():
                told = self.dropped
                log = structlog.get_logger("specmesh")
                log.warning("log_lines_dropped", lines=told, meaning="they could not be written")

    def _written(self, line: str) -> bool:
        start = "\n" if self._cut else ""
        left = memoryview(f"{start}{line}\n".encode(errors="backslashreplace"))
        size = len(left)
        while left:
            try:
                left = left[os.write(_STDERR, left) :]
            except BlockingIOError:  # whoever shares a terminal or pipe may have made it so
                select.select([], [_STDERR], [])
            except OSError:
                self._cut |= 0 < len(left) < size  # half a line is out, and the next must not continue it
                return False
        self._cut = False
        return True


least = logging.INFO
_writer: LogWriter | None = None


def configure(level: str, fmt: str, log_file: LogFile | None = None) -> None:
    """Set logging up. fmt: console, json, or auto for what suits stderr; log_file: what stderr leads to, if to one."""
    global _writer  # noqa: PLW0603 - there is one log
    set_level(level)
    if _writer is None:
        atexit.register(flush)
    _writer = LogWriter(log_file.keep_small if log_file is not None else None)
    lines = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error", "critical"), _writer.write))
    console = sys.stderr.isatty() if fmt == "auto" else fmt == "console"
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    render = structlog.dev.ConsoleRenderer(colors=colours) if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _drop_below,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[LibraryHandler()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def dropped() -> int:
    return _writer.dropped if _writer is not None else 0


def flush() -> None:
    if _writer is not None:
        _writer.flush()


def leave(code: int) -> NoReturn:
    """End this process at once, whatever its threads do; what it logged gets out."""
    flush()
    os._exit(code)


class LibraryHandler(logging.Handler):
    """What libraries log through Python's own logging, warnings too, as events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        told = {"error": f"{type(error).__name__}: {error}"} if error is not None else {}
        structlog.get_logger(record.name).log(record.levelno, "library", line=record.getMessage(), **told)


def set_level(level: str) -> None:
    """Log from this level on; it may change while daemons run."""
    global least  # noqa: PLW0603 - there is one log
    least = logging.getLevelNamesMapping()[level.upper()]


def _drop_below(_: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if logging.getLevelNamesMapping()[level.upper()] < least:
        raise structlog.DropEvent
    return event
