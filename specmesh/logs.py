"""Logging of the daemons: structlog to stderr, readable on a terminal, JSON lines elsewhere."""

import logging
import sys

import structlog


def configure(level: str, fmt: str) -> None:
    """Set logging up. fmt: console, json, or auto for what suits stderr."""
    console = sys.stderr.isatty() if fmt == "auto" else fmt == "console"
    render = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
