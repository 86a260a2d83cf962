"""A drafter with two verifiers, as processes."""

import pytest
from processes import Daemon, Mesh, Stream, body, complete, free_port, sim_text, until

PROMPT = "the mesh goes on"
TOKENS = 800


@pytest.fixture(scope="module")
def daemons(shared: Mesh) -> tuple[Daemon, Daemon, Daemon]:
    """Two verifiers with the same target, and a drafter that has both."""
    ports = shared.port, free_port()
    target = ("--engine", "sim", "--model", "step_ms=8")
    both = [
        shared.start("verifier", *target, "--bind", f"tcp://127.0.0.1:{port}", name=f"verifier{number}")
        for number, port in enumerate(ports)
    ]
    addresses = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
    model = ("--engine", "sim", "--model", "draft_ms=0.5,alpha=0.9")
    drafter = shared.start("drafter", *model, "--connect", addresses).ready()
    for one in both:
        one.ready()
    until(lambda: all(one["name"] for one in rows(drafter)), "the drafter has both")
    return both[0], both[1], drafter


def rows(drafter: Daemon) -> list[dict[str, object]]:
    return drafter.stats()["verifiers"]  # type: ignore[return-value]


def test_both_have_drafts(daemons: tuple[Daemon, Daemon, Daemon]):
    """Clients at each verifier's own socket are drafted for by the one drafter."""
    for verifier in daemons[:2]:
        answer = complete(verifier, body(PROMPT, 100, rounds=True))
        assert answer.text == sim_text(PROMPT, 100)
        assert sum(answer.accepted) > 0


def test_one_is_killed_in_the_middle(daemons: tuple[Daemon, Daemon, Daemon]):
    """Its text goes on at the other, and is the same; new ones go there, too."""
    *verifiers, drafter = daemons
    with Stream(drafter, body(PROMPT, TOKENS, rounds=True)) as stream:
        stream.read(5)
        [has] = [one for one in verifiers if any(told.get("remote") for told in one.events("session_opened"))]
        has.kill()
        stream.read()
    assert stream.text == sim_text(PROMPT, TOKENS)
    assert stream.finish == "length"
    assert drafter.stats()["sessions"]["resumed"] == 1  # type: ignore[index]
    assert [one["name"] is None for one in rows(drafter)] == [one is has for one in verifiers]
    assert complete(drafter, body(PROMPT, 50)).text == sim_text(PROMPT, 50)
