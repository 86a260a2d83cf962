"""Lines that can be written, and those that cannot."""

import contextlib
import io
import os
import queue
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from specmesh import logs as log_writer
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


def test_lines_in_order(pipe: Pipe):
    """Each with its end, and whatever is no Unicode written out."""
    for line in ("one", "zwei ü", "\udcff"):
        pipe.writer.write(line)
    expected = "one\nzwei ü\n\\udcff\n".encode()
    assert pipe.read(len(expected)) == expected
    assert pipe.writer.dropped == 0


def test_a_stream_in_memory():
    """As tests have it."""
    stream = io.StringIO()
    writer = LogWriter(stream, lambda _: None)
    writer.write("a line")
    assert writer.flush(PATIENCE)
    assert stream.getvalue() == "a line\n"
    stream.close()
    writer.write("another")
    assert writer.flush(PATIENCE)
    assert writer.dropped == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.fault("E5.54")
def test_a_full_disk():
    """Every line is dropped and counted."""
    with Path("/dev/full").open("w") as full:
        writer = LogWriter(full, lambda _: None)
        for number in range(5):
            writer.write(f"line {number}")
        assert writer.flush(PATIENCE)
        assert writer.dropped == 5


def test_a_reader_that_is_gone(pipe: Pipe):
    """As on a full disk, and no signal."""
    os.close(pipe.end)
    pipe.writer.write("a line")
    assert pipe.writer.flush(PATIENCE)
    assert pipe.writer.dropped == 1


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "not blocking"])
def test_a_reader_that_stands_still(pipe: Pipe, monkeypatch: pytest.MonkeyPatch, blocking: bool):
    """Whoever logs goes on; beyond what is kept lines are dropped, and when it reads on it is told how many."""
    monkeypatch.setattr(log_writer, "MAX_WAITING", 3)
    taken = pipe.fill()
    os.set_blocking(pipe.stream.fileno(), blocking)
    pipe.writer.write("first")
    while pipe.writer.dropped < 5:
        pipe.writer.write("more")
    assert not pipe.writer.flush(0.0)
    pipe.read(taken)
    assert pipe.told.get(timeout=PATIENCE) == 5
    assert pipe.read(len(b"first\nmore\n")) == b"first\nmore\n"


def test_half_a_line(tmp_path: Path):
    """What a disk took of a line before it was full is ended before the next one."""
    path = tmp_path / "log"
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with path.open("w") as stream:
            writer = LogWriter(stream, told.put)
            resource.setrlimit(resource.RLIMIT_FSIZE, (14, limits[1]))
            for line in ("whole", "cut here", "not at all"):
                writer.write(line)
            assert writer.flush(PATIENCE)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            writer.write("whole again")
            assert told.get(timeout=PATIENCE) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_text() == "whole\ncut here\nwhole again\n"[:14] + "\nwhole again\n"
