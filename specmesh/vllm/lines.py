"""Lines of the log: in a vLLM server they go to vLLM's own log."""

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

LOGGER = "vllm.specmesh"
"""A child of vLLM's logger, which has its form, its level and its place."""


def configure(level: str) -> None:
    """Send lines from this level on to vLLM's log, unless the program has a log of ours."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=lambda *_: logging.getLogger(LOGGER),
        cache_logger_on_first_use=True,
    )


def _line(_: object, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Return the line of an event: its name, then its fields."""
    name = event.pop("event")
    event.pop("level", None)
    fields = " ".join(f"{key}={value!r}" for key, value in event.items())
    return (f"specmesh: {name} {fields}".rstrip(),), {}
