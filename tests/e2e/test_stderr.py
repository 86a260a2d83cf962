"""Daemons whose log cannot be written: they serve on. Commands whose output cannot be: they say so."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from processes import PATIENCE, SPECMESH, Daemon, Mesh, cache, command, environment, sim_text, until

from specmesh.client import Client

NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
PROMPT = "All good things"


@contextmanager
def _into(path: str) -> Iterator[int]:
    opened = os.open(path, os.O_WRONLY)
    yield opened
    os.close(opened)


@contextmanager
def _pipe_without_reader() -> Iterator[int]:
    end, into = os.pipe()
    os.close(end)
    yield into
    os.close(into)


@contextmanager
def _full_pipe() -> Iterator[int]:
    end, into = os.pipe()
    os.set_blocking(into, False)
    try:
        while True:
            os.write(into, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(into, True)
    yield into
    os.close(into)
    os.close(end)


@pytest.mark.parametrize(
    ("stderr", "role"),
    [
        pytest.param(lambda: _into("/dev/full"), "drafter", id="full disk", marks=NEEDS_FULL),
        pytest.param(_pipe_without_reader, "verifier", id="closed pipe"),
        pytest.param(_full_pipe, "verifier", id="full pipe"),
    ],
)
@pytest.mark.fault("E5.54")
@pytest.mark.fault("E8.97")
def test_a_log_that_cannot_be_written(mesh: Mesh, stderr: Callable[[], AbstractContextManager[int]], role: str):
    """The daemon starts, serves, counts what it could not log, and stops as ever."""
    path = mesh.folder / "mute.sock"
    words = ["verifier", "--model", "step_ms=1", "--bind", mesh.address]
    if role == "drafter":
        mesh.verifier("step_ms=1")
        words = ["drafter", "--model", "draft_ms=0.1", "--connect", mesh.address]
    with stderr() as log:
        words = [*SPECMESH, *words, "--engine", "sim", "--socket", str(path)]
        mute = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL, env=environment(cache(mesh.folder)))
        try:
            client = Client(path)
            until(lambda: client.get("/health").get("status") == "ok", "it serves")
            done = command("generate", PROMPT, "--max-tokens", 20, "--socket", path)
            assert done.out == sim_text(PROMPT, 20) + "\n"
            if stderr is not _full_pipe:
                until(lambda: client.get("/stats")["log_lines_dropped"], "what it dropped is counted")
            mute.terminate()
            assert mute.wait(PATIENCE) == 0
        finally:
            mute.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.fault("E8.97")
def test_closed_standard_streams(mesh: Mesh):
    """Their descriptors go to nobody else: nothing that is opened later gets what is written there."""
    path = mesh.folder / "mute.sock"
    words = [*SPECMESH, "verifier", "--engine", "sim", "--model", "step_ms=1", "--bind", mesh.address]
    shell = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words, "--socket", str(path)]
    mute = subprocess.Popen(shell, stdin=subprocess.DEVNULL, env=environment(cache(mesh.folder)))
    try:
        until(lambda: Client(path).get("/health").get("status") == "ok", "it serves")
        for number in range(3):
            assert Path(f"/proc/{mute.pid}/fd/{number}").readlink() == Path(os.devnull)
        mute.terminate()
        assert mute.wait(PATIENCE) == 0
    finally:
        mute.kill()


@pytest.fixture(scope="module")
def pair(shared: Mesh) -> Daemon:
    """A verifier with a drafter."""
    verifier = shared.verifier("step_ms=1")
    shared.drafter()
    return verifier


FULL, CLOSED = 'exec "$@" >/dev/full', 'exec "$@" >&-'


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        *((CLOSED, words) for words in ("generate hi", "--help")),
        *(
            pytest.param(FULL, words, marks=NEEDS_FULL)
            for words in ("generate hi --json", "chat --raw", "stats --watch", "ps", "--version")
        ),
    ],
)
@pytest.mark.fault("E8.97")
def test_stdout_that_takes_nothing(pair: Daemon, words: str, shell: str):
    """A full disk, or no stdout: 74 and one line, where anything was to be printed."""
    env = {"SPECMESH_SOCKET": str(pair.socket), "XDG_RUNTIME_DIR": str(pair.socket.parent)}
    done = command(*words.split(), env=env, shell=shell, stdin="hi")
    assert (done.code, done.out) == (74, ""), done.err
    assert [line.split(": ")[:2] for line in done.err.splitlines()] == [["specmesh", "cannot write the output"]]
