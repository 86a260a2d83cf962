"""`specmesh` that tells what it holds: python -m soak.traced COMMAND...

From the first SIGUSR1 on it remembers where memory is allocated; at the next one it writes what is left of that to the
socket's folder as `ROLE.grown`. It is slower than the real one and takes more memory.
"""

import gc
import signal
import sys
import tracemalloc
from pathlib import Path
from types import FrameType

from specmesh.cli import main

FRAMES = 6
MOST = 25


class Tracer:
    """The handler of the signal."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._blocks = 0

    def __call__(self, _: int, __: FrameType | None) -> None:
        """Remember, or tell."""
        gc.collect()
        if not tracemalloc.is_tracing():
            self._blocks = sys.getallocatedblocks()
            tracemalloc.start(FRAMES)
            return
        lines = [f"{sys.getallocatedblocks() - self._blocks:+d} blocks"]
        for one in tracemalloc.take_snapshot().statistics("traceback")[:MOST]:
            lines.append(f"{one.size} bytes, {one.count} blocks")
            lines += [f"  {line.strip()}" for line in one.traceback.format()]
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    socket = Path(sys.argv[sys.argv.index("--socket") + 1])
    signal.signal(signal.SIGUSR1, Tracer(socket.with_suffix(".grown")))
    main()
