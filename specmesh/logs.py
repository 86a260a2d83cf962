"""Logging of the daemons: structlog to stderr, readable on a terminal, JSON lines elsewhere."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_least = logging.INFO


def configure(level: str, fmt: str) -> None:
    """Set logging up. fmt: console, json, or auto for what suits stderr."""
    set_level(level)
    console = sys.stderr.isatty() if fmt == "auto" else fmt == "console"
    render = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _drop_below,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def set_level(level: str) -> None:
    """Log from this level on; it may change while daemons run."""
    global _least  # noqa: PLW0603 - there is one log
    _least = logging.getLevelNamesMapping()[level.upper()]


def _drop_below(_: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if logging.getLevelNamesMapping()[level.upper()] < _least:
        raise structlog.DropEvent
    return event
