"""Daemons whose log cannot be written: they serve on. Commands whose output cannot be: they say so."""

from pathlib import Path

import pytest
from processes import Daemon, Mesh, command, edited, generate, sim_text

NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
PROMPT = "All good things"


PIPE = ("import os", "end, into = os.pipe()")
FILL = """
os.set_blocking(into, False)
try:
    while True: os.write(into, bytes(4096))
except BlockingIOError:
    os.set_blocking(into, True)
"""


@pytest.mark.parametrize(
    ("lines", "role"),
    [
        pytest.param(("import os", "into = os.open('/dev/full', os.O_WRONLY)"), "drafter", marks=NEEDS_FULL),
        ((*PIPE, "os.close(end)"), "verifier"),
        ((*PIPE, FILL), "verifier"),
    ],
    ids=["full disk", "closed pipe", "full pipe"],
)
@pytest.mark.fault("E5.54")
@pytest.mark.fault("E8.97")
def test_a_log_that_cannot_be_written(mesh: Mesh, lines: tuple[str, ...], role: str):
    program = edited(*lines, "os.dup2(into, 2)")
    mute = mesh.verifier(program=program if role == "verifier" else None)
    if role == "drafter":
        mute = mesh.drafter(program=program)
    assert generate(mute, PROMPT, "--max-tokens", 20).out == sim_text(PROMPT, 20) + "\n"
    assert mute.stop() == 0
    assert not mute.text()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
@pytest.mark.fault("E8.97")
def test_closed_standard_streams(mesh: Mesh, closed: str):
    """Refused: what is opened next would take the descriptor, and get what is written there."""
    shell = f'exec "$@" {closed}'
    done = mesh.cannot_start("verifier", shell=shell)
    assert (done.code, done.out) == (74, "")
    assert ("/dev/null" in done.err) == (closed != "2>&-")


@NEEDS_FULL
@pytest.mark.parametrize("words", ["generate hi --json", "chat", "stats --watch", "ps", "--version"])
@pytest.mark.fault("E8.97")
def test_stdout_that_takes_nothing(pair: dict[str, Daemon], words: str):
    """A full disk: 74 and one line, where anything was to be printed."""
    path, full = pair["verifier"].socket, 'exec "$@" >/dev/full'
    env = {"SPECMESH_SOCKET": str(path), "XDG_RUNTIME_DIR": str(path.parent)}
    done = command(*words.split(), env=env, shell=full, stdin="hi")
    assert (done.code, done.out) == (74, ""), done.err
    assert [line.split(": ")[:2] for line in done.err.splitlines()] == [["specmesh", "cannot write the output"]]
