"""A child process for untrusted input.

It may crash, hang or run out of memory without harm to this process. It answers one request after
another, a line of JSON each, and keeps this user's rights: this limits accidents and exhaustion,
not access. With `forks` each request has a copy of the process to itself, so that one that takes
too long costs the next no new interpreter.
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
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from specmesh.core.fields import Json, is_object
from specmesh.errors import ChildFailed, ChildLate

STARTING = 60.0  # seconds for the interpreter and its imports on a busy machine
FORKING = 5.0  # seconds, at most, that a copy of the process takes to begin and to end
MAX_ANSWER = 2**26  # bytes of the longest answer that is read
_MOST_OF_A_LINE = 2048  # characters
_PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("PYTHON", "LC_", "LD_", "DYLD_")


class Child:
    """A process that calls `answer(request)` of one of our modules.

    Any thread may ask. Requests run one at a time.
    """

    def __init__(
        self,
        module: str,
        *,
        memory: int,
        seconds: float,
        cpu: float = math.inf,
        forks: bool = False,
    ) -> None:
        """Note the limits; the process starts with the first request.

        memory: in bytes; macOS does not enforce it.
        seconds: per request.
        cpu: seconds of processor time per request, if the process forks.
        forks: each request runs in a copy of the process.
        """
        self.seconds = seconds
        self._module = module
        self._memory = memory
        self._cpu = cpu if forks else 0.0
        self._overhead = FORKING if forks else 0.0
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = False  # the process has told that it is ready

    def prepare(self) -> None:
        """Start the process now, so that its imports go on beside other work.

        A process that cannot be started is tried again by the first request.
        """
        with self._lock, contextlib.suppress(ChildFailed):
            self._require_open()
            if self._process is None:
                self._process = self._start()

    def ask(self, request: Json) -> Json:
        """Return the answer.

        Raises ChildLate for a request that took too long, ChildFailed for one that failed, or
        after `close`. The process may have ended then. The next call starts another.
        """
        line = f"{json.dumps(request)}\n".encode()
        with self._lock:
            self._require_open()
            try:
                if self._process is None or self._process.poll() is not None:
                    self._end()
                    self._process = self._start()
                    self._require_open()  # `close` may have looked before there was a process
                if not self._answers:
                    self._exchange(self._process, b"", STARTING)
                    self._answers = True
                answer = self._exchange(self._process, line, self.seconds + self._overhead)
            except BaseException:  # the next request must not get the answer of this one
                self._end()
                raise
        if "failed" in answer:
            raise ChildFailed(str(answer["failed"]))
        code = answer.get("ended")
        if isinstance(code, int):
            raise self._error_of(code)
        return answer

    def _error_of(self, code: int) -> ChildFailed:
        """Return the error of a copy that ended without an answer.

        code: its exit code, or minus its signal.
        """
        if -code in (signal.SIGALRM, signal.SIGPROF):
            return ChildLate(f"it took more than {min(self.seconds, self._cpu):g} s")
        return ChildFailed(_in_words(code, self._stderr))

    def close(self) -> None:
        """End the process, and start no other. Requests fail: that under way, and later ones."""
        self._closed = True
        process = self._process
        if process is not None:
            _kill(process)
        with self._lock:
            self._end()

    def _require_open(self) -> None:
        if self._closed:
            raise ChildFailed("its owner has closed it")

    def _end(self) -> None:
        process = self._process
        self._process = None
        self._answers = False
        if process is not None:
            _kill(process)
            process.wait()
            self._channel.close()
            self._stderr.close()

    def _start(self) -> subprocess.Popen[bytes]:
        limits = [str(self._memory), str(self.seconds), str(self._cpu)]
        # An unread pipe would fill and block the child.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                return subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-P", "-m", __name__, self._module, *limits],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    env=_environment(),
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
            raise ChildLate(f"it took more than {self.seconds:g} s") from None
        except OSError:
            pass  # its stderr has the reason
        if not line:
            raise ChildFailed(_end_of(process, self._stderr))
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not is_object(answer):
            raise ChildFailed("its answer cannot be read")
        return answer


def _environment() -> dict[str, str]:
    """Return the environment of a child: without our tokens and keys."""
    passed = dict[str, str]()
    for name, value in os.environ.items():
        if name in _PASSED or name.startswith(_PASSED_PREFIXES):
            passed[name] = value
    return passed


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its copies, which are in its own process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the second for one that ended
        os.killpg(process.pid, signal.SIGKILL)


def _end_of(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> str:
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return _in_words(code, stderr)


def _in_words(code: int, stderr: IO[bytes]) -> str:
    """Return the end of a process in words, with the last line that it wrote."""
    is_signal = -code in set(signal.Signals)
    end = signal.Signals(-code).name if is_signal else f"exit code {code}"
    stderr.seek(0)
    last = stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    reason = f": {last[:_MOST_OF_A_LINE]}" if last else ""
    return f"it ended with {end}{reason}"


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits of a child.

    memory: bytes.
    seconds: per request.
    cpu: seconds of processor time per request, in a copy of the process. 0: requests run in the
        process itself, without such a limit.
    """

    memory: int
    seconds: float
    cpu: float


def _serve(answer: Callable[[Json], Json], limits: _Limits) -> None:
    """Answer requests within the limits until the parent closes the socket; runs in the child."""
    _limit(resource.RLIMIT_DATA, limits.memory)
    _limit(resource.RLIMIT_FSIZE, 2**20)
    _limit(resource.RLIMIT_CORE, 0)
    with socket.socket(fileno=os.dup(0)) as channel, channel.makefile("rb") as requests:
        channel.sendall(b"{}\n")  # ready
        for request in requests:
            if limits.cpu:
                channel.sendall(_forked(answer, request, limits, channel))
            else:
                # Ends a child whose parent no longer waits for it.
                _limit_cpu(time.process_time() + limits.seconds)
                channel.sendall(_answered(answer, request, limits.memory))


def _answered(answer: Callable[[Json], Json], request: bytes, memory: int) -> bytes:
    try:
        answered = answer(json.loads(request))
    except MemoryError:
        answered = {"failed": f"it needs more than {memory >> 20} MiB of memory"}
    return f"{json.dumps(answered)}\n".encode()


def _forked(
    answer: Callable[[Json], Json], request: bytes, limits: "_Limits", channel: socket.socket
) -> bytes:
    """Return the answer of a copy of this process, or the code with which it ended."""
    receives, sends = os.pipe()
    process = os.fork()
    if process == 0:
        for other in (0, channel.fileno(), receives):  # or it would look as if the process lived
            os.close(other)
        _limit_cpu(limits.seconds)
        signal.setitimer(signal.ITIMER_REAL, limits.seconds)
        if limits.cpu < math.inf:
            signal.setitimer(signal.ITIMER_PROF, limits.cpu)
        try:
            with os.fdopen(sends, "wb") as answers:
                answers.write(_answered(answer, request, limits.memory))
        except BaseException:  # noqa: BLE001 - the parent reports it
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(sends)
    with os.fdopen(receives, "rb") as answers:
        line = answers.read()
    _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        line = f"{json.dumps({'ended': code})}\n".encode()
    return line


def _limit_cpu(seconds: float) -> None:
    """End this process once it has used so much processor time, and a little more."""
    spent = math.ceil(seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (spent, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit(which: int, value: int) -> None:
    """Lower a limit for good, if the system knows it."""
    hard = resource.getrlimit(which)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (least, least))


if __name__ == "__main__":
    _serve(
        importlib.import_module(sys.argv[1]).answer,
        _Limits(int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])),
    )
