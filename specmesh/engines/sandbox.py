"""A process of ours beside this one, for work on what nobody vouches for: it may crash, hang or ask for all memory, and
ends alone.

It answers one request after the other, with JSON both ways: what comes back is never more than data. It starts when it
is first needed, and anew after it ended. It has this user's rights: this is a wall against accidents and exhaustion.
"""

import contextlib
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
"""Seconds that an interpreter and what it imports may take on a busy machine."""

MAX_ANSWER = 2**26
"""Bytes of the longest answer that is taken."""

_MAX_ERRORS = 2**20
_LAST_WORDS = 2048
_SIZE = struct.Struct("<I")
_PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("PYTHON", "LC_", "LD_", "DYLD_")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may take: bytes of memory (which macOS does not enforce), seconds for each request.

    environment: variables it has besides.
    """

    memory: int
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A module of ours, run as a process, which calls `serve`. Any thread may ask; one at a time is answered."""

    def __init__(self, module: str, limits: Limits) -> None:
        self._module, self._limits = module, limits
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def ask(self, request: Json) -> Json:
        """Its answer. Raises ChildFailed where there is none, and ended the process: the next call starts another."""
        raw = json.dumps(request).encode()
        with self._lock:
            if self._running is None or not self._running.lives():
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
        """End the process, also under a request, which fails; a later one starts another."""
        running = self._running
        if running is not None:
            running.kill()
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()


class _Running:
    """One process, from its start to its end."""

    def __init__(self, module: str, limits: Limits) -> None:
        passed = {name: value for name, value in os.environ.items() if _is_passed(name)}
        self._errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", module, str(limits.memory), str(limits.seconds)],
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

    def lives(self) -> bool:
        """Whether the process still runs; idle ones may have been ended by whoever looks after memory."""
        return self._process.poll() is None

    def exchange(self, raw: bytes | None, seconds: float) -> Json:
        """Send a request, or none, and receive an answer; raises ChildFailed, and the process is no more use then."""
        deadline = time.monotonic() + seconds
        try:
            if raw is not None:
                self._channel.settimeout(seconds)
                self._channel.sendall(_SIZE.pack(len(raw)) + raw)
            answer = self._receive(_checked(*_SIZE.unpack(self._receive(_SIZE.size, deadline))), deadline)
            return _read(answer)
        except TimeoutError:
            raise ChildFailed(f"it took more than {seconds:g} s") from None
        except OSError:
            raise ChildFailed(self._ended()) from None

    def _receive(self, size: int, deadline: float) -> bytes:
        got = bytearray()
        while len(got) < size:
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = self._channel.recv(min(size - len(got), 2**20))
            if not part:
                raise ConnectionResetError
            got += part
        return bytes(got)

    def _ended(self) -> str:
        """How the process ended, once it has, and what it said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self.kill()
        code = self._process.wait()
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _LAST_WORDS, 0))
        words = [line.strip() for line in self._errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"it ended with {how}" + (f": {words[-1]}" if words else "")

    def kill(self) -> None:
        """End the process; any thread may."""
        self._process.kill()

    def end(self) -> None:
        """End the process and give back what it took."""
        self.kill()
        self._channel.close()
        self._process.wait()
        self._errors.close()


def serve(answer: Callable[[Json], Json]) -> None:
    """In the child: answer requests until nobody asks any more. `answer` is called within the limits."""
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
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
            _allow(seconds)
            try:
                told = answer(request)
            except MemoryError:
                told = {"failed": f"it needs more than {memory >> 20} MiB of memory"}


def _checked(size: int) -> int:
    if size > MAX_ANSWER:
        raise ChildFailed(f"its answer has {size} bytes")
    return size


def _read(raw: bytes) -> Json:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ChildFailed("its answer cannot be read")
    return answer


def _is_passed(name: str) -> bool:
    """Whether a child gets this variable of ours; tokens and the like are none of its business."""
    return name in _PASSED or name.startswith(_PASSED_PREFIXES)


def _limit(which: int, value: int) -> None:
    """Lower a limit for good, where the system knows it."""
    hard = resource.getrlimit(which)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (least, least))


def _allow(seconds: float) -> None:
    """Processor time for one request, so that a child nobody waits for any more ends too."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
