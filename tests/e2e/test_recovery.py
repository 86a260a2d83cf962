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
    """What the target alone says."""
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


def broken_off(drafter: Daemon, killed: Daemon, timeout: float) -> tuple[Done, str]:
    """A text at the drafter that ends with 69 as one of the daemons is killed, and the name by which it goes on."""
    running = generating(drafter, PROMPT, "--max-tokens", N, "--reconnect-timeout", timeout).read(40)
    killed.kill()
    done = running.end()
    assert done.code == 69
    return done, done.err.split()[-1]


@pytest.mark.fault("E3.34")
def test_nobody_comes_back_in_time(mesh: Mesh):
    """69 with the text so far, and a line with what goes on with it: a drafter still can, once a verifier is back."""
    verifier, drafter = mesh.verifier(TARGET), mesh.drafter(DRAFT)
    done, name = broken_off(drafter, verifier, 0.3)
    assert 40 <= len(done.out) < N
    assert text(GREEDY).startswith(done.out.removesuffix("\n"))
    assert done.err.count("\n") == 1
    assert done.err.endswith(f"specmesh generate --resume {name}\n")
    again = start_again(mesh, "verifier").ready()
    mesh.attached(drafter.ready())
    whole = generate_again(drafter, name)
    assert whole == Done(0, text(GREEDY) + "\n", "")
    nothing_left(again, drafter)


@pytest.mark.fault("E3.31")
def test_resume_at_the_verifier_what_its_dead_drafter_began(mesh: Mesh):
    """The verifier has gone on with the text: --resume has all of it, as does --json; then nobody has."""
    verifier, drafter = mesh.verifier(TARGET), mesh.drafter(DRAFT)
    _, name = broken_off(drafter, drafter, 0)
    until(lambda: verifier.stats()["sessions"]["kept"] == 1, "it is kept")
    told = generate_again(verifier, name, "--json").json
    assert (told["text"], told["finish_reason"], told["generated_tokens"]) == (text(GREEDY), "length", N)
    after = generate_again(verifier, name)
    assert (after.code, after.out) == (2, "\n" if after.out else "")
    assert "no text of that name" in after.err
    nothing_left(verifier)


def generate_again(daemon: Daemon, name: str, *more: object) -> Done:
    """`specmesh generate --resume` at this daemon's socket."""
    return command("generate", "--resume", name, "--socket", daemon.socket, *more)
