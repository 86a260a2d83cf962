"""A drafter with two verifiers, as processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.ports import free_port
from processes import Daemon, Mesh, Stream, body, complete, drafted, generate, sim_text, until

PROMPT = "the mesh goes on"
TOKENS = 800


@pytest.fixture(scope="module")
def daemons(shared: Mesh) -> tuple[Daemon, Daemon, Daemon]:
    """Two verifiers with the same target, and a drafter that has both."""
    second = f"tcp://127.0.0.1:{free_port()}"
    verifiers = [
        shared.verifier("step_ms=8", "--bind", address, name=f"verifier{number}")
        for number, address in enumerate((shared.address, second))
    ]
    drafter = shared.drafter("", "--connect", second)
    until(lambda: all(one["name"] for one in rows(drafter)), "the drafter has both")
    return *verifiers, drafter


def rows(drafter: Daemon) -> list[dict[str, object]]:
    return drafter.stats()["verifiers"]


def test_both_have_drafts(daemons: tuple[Daemon, Daemon, Daemon]):
    for verifier in daemons[:2]:
        assert drafted(verifier, body(PROMPT, 100, rounds=True)).text == sim_text(PROMPT, 100)


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
    assert drafter.stats()["sessions"]["resumed"] == 1
    assert [one["name"] is None for one in rows(drafter)] == [one is has for one in verifiers]
    assert complete(drafter, body(PROMPT, 50)).text == sim_text(PROMPT, 50)


@pytest.mark.models
def test_a_model_is_chosen(make_gguf: Callable[..., Path], mesh: Mesh):
    """`generate --model` where the verifiers have different ones; without, the first one's; another name is refused."""
    addresses, seeds = (mesh.address, f"tcp://127.0.0.1:{free_port()}"), (1, 2)
    for address, seed in zip(addresses, seeds, strict=True):
        file = make_gguf(f"seeded-{seed}", seed=seed, words=58)
        small = ("--ctx", 256, "--max-sessions", 2, "--bind", address)
        mesh.verifier(file, *small, engine="llama", name=f"verifier{seed}")
    drafter = mesh.drafter("", "--connect", addresses[1], engine="ngram")
    until(lambda: all(one["model"] for one in rows(drafter)), "the drafter has both")
    alone = [generate(one, PROMPT, "--max-tokens", 40, "--json").json for one in mesh.daemons[:2]]
    assert alone[0]["text"] != alone[1]["text"]
    for number, seed in enumerate(seeds):
        chosen = generate(drafter, PROMPT, "--max-tokens", 40, "--json", "--model", f"seeded-{seed}").json
        assert chosen["text"] == alone[number]["text"]
    assert generate(drafter, PROMPT, "--max-tokens", 40, "--json").json["text"] == alone[0]["text"]
    generate(drafter, PROMPT, "--model", "nobody's").refused(2, "no model nobody's is served here: see `specmesh ps`")
    assert generate(drafter, "--resume", "cmpl-" + "0" * 32, "--model", "seeded-1").code == 2
