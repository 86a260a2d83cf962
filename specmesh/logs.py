"""Logging of the daemons: structlog to stderr, readable on a terminal, JSON lines elsewhere."""

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from specmesh.log_file import LogFile

_least = logging.INFO


def configure(level: str, fmt: str, log_file: LogFile | None = None) -> None:
    """Set logging up. fmt: console, json, or auto for what suits stderr; log_file: what stderr leads to, if to one."""
    set_level(level)

    def keep_small(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if log_file is not None:
            log_file.keep_small()
        return event

    console = sys.stderr.isatty() if fmt == "auto" else fmt == "console"
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    render = structlog.dev.ConsoleRenderer(colors=colours) if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _drop_below,
            keep_small,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


class _Libraries(logging.Handler):
    """What libraries log through Python's own logging, warnings too, as events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record under its library's name."""
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
