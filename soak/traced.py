"""`specmesh` that tells what it holds: python -m soak.traced COMMAND...

At SIGUSR1 it remembers what is allocated; at the next one it writes what has grown since, by where it was allocated, to
the socket's folder as `ROLE.grown`. It is slower than the real one and takes more memory.
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
        self._before: tracemalloc.Snapshot | None = None
        self._blocks = 0

    def __call__(self, _: int, __: FrameType | None) -> None:
        """Remember, or tell."""
        gc.collect()
        now, blocks = tracemalloc.take_snapshot(), sys.getallocatedblocks()
        if self._before is None:
            self._before, self._blocks = now, blocks
            return
        grown = now.compare_to(self._before, "traceback")
        lines = [f"{blocks - self._blocks:+d} blocks"]
        for one in grown[:MOST]:
            lines.append(f"{one.size_diff:+d} bytes, {one.count_diff:+d} blocks")
            lines += [f"  {line.strip()}" for line in one.traceback.format()]
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    socket = Path(sys.argv[sys.argv.index("--socket") + 1])
    tracemalloc.start(FRAMES)
    signal.signal(signal.SIGUSR1, Tracer(socket.with_suffix(".grown")))
    main()
