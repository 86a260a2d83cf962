"""A verifier and a drafter in this process, driven by frames, requests, an engine's results and a
clock.

`cores`: both in virtual time, no socket, no thread. `loops`: both on threads with real sockets.
Tests know these two only, not the classes behind them.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Most seconds anything is waited for: only a hang reaches them, on a busy machine too."""


def until(condition: Callable[[], T | None], what: str) -> T:
    """Poll until `condition()` is true and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.003)
    return value
