"""A child process for untrusted input: it may crash, hang or run out of memory without harm to this process.

It answers one request after another, a line of JSON each, and keeps this user's rights: this limits accidents and
exhaustion, not access.
"""

import contextlib
import importlib
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from specmesh.errors import ChildFailed

Json = dict[str, object]

STARTING = 60.0
"""Seconds for the interpreter and its imports on a busy machine."""

MAX_ANSWER = 2**26
"""Bytes of the longest answer that is read."""

_MAX_ERRORS = 2**20
_LAST_WORDS = 2048
_PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("PYTHON", "LC_", "LD_", "DYLD_")


class Child:
    """A process that calls `answer(request)` of one of our modules. Any thread may ask; requests run one at a time."""

    def __init__(self, module: str, *, memory: int, seconds: float) -> None:
        """memory: in bytes, which macOS does not enforce; seconds: per request."""
        self._module, self._memory, self._seconds = module, memory, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._opened = contextlib.ExitStack()

    def ask(self, request: Json) -> Json:
        """Return the answer. Raises ChildFailed; the process may have ended then, and the next call starts another."""
        line = f"{json.dumps(request)}\n".encode()
        with self._lock:
            try:
                process = self._process
                if process is None or process.poll() is not None:
                    self._end()
                    process = self._start()
                answer = self._exchange(process, line, self._seconds)
            except BaseException:
                self._end()
                raise
        if "failed" in answer:
            raise ChildFailed(str(answer["failed"]))
        return answer

    def close(self) -> None:
        """End the process; a request in progress fails."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._process = None
        self._opened.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # Tokens and keys in our environment are none of its business.
        names = [name for name in os.environ if name in _PASSED or name.startswith(_PASSED_PREFIXES)]
        passed = {name: os.environ[name] for name in names}
        self._errors = self._opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by `_end`
        ours, theirs = socket.socketpair()
        self._channel = self._opened.enter_context(ours)
        self._answers = self._opened.enter_context(ours.makefile("rb"))
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-P", "-m", __name__, self._module, str(self._memory), str(self._seconds)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors.fileno(),
                    env=passed,
                    start_new_session=True,  # Ctrl-C is for this process
                )
            except OSError as error:
                raise ChildFailed(f"no process could be started: {error.strerror}") from error
        self._process = self._opened.enter_context(process)  # waits for its end
        self._opened.callback(process.kill)
        self._exchange(process, b"", STARTING)
        return process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes, seconds: float) -> Json:
        line = b""
        self._channel.settimeout(seconds)
        try:
            self._channel.sendall(request)
            line = self._answers.readline(MAX_ANSWER)
        except TimeoutError:
            raise ChildFailed(f"it took more than {seconds:g} s") from None
        except OSError:
            pass  # its last words say why
        if not line:
            raise ChildFailed(self._last_words(process))
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ChildFailed("its answer cannot be read")
        return answer

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.kill()
        code = process.wait()
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _LAST_WORDS, 0))
        words = [line.strip() for line in self._errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"it ended with {how}" + (f": {words[-1]}" if words else "")


def _serve(answer: Callable[[Json], Json], memory: int, seconds: float) -> None:
    """In the child: answer requests within the limits until the parent closes the socket."""
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_FSIZE, _MAX_ERRORS)
    _limit(resource.RLIMIT_CORE, 0)
    with socket.socket(fileno=os.dup(0)) as channel, channel.makefile("rb") as requests:
        channel.sendall(b"{}\n")  # ready
        for request in requests:
            # A child nobody waits for any more ends too.
            spent = math.ceil(time.process_time() + seconds) + 1
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_CPU, (spent, resource.getrlimit(resource.RLIMIT_CPU)[1]))
            try:
                told = answer(json.loads(request))
            except MemoryError:
                told = {"failed": f"it needs more than {memory >> 20} MiB of memory"}
            channel.sendall(f"{json.dumps(told)}\n".encode())


def _limit(which: int, value: int) -> None:
    """Lower a limit for good, where the system knows it."""
    hard = resource.getrlimit(which)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (least, least))


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]).answer, int(sys.argv[2]), float(sys.argv[3]))
