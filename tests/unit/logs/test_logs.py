"""What the daemons log, and what libraries do: lines that can be written, and those that cannot."""

import contextlib
import json
import logging
import os
import queue
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.fault("E5.54")
def test_a_full_disk():
    with Path("/dev/full").open("w") as full:
        writer = LogWriter(full, lambda _: None)
        for number in range(5):
            writer.write(f"line {number}")
        assert writer.flush(PATIENCE)
        assert writer.dropped == 5


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "not blocking"])
def test_a_reader_that_stands_still(pipe: Pipe, monkeypatch: pytest.MonkeyPatch, blocking: bool):
    """Whoever logs goes on; beyond what is kept lines are dropped, and when it reads on it is told how many."""
    monkeypatch.setattr(logs, "MAX_QUEUED_LINES", 3)
    taken = pipe.fill()
    os.set_blocking(pipe.stream.fileno(), blocking)
    pipe.writer.write("first")
    while pipe.writer.dropped < 5:
        pipe.writer.write("more")
    assert not pipe.writer.flush(0.0)
    pipe.read(taken)
    assert pipe.told.get(timeout=PATIENCE) == 5
    assert pipe.read(len(b"first\nmore\n")) == b"first\nmore\n"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    logs.flush()
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_the_level_can_change(capsys: pytest.CaptureFixture[str]):
    logs.configure("warning", "json")
    log = structlog.get_logger("a")
    log.info("first")
    logs.set_level("info")
    log.info("second")
    assert [line["event"] for line in lines(capsys)] == ["second"]


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
