"""Time that passes only while somebody sleeps."""

from types import ModuleType

import pytest


class Clock:
    """Stands in for the module `time`; each sleep takes a microsecond at least."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


def virtual_time(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Clock:
    """Have these modules take their time from a clock."""
    clock = Clock()
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
    return clock
