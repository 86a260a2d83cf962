"""Commands that begin with everything imported: forked from a process that has done nothing else.

A daemon imports for most of a second before it does anything, and the tests start hundreds of them.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

NUMBER = struct.Struct("i")


class Forked:
    """`specmesh WORDS` as a process, which is waited for and sent signals as a `subprocess.Popen` is.

    role: whose process forks it. streams: descriptors of its standard input, output and error.
    """

    def __init__(
        self, role: str, words: list[str], env: dict[str, str], streams: Sequence[int], cwd: str = "."
    ) -> None:
        self.returncode: int | None = None
        self._status, theirs = os.pipe()
        asked = json.dumps([words, env, str(Path(cwd).resolve())]).encode()
        try:
            socket.send_fds(_server(role)[0], [asked], [*streams, theirs])
        finally:
            os.close(theirs)
        self.pid = self._number()

    def _number(self) -> int:
        raw = os.read(self._status, NUMBER.size)
        assert raw, "the process that forks has died"
        return int(NUMBER.unpack(raw)[0])

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def _ended(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server(role: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """The process that forks all daemons of a role, or a command's; ends with this one. A role's own, or both daemons
    of a pair would have the same seed of Python's hashes, which real ones do not share."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen([sys.executable, "-P", str(Path(__file__)), role], stdin=theirs.fileno())
    theirs.close()
    return ours, server


def serve(control: socket.socket) -> None:
    """Fork as asked, until nobody can ask any more; returns in each daemon."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for a daemon is waited for by nobody
    while True:
        asked, passed, _, _ = socket.recv_fds(control, 2**20, 4)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _begin(*json.loads(asked), *passed)
        for descriptor in passed:
            os.close(descriptor)


def _begin(words: list[str], env: dict[str, str], cwd: str, *passed: int) -> None:
    """Fork the command, and tell its process id and how it ends; returns in the command."""
    *streams, status = passed
    pid = os.fork()
    for number, stream in enumerate(streams):
        if not pid:
            os.dup2(stream, number)
        os.close(stream)
    if pid:
        _tell(pid, status)
    os.close(status)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["specmesh", *words]


def _tell(pid: int, status: int) -> NoReturn:
    os.write(status, NUMBER.pack(pid))
    os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


if __name__ == "__main__":
    import specmesh.daemons.serve
    import specmesh.engines.llama  # noqa: F401  (what daemons import when they are run)
    from specmesh.cli import main

    role = sys.argv[1]
    serve(socket.socket(fileno=0))
    try:
        main()
    except SystemExit as ended:
        if role == "command":  # to take the interpreter down takes ten times as long as what it did
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(ended.code or 0))
        raise
