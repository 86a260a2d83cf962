"""Lines of the log: in a vLLM server they go to vLLM's own log."""

import logging
import re
from collections.abc import MutableMapping
from enum import Enum
from typing import Any

import structlog

LOGGER = "vllm.specmesh"
"""A child of vLLM's logger: its lines have the same form, level and place."""

_VARIABLES = {
    "--bind": "SPECMESH_VLLM_BIND",
    "--keys": "SPECMESH_VLLM_KEYS",
    "--insecure-no-auth": "SPECMESH_VLLM_INSECURE=1",
    "--socket": "SPECMESH_VLLM_SOCKET",
}
"""The variables that stand for a daemon's options, which vLLM does not have."""

_OPTION = re.compile(rf"(?:{'|'.join(_VARIABLES)})(?![\w-])")


def configure(level: str) -> None:
    """Send lines from this level on to vLLM's log, unless the program has configured structlog."""
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
    fields = " ".join(f"{key}={_shown(value)!r}" for key, value in event.items())
    return (f"specmesh: {name} {fields}".rstrip(),), {}


def _shown(value: object) -> object:
    """Return a value as a person reads it."""
    plain: object = value.value if isinstance(value, Enum) else value
    return _with_variables(plain) if isinstance(plain, str) else plain


def _with_variables(text: str) -> str:
    """Return a text with variables instead of options, but for commands in backticks."""
    parts = text.split("`")  # every second part is a command
    parts[::2] = [_OPTION.sub(lambda found: _VARIABLES[found[0]], part) for part in parts[::2]]
    return "`".join(parts)
