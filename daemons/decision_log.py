"""The decisions of a verifier as JSON lines in a file: `specmesh verifier --log-decisions FILE`.

The loop only appends to a queue. A thread of its own formats and writes, because a disk may take its time.
"""

import contextlib
import fcntl
import json
import os
import stat
import threading
from collections import deque
from pathlib import Path

import structlog

from specmesh import __version__
from specmesh.core.decision import Decision, DrafterChange, PolicyRecord, header
from specmesh.errors import ConfigError
from specmesh.paths import open_own

log = structlog.get_logger("specmesh.decisions")

FLUSH_INTERVAL = 0.5
"""Seconds between two writes; what waits is lost only if the process is killed."""

MAX_WAITING = 65_536
"""Most records kept for a disk that does not take them; the log ends there rather than eat memory."""

CLOSE_PATIENCE = 2.0
"""Seconds that closing waits for the disk."""

_Record = Decision | PolicyRecord | DrafterChange

_HEADER_START = b'{"kind":"header"'


class DecisionLog:
    """Appends to `path`, which is created, or is such a log already. Text and token ids are never in it.

    Raises ConfigError where the file cannot be written, or is something else. Later a disk that fails ends the log with
    one warning, and nothing more.
    """

    def __init__(self, path: Path, flush_interval: float = FLUSH_INTERVAL) -> None:
        self._path = path
        self._file = _open(path)
        self._size = os.fstat(self._file).st_size
        self._waiting: deque[_Record | dict[str, object]] = deque()
        self._interval = flush_interval
        self._closing = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)

    def begin(self, model: str) -> None:
        """Write the header of this run, and start writing what is added."""
        self._waiting.append(header(__version__, model))
        self._thread.start()

    def add(self, record: _Record) -> None:
        """Take a record; costs the caller an append. After a failure it is dropped."""
        if self._failed:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._fail(f"{MAX_WAITING} records wait for the disk")
            return
        self._waiting.append(record)

    def close(self) -> None:
        """Write what is left and close the file; waits for the disk, but not for long."""
        self._closing.set()
        if not self._thread.is_alive():
            self._release()
            return
        self._thread.join(CLOSE_PATIENCE)
        if self._thread.is_alive():
            self._fail(f"the disk took longer than {CLOSE_PATIENCE:g} s")

    def _run(self) -> None:
        """The thread: the file belongs to it from now on, so that nobody closes it under a write."""
        last = False
        while not last:
            last = self._closing.wait(self._interval)
            self._flush()
        self._release()

    def _release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        """Write what waits, as whole lines."""
        if self._failed:
            return
        lines = []
        with contextlib.suppress(IndexError):  # empty
            while True:
                lines.append(_line(self._waiting.popleft()))
        if not lines:
            return
        left = memoryview(("\n".join(lines) + "\n").encode())
        size = self._size + len(left)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # no half line stays behind
            self._fail(str(error))
            return
        self._size = size

    def _fail(self, why: str) -> None:
        """Log no more, and say so once."""
        if self._failed:
            return
        self._failed = True
        self._waiting.clear()
        log.warning("decision_log_ended", path=str(self._path), error=why, meaning="generation goes on without it")


def _line(record: _Record | dict[str, object]) -> str:
    return json.dumps(record if isinstance(record, dict) else record.as_json(), separators=(",", ":"))


def _open(path: Path) -> int:
    """A descriptor for appending whole lines to a log that nobody else writes."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # O_NONBLOCK: a pipe must not hang us
    try:
        file = open_own(path, flags, 0o644)
    except OSError as error:
        raise _unusable(path, f"cannot be written ({error.strerror})") from None
    try:
        _claim(file, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _claim(file: int, path: Path) -> None:
    """Refuse what is no log of ours or has a writer; cut off what a crash left of a last line."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise _unusable(path, "is not a regular file")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _unusable(path, "is being written by another verifier") from None
    except OSError:
        pass  # a file system without locks
    with open(file, "rb", closefd=False) as content:
        start = content.read(len(_HEADER_START))
        if start and not start.startswith(_HEADER_START):
            raise _unusable(path, "holds something else than decisions")
        os.ftruncate(file, _end_of_lines(content.seek(0, os.SEEK_END), file))


def _end_of_lines(size: int, file: int, chunk: int = 65_536) -> int:
    """Where the last whole line of a file of `size` bytes ends."""
    end = size
    while end > 0:
        start = max(end - chunk, 0)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"--log-decisions: {path} {why}: name a file that the verifier can write and that is its own")
