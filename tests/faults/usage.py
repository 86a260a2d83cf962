"""What a process holds: its descriptors and its memory, as Linux tells them."""

from collections.abc import Callable
from pathlib import Path

from processes import until

GROWTH = 4 * 2**20
"""Bytes by which memory may differ without anything having grown: allocators keep what was freed."""


class Usage:
    """Descriptors and memory of a process when this was made; on other systems than Linux nothing is known."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._known = self._folder.exists()
        self._descriptors, self._memory = self.descriptors(), self.memory("VmRSS")

    def descriptors(self) -> int:
        return len(list((self._folder / "fd").iterdir())) if self._known else 0

    def memory(self, kind: str) -> int:
        if not self._known:
            return 0
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))

    def unchanged(self, settled: Callable[[], object] = lambda: True) -> None:
        """No more descriptors than before, and hardly more memory; `settled` must hold first."""
        until(settled, "it has settled")
        until(lambda: self.descriptors() <= self._descriptors, "descriptors are closed")
        assert self.memory("VmRSS") - self._memory < GROWTH
