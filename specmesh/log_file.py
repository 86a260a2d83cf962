"""A log in a file that does not grow without end, where nobody else sees to it: launchd does not."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from specmesh.errors import ConfigError
from specmesh.paths import open_own

LIMIT = 16 * 2**20
"""Bytes at which the file is begun anew; as many are kept of what came before."""
_STDOUT, _STDERR = 1, 2


class LogFile:
    """Standard output and error of this process in a file, to which libraries and a dying interpreter write as well.

    Raises ConfigError where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._terminal = os.dup(_STDERR) if os.isatty(_STDERR) else None
        try:
            self._begin(path)
        except OSError as error:
            raise ConfigError(f"--log-file {path} cannot be written ({error.strerror}): name another") from None

    def keep_small(self) -> None:
        """Where the file is full, begin anew; what it held is FILE.1 then.

        The file is renamed and the descriptors led elsewhere: whatever writes meanwhile reaches one file or the other,
        so that no line is lost. Where that cannot be done, because no descriptor is left, say, the log goes on as it
        is, up to twice as much, and is emptied then: it must neither stop the daemon nor fill the disk.
        """
        with self._lock, suppress(OSError):
            size = os.fstat(_STDERR).st_size
            if size < LIMIT:
                return
            new = self._path.with_name(f"{self._path.name}.new")
            try:
                self._begin(new)
            except OSError:
                if size >= 2 * LIMIT:
                    os.ftruncate(_STDERR, 0)
                new.unlink(missing_ok=True)

    def close(self) -> None:
        """Give stderr back to the terminal, if it was one: whoever sits there shall see how the command ends."""
        if self._terminal is not None:
            os.dup2(self._terminal, _STDERR)

    def _begin(self, path: Path) -> None:
        file = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if path != self._path:
                self._path.replace(f"{self._path}.1")
                path.replace(self._path)
            os.dup2(file, _STDOUT)
            os.dup2(file, _STDERR)
        finally:
            os.close(file)
