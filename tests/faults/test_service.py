"""E8, what the tests of starting and stopping do not show: clocks that jump, and a pid that lives again."""

import ast
import os
import signal
import sys
from pathlib import Path

import pytest
from processes import Daemon, Mesh, body, complete, sim_text

from specmesh.paths import lock_of

PROMPT = "Time is an illusion"
SOURCE = Path(__file__).parents[2]
fault = pytest.mark.fault


def jumping() -> list[str]:
    """`specmesh` on a machine whose clock is set an hour forth or back at each look."""
    program = (
        "import itertools, time\n"
        "true, hours = time.time, itertools.cycle((3600, -3600))\n"
        "time.time = lambda: true() + next(hours)\n"
        "from specmesh.cli import main\n"
        "main()"
    )
    return [sys.executable, "-c", program]


@fault(
    "E8.95",
    "the clock jumps an hour forth and back",
    "nobody is taken for dead, nothing waits: only monotonic time is used",
)
def test_a_clock_that_jumps(mesh: Mesh):
    there = ("--engine", "sim", "--model", "step_ms=4", "--bind", mesh.address)
    verifier = mesh.start("verifier", *there, program=jumping()).ready()
    here = ("--engine", "sim", "--model", "draft_ms=0.5,alpha=0.9", "--connect", mesh.address)
    drafter = mesh.attached(mesh.start("drafter", *here, program=jumping()).ready())
    for daemon in (verifier, drafter):
        stream = complete(daemon, body(PROMPT, 100, draft_n=4))
        assert stream.text == sim_text(PROMPT, 100)
        assert sum(stream.accepted) > 0
    assert not verifier.events("drafter_gone")
    assert not drafter.events("verifier_lost")


@fault("E8.95")
def test_nothing_is_decided_by_the_calendar():
    """time.time and datetime are read where a time is shown to people, and nowhere else."""
    shown = {"specmesh/api/app.py", "specmesh/engines/chat_template.py"}
    asked = set()
    for path in sorted(file for folder in ("specmesh", "daemons", "wire") for file in (SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {"time.time", "time.time_ns", "datetime.now"}:
                asked.add(str(path.relative_to(SOURCE)))
    assert asked <= shown


@fault(
    "E8.90",
    "a lock file with the pid of a process that lives, and is no daemon",
    "it starts: the lock counts, not the number",
)
def test_a_pid_that_lives_again(mesh: Mesh):
    socket_path = mesh.folder / "verifier.sock"
    lock_of(socket_path).write_text(f"{os.getpid()}\n")
    verifier: Daemon = mesh.verifier("step_ms=1")
    assert complete(verifier, body(PROMPT, 5)).text == sim_text(PROMPT, 5)
    verifier.signal(signal.SIGKILL)
    verifier.wait()
    assert complete(mesh.verifier("step_ms=1"), body(PROMPT, 5)).text == sim_text(PROMPT, 5)
