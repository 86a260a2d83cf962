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
from typing import IO

from specmesh.core.fields import Json, is_object
from specmesh.errors import ChildFailed

STARTING = 60.0  # seconds for the interpreter and its imports on a busy machine
MAX_ANSWER = 2**26  # bytes of the longest answer that is read
_MOST_OF_A_LINE = 2048  # characters
_PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("PYTHON", "LC_", "LD_", "DYLD_")


class Child:
    """A process that calls `answer(request)` of one of our modules. Any thread may ask; requests run one at a time."""

    def __init__(self, module: str, *, memory: int, seconds: float) -> None:
        """memory: in bytes, which macOS does not enforce; seconds: per request."""
        self._module, self._memory, self.seconds = module, memory, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Json) -> Json:
        """Return the answer. Raises ChildFailed; the process may have ended then, and the next call starts another."""
        line = f"{json.dumps(request)}\n".encode()
        with self._lock:
            try:
                if self._process is None or self._process.poll() is not None:
                    self._end()
                    self._process = self._start()
                    self._exchange(self._process, b"", STARTING)
                answer = self._exchange(self._process, line, self.seconds)
            except (
                BaseException
            ):  # whatever interrupted this: the next request must not get its answer
                self._end()
                raise
        if "failed" in answer:
            raise ChildFailed(str(answer["failed"]))
        return answer

    def close(self) -> None:
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._channel.close()
            self._stderr.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # Tokens and keys in our environment are none of its business.
        names = [
            name for name in os.environ if name in _PASSED or name.startswith(_PASSED_PREFIXES)
        ]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would fill and block it
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                return subprocess.Popen(  # noqa: S603 - our own module
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        __name__,
                        self._module,
                        str(self._memory),
                        str(self.seconds),
                    ],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    env={name: os.environ[name] for name in names},
                    start_new_session=True,  # Ctrl-C is for this process
                )
            except OSError as error:
                self._channel.close()
                self._stderr.close()
                raise ChildFailed(f"no process could be started: {error.strerror}") from error

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes, seconds: float) -> Json:
        line = b""
        self._channel.settimeout(seconds)
        try:
            self._channel.sendall(request)
            with self._channel.makefile("rb") as answers:
                line = answers.readline(MAX_ANSWER)
        except TimeoutError:
            raise ChildFailed(f"it took more than {seconds:g} s") from None
        except OSError:
            pass  # its stderr says why
        if not line:
            raise ChildFailed(_how_it_ended(process, self._stderr))
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not is_object(answer):
            raise ChildFailed("its answer cannot be read")
        return answer


def _how_it_ended(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> str:
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    stderr.seek(0)
    last = stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"it ended with {how}" + (f": {last[:_MOST_OF_A_LINE]}" if last else "")


def _serve(answer: Callable[[Json], Json], memory: int, seconds: float) -> None:
    """In the child: answer requests within the limits until the parent closes the socket."""
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_FSIZE, 2**20)
    _limit(resource.RLIMIT_CORE, 0)
    with socket.socket(fileno=os.dup(0)) as channel, channel.makefile("rb") as requests:
        channel.sendall(b"{}\n")  # ready
        for request in requests:
            # A child nobody waits for any more ends too.
            spent = math.ceil(time.process_time() + seconds) + 1
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(
                    resource.RLIMIT_CPU, (spent, resource.getrlimit(resource.RLIMIT_CPU)[1])
                )
            try:
                answered = answer(json.loads(request))
            except MemoryError:
                answered = {"failed": f"it needs more than {memory >> 20} MiB of memory"}
            channel.sendall(f"{json.dumps(answered)}\n".encode())


def _limit(which: int, value: int) -> None:
    """Lower a limit for good, where the system knows it."""
    hard = resource.getrlimit(which)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (least, least))


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]).answer, int(sys.argv[2]), float(sys.argv[3]))
