"""What the daemons log, and what libraries do: lines that can be written, and those that cannot."""

import contextlib
import json
import logging
import os
import queue
import warnings
from collections.abc import Iterator

import pytest

from specmesh import logs
from specmesh.logs import LogWriter

PATIENCE = 20.0


class Pipe:
    """A writer into a pipe that the test reads, or does not."""

    def __init__(self) -> None:
        self.end, into = os.pipe()
        os.set_blocking(into, True)
        self.stream = os.fdopen(into, "w")
        self.told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.writer = LogWriter(self.stream, self.told.put)

    def fill(self) -> int:
        """Bytes that the pipe has taken when it takes no more."""
        os.set_blocking(self.stream.fileno(), False)
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                taken += os.write(self.stream.fileno(), b"x" * 4096)
        os.set_blocking(self.stream.fileno(), True)
        return taken

    def read(self, size: int) -> bytes:
        raw = b""
        while len(raw) < size:
            raw += os.read(self.end, size - len(raw))
        return raw


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    with contextlib.suppress(OSError):
        os.close(made.end)
    made.writer.flush(PATIENCE)
    made.stream.close()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    logs.flush()
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_libraries_log_through_it(capsys: pytest.CaptureFixture[str]):
    logs.configure("info", "json")
    library = logging.getLogger("some.library")
    library.warning("low on %s", "memory")
    library.info("not asked for")
    library.error("it failed", exc_info=ValueError("broken\nin two"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    told = lines(capsys)
    assert [line["event"] for line in told] == ["library"] * 3
    assert (told[0]["line"], told[0]["level"]) == ("low on memory", "warning")
    assert told[1]["error"] == "ValueError: broken\nin two"
    assert "DeprecationWarning: old" in str(told[2]["line"])
