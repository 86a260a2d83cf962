"""Logging of the daemons: structlog to stderr, readable on a terminal, JSON lines elsewhere.

A line that cannot be written is dropped and counted; whoever logs never notices.
"""

import atexit
import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, NoReturn

import structlog

from specmesh.log_file import LogFile
from specmesh.log_writer import LogWriter

_least = logging.INFO
_writer: LogWriter | None = None


def configure(level: str, fmt: str, log_file: LogFile | None = None) -> None:
    """Set logging up. fmt: console, json, or auto for what suits stderr; log_file: what stderr leads to, if to one."""
    global _writer  # noqa: PLW0603 - there is one log
    set_level(level)
    if _writer is None:
        atexit.register(flush)
    _writer = LogWriter(sys.stderr, _say_dropped, log_file.keep_small if log_file is not None else None)
    lines = _Lines(_writer)
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
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def debugging() -> bool:
    """Return True where debug events are logged."""
    return _least <= logging.DEBUG


def dropped() -> int:
    """Lines that could not be written so far."""
    return _writer.dropped if _writer is not None else 0


def flush() -> None:
    """Wait for the lines on their way, but not for long."""
    if _writer is not None:
        _writer.flush()


def leave(code: int) -> NoReturn:
    """End this process at once, whatever its threads do; what it logged gets out."""
    flush()
    os._exit(code)


def _say_dropped(count: int) -> None:
    structlog.get_logger("specmesh").warning("log_lines_dropped", lines=count, meaning="they could not be written")


class _Lines:
    """A rendered event of any level is a line."""

    def __init__(self, writer: LogWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write
        self.warn = self.msg = self.log = self.exception = self.fatal = writer.write


class _Libraries(logging.Handler):
    """What libraries log through Python's own logging, warnings too, as events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        told = {"error": f"{type(error).__name__}: {error}"} if error is not None else {}
        structlog.get_logger(record.name).log(record.levelno, "library", line=record.getMessage(), **told)


def set_level(level: str) -> None:
    """Log from this level on; it may change while daemons run."""
    global _least  # noqa: PLW0603 - there is one log
    _least = logging.getLevelNamesMapping()[level.upper()]


def _drop_below(_: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if logging.getLevelNamesMapping()[level.upper()] < _least:
        raise structlog.DropEvent
    return event
