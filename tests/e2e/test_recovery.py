"""A daemon dies in the middle of a text, and it is the text that it would have been: real processes, killed."""

import re
import signal

import pytest
from processes import Daemon, Done, Mesh, command, generating, sim_text, until

from specmesh.core.sampling.sampler import SamplingParams

PROMPT = "Once more unto the breach"
TARGET, DRAFT = "step_ms=10", "draft_ms=0.5,alpha=0.9"
GREEDY: tuple[object, ...] = ()
SEEDED: tuple[object, ...] = ("--temperature", 0.8, "--seed", 7)
N = 150
NOTICE = re.compile(r"specmesh: .*went away.*; it is waited for, 30 s at most\n")


def text(how: tuple[object, ...], count: int = N) -> str:
    return sim_text(PROMPT, count, SamplingParams(0.8, seed=7) if how else None)


def start_again(mesh: Mesh, role: str) -> Daemon:
    """The daemon of that role once more, at the same socket; not waited for."""
    return mesh.verifier(TARGET, ready=False) if role == "verifier" else mesh.drafter(DRAFT, ready=False)


def nothing_left(*daemons: Daemon) -> None:
    """No session lives or is kept for anybody."""
    for daemon in daemons:
        counts = ("live", "kept") if daemon.role == "verifier" else ("live", "interrupted")
        until(lambda: not any(daemon.stats()["sessions"][one] for one in counts), f"nothing is left: {daemon.role}")  # type: ignore[index] # noqa: B023


@pytest.mark.parametrize(
    ("client", "killed", "how"),
    [
        ("drafter", "verifier", SEEDED),
        ("verifier", "verifier", GREEDY),
        ("drafter", "drafter", SEEDED),
        ("drafter", "both", GREEDY),
    ],
    ids=["its verifier", "the verifier asked", "the drafter asked", "both"],
)
@pytest.mark.fault("E3.34")
@pytest.mark.fault("E3.35")
def test_killed_and_started_again(mesh: Mesh, client: str, killed: str, how: tuple[object, ...]):
    """kill -9 in the middle of a text: exit code 0, the same text, nothing twice; what is waited for is told."""
    pair = {"verifier": mesh.verifier(TARGET), "drafter": mesh.drafter(DRAFT)}
    running = generating(pair[client], PROMPT, "--max-tokens", N, *how).read(40)
    again = {}
    for role in ("verifier", "drafter"):
        if killed in (role, "both"):
            pair[role].kill()
            again[role] = start_again(mesh, role)
    done = running.end()
    assert (done.code, done.out) == (0, text(how) + "\n")
    if killed in (client, "both"):
        assert NOTICE.match(done.err)
    else:
        assert done.err == ""
    nothing_left(*(pair | again).values())


@pytest.mark.fault("E3.32")
def test_frozen_verifier_is_found_again(mesh: Mesh):
    """SIGSTOP for longer than silence is borne (3.5 s): the drafter gives the connection up, and goes on with the
    session once its verifier moves again."""
    verifier, drafter = mesh.verifier(TARGET), mesh.drafter(DRAFT)
    running = generating(drafter, PROMPT, "--max-tokens", 300).read(40)
    verifier.signal(signal.SIGSTOP)
    until(lambda: drafter.stats()["sessions"]["interrupted"] == 1, "it is given up")
    verifier.signal(signal.SIGCONT)
    assert running.end() == Done(0, text(GREEDY, 300) + "\n", "")
    nothing_left(verifier, drafter)


@pytest.mark.fault("E3.34")
def test_nobody_comes_back_in_time(mesh: Mesh):
    """69 with the text so far, and a line with what goes on with it: a drafter still can, once a verifier is back."""
    verifier, drafter = mesh.verifier(TARGET), mesh.drafter(DRAFT)
    running = generating(drafter, PROMPT, "--max-tokens", N, "--reconnect-timeout", 0.3).read(40)
    verifier.kill()
    done = running.end()
    assert done.code == 69
    assert 40 <= len(done.out) < N
    assert text(GREEDY).startswith(done.out.removesuffix("\n"))
    assert done.err.count("\n") == 1
    _, hint, name = done.err.rpartition("specmesh generate --resume ")
    assert hint
    again = start_again(mesh, "verifier").ready()
    mesh.attached(drafter.ready())
    whole = command("generate", "--resume", name.strip(), "--socket", drafter.socket)
    assert whole == Done(0, text(GREEDY) + "\n", "")
    nothing_left(again, drafter)
