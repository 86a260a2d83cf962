"""A child process for untrusted input: it may crash, hang or run out of memory without harm to this process.

It answers one request after another, JSON both ways. It starts when first needed, and again after it ended. It keeps
this user's rights: this limits accidents and exhaustion, not access. `python -m specmesh.engines.sandbox MODULE` is it.
"""

import contextlib
import importlib
import json
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from specmesh.errors import ChildFailed

Json = dict[str, object]

STARTING = 60.0
"""Seconds for the interpreter and its imports on a busy machine."""

MAX_ANSWER = 2**26
"""Bytes of the longest answer."""

_MAX_ERRORS = 2**20
_LAST_WORDS = 2048
_SIZE = struct.Struct("<I")
_PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("PYTHON", "LC_", "LD_", "DYLD_")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of memory (which macOS does not enforce), seconds per request, and additional environment variables."""

    memory: int
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A process that calls `answer(request)` of one of our modules. Any thread may ask; requests run one at a time."""

    def __init__(self, module: str, limits: Limits) -> None:
        self._module, self._limits = module, limits
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def ask(self, request: Json) -> Json:
        """Return the answer. Raises ChildFailed; the process may have ended then, and the next call starts another."""
        raw = json.dumps(request).encode()
        with self._lock:
            if self._running is None or self._running.process.poll() is not None:
                self._forget()
                self._running = _Running(self._module, self._limits)
            try:
                answer = self._running.exchange(raw, self._limits.seconds)
            except BaseException:
                self._forget()
                raise
        failed = answer.get("failed")
        if failed is not None:
            raise ChildFailed(str(failed))
        return answer

    def close(self) -> None:
        """End the process; a request in progress fails."""
        if (running := self._running) is not None:
            running.process.kill()
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()


class _Running:
    """One process, from its start to its end."""

    def __init__(self, module: str, limits: Limits) -> None:
        # Tokens and keys in our environment are none of its business.
        passed = {
            name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)
        }
        self._errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._channel, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", __name__, module, str(limits.memory), str(limits.seconds)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors.fileno(),
                env={**passed, **limits.environment},
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            self._errors.close()
            self._channel.close()
            raise ChildFailed(f"no process could be started: {error.strerror}") from error
        finally:
            theirs.close()
        try:
            self.exchange(None, STARTING)
        except BaseException:
            self.end()
            raise

    def exchange(self, raw: bytes | None, seconds: float) -> Json:
        """Send a request, or none, and receive an answer; after a ChildFailed the process must be ended."""
        deadline = time.monotonic() + seconds
        try:
            if raw is not None:
                self._channel.settimeout(seconds)
                self._channel.sendall(_SIZE.pack(len(raw)) + raw)
            (size,) = _SIZE.unpack(self._receive(_SIZE.size, deadline))
            if size > MAX_ANSWER:
                raise ChildFailed(f"its answer has {size} bytes")
            answer = json.loads(self._receive(size, deadline))
        except TimeoutError:
            raise ChildFailed(f"it took more than {seconds:g} s") from None
        except OSError:
            raise ChildFailed(self._last_words()) from None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ChildFailed("its answer cannot be read")
        return answer

    def _receive(self, size: int, deadline: float) -> bytes:
        got = bytearray()
        while len(got) < size:
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = self._channel.recv(min(size - len(got), 2**20))
            if not part:
                raise ConnectionResetError
            got += part
        return bytes(got)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.process.kill()
        code = self.process.wait()
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _LAST_WORDS, 0))
        words = [line.strip() for line in self._errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"it ended with {how}" + (f": {words[-1]}" if words else "")

    def end(self) -> None:
        self.process.kill()
        self._channel.close()
        self.process.wait()
        self._errors.close()


def _serve(answer: Callable[[Json], Json], memory: int, seconds: float) -> None:
    """In the child: answer requests within the limits until the parent closes the socket."""
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_FSIZE, _MAX_ERRORS)
    _limit(resource.RLIMIT_CORE, 0)
    with socket.socket(fileno=os.dup(0)) as channel, channel.makefile("rwb") as stream:
        told: Json = {}
        while True:
            raw = json.dumps(told).encode()
            stream.write(_SIZE.pack(len(raw)) + raw)
            stream.flush()
            head = stream.read(_SIZE.size)
            if len(head) < _SIZE.size:
                return
            request = json.loads(stream.read(*_SIZE.unpack(head)))
            # A child nobody waits for any more ends too.
            spent = math.ceil(time.process_time() + seconds) + 1
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_CPU, (spent, resource.getrlimit(resource.RLIMIT_CPU)[1]))
            try:
                told = answer(request)
            except MemoryError:
                told = {"failed": f"it needs more than {memory >> 20} MiB of memory"}


def _limit(which: int, value: int) -> None:
    """Lower a limit for good, where the system knows it."""
    hard = resource.getrlimit(which)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (least, least))


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]).answer, int(sys.argv[2]), float(sys.argv[3]))
