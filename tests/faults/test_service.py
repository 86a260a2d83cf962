"""E8, what the tests of starting and stopping do not show: clocks that jump, and a pid that lives again."""

import os
import signal

import pytest
from processes import Daemon, Mesh, body, complete, drafted, edited, sim_text

from specmesh.paths import lock_of

PROMPT = "Time is an illusion"
fault = pytest.mark.fault


JUMPS = """
import itertools, time
true, hours = time.time, itertools.cycle((3600, -3600))
time.time = lambda: true() + next(hours)
"""


@fault("E8.95")
def test_a_clock_that_jumps(mesh: Mesh):
    """The clock of both is set an hour forth or back at each look."""
    verifier = mesh.verifier(program=edited(JUMPS))
    drafter = mesh.drafter(program=edited(JUMPS))
    for daemon in (verifier, drafter):
        assert drafted(daemon, body(PROMPT, 100, draft_n=4)).text == sim_text(PROMPT, 100)
    assert not verifier.events("drafter_gone")
    assert not drafter.events("verifier_lost")


@fault("E8.90")
def test_a_pid_that_lives_again(mesh: Mesh):
    socket_path = mesh.folder / "verifier.sock"
    lock_of(socket_path).write_text(f"{os.getpid()}\n")
    verifier: Daemon = mesh.verifier("step_ms=1")
    assert complete(verifier, body(PROMPT, 5)).text == sim_text(PROMPT, 5)
    verifier.signal(signal.SIGKILL)
    verifier.wait()
    assert complete(mesh.verifier("step_ms=1"), body(PROMPT, 5)).text == sim_text(PROMPT, 5)
