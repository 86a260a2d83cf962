"""Commands with everything imported: forks of a process that has done nothing more.

A daemon imports for most of a second before it does anything, and the tests start hundreds of them.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from specmesh.cli import main

IMPORTED = (
    "jinja2.sandbox",
    "llama_cpp",
    "llguidance",
    "platformdirs",
    "rich.live",
    "specmesh.api.server",
    "specmesh.cli",
    "specmesh.client",
    "specmesh.daemons.drafter.daemon",
    "specmesh.daemons.runtime.backend",
    "specmesh.daemons.serve",
    "specmesh.daemons.verifier.daemon",
    "specmesh.engines.grammar",
    "specmesh.engines.llama.engine",
    "specmesh.engines.mlx.drafter",
    "specmesh.engines.mlx.verifier",
    "specmesh.engines.sim",
    "specmesh.engines.steps",
    "uvicorn.lifespan.off",
)
"""What commands and daemons import when they need it; one that is not installed is left out."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*IMPORTED])


class Forked:
    """`specmesh WORDS` as a process, with the methods of `subprocess.Popen`.

    streams: descriptors of its standard input, output and error.
    """

    def __init__(
        self, words: list[str], env: dict[str, str], streams: Sequence[int], cwd: str = "."
    ) -> None:
        passed = [Connection(os.dup(one)) for one in streams]
        self._process = FORKS.Process(
            target=_run, args=(words, env, str(Path(cwd).resolve()), passed), daemon=True
        )
        self._process.start()
        self.pid: int = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(words: list[str], env: dict[str, str], cwd: str, streams: list[Connection]) -> None:
    """Become the command.

    The interpreter ends as it does after a command, which multiprocessing spares.
    """
    gc.freeze()  # a collection at the end would copy the memory of all that was imported
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["specmesh", *words]
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    ctypes.pythonapi.Py_Exit(int(code or 0))  # type: ignore[call-overload]
