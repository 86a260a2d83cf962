"""Drafters of another vocabulary, with the verifier's own text, and drafters of two verifiers."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from harness.ports import free_port
from processes import (
    Daemon,
    Mesh,
    Stream,
    body,
    command,
    complete,
    drafted,
    generate,
    runtime,
    sim_text,
    until,
)

fault = pytest.mark.fault
SMALL = ("--ctx", 256, "--max-sessions", 4)
PROMPTS = ["def fibonacci(n):\n    ", "hello the theory", "Grüße 😀 "]
N = 60
SAMPLED = {"temperature": 0.8, "seed": 3, "top_p": 0.95}
TARGET: dict[str, object] = {"seed": 1, "words": 58}
"""Every token but the end has text, so a twin can say all that the target says."""

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def target(make_gguf: Make) -> Path:
    return make_gguf("target-words", **TARGET)


@pytest.fixture(scope="module")
def verifier(target: Path, shared: Mesh) -> Daemon:
    return shared.verifier(target, *SMALL, "--reproducible", engine="llama")


def check_texts(verifier: Daemon, daemons: list[Daemon]) -> tuple[int, int]:
    """Check that greedy and sampled texts are those without drafts, at every socket.

    Return how many drafts of greedy texts there were, and how many stood. There are as many texts
    as are needed: a busy machine's drafter is late for most.
    """
    drafts, accepted = 0, 0

    def enough() -> bool:
        nonlocal drafts, accepted
        for prompt, sampling in product(PROMPTS, ({}, SAMPLED)):
            plain = complete(verifier, body(prompt, N, draft_n=0, **sampling))
            for daemon in daemons:
                stream = complete(daemon, body(prompt, N, draft_n=3, **sampling))
                assert (stream.ids, stream.text) == (plain.ids, plain.text)
                if not sampling:
                    drafts += stream.result["report"]["drafted"]
                    accepted += stream.result["report"]["accepted"]
        return drafts > N

    until(enough, "drafts are verified")
    return drafts, accepted


@pytest.mark.models
def test_permuted_twin(verifier, target, make_gguf, beside):
    """The target's weights under other ids are translated, and accepted as often as its own."""
    twin = beside.drafter(target, *SMALL, engine="llama", name="twin")
    drafted, accepted = check_texts(verifier, [verifier, twin])
    identical = accepted / drafted
    assert twin.verifier()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert not twin.events("vocabulary_fetched")
    twin.stop()
    permuted = make_gguf("permuted", **TARGET, permute=5)
    other = beside.drafter(permuted, *SMALL, engine="llama", name="permuted")
    drafted, accepted = check_texts(verifier, [verifier, other])
    assert identical > 0.95
    assert accepted / drafted > identical - 0.01
    [told] = other.events("vocabulary_permuted")
    assert "under other ids" in str(told["meaning"])
    assert other.verifier()["vocabulary"] == {"verdict": "permuted", "overlap": 1.0}


@pytest.mark.models
@pytest.mark.parametrize(("whose", "permute"), [("drafter", 0), ("verifier", 6)])
def test_foreign_tokens(make_gguf, target, mesh, permute, whose):
    """One in a hundred tokens is foreign; the drafter drafts the rest, and logs the share."""
    foreign = make_gguf(f"foreign-{permute}", **TARGET, foreign=3, permute=permute)
    models = {"verifier": target, "drafter": target, whose: foreign}
    verifier = mesh.verifier(models["verifier"], *SMALL, "--reproducible", engine="llama")
    daemon = mesh.drafter(models["drafter"], *SMALL, engine="llama")
    drafted, accepted = check_texts(verifier, [verifier, daemon])
    # random weights: after a foreign token in the text their guesses are any
    assert accepted / drafted > 0.3
    [told] = daemon.events("vocabulary_partial")
    assert told["level"] == "warning"
    assert "99.05 % of the tokens have a counterpart" in str(told["meaning"])


@pytest.mark.models
@fault("E7.78")
def test_wholly_different(verifier, make_gguf, beside):
    """Nothing is drafted, with the reason in both daemons' stats; clients of both are served."""
    stranger = make_gguf("stranger", words=58, foreign=58)
    daemon = beside.drafter(stranger, *SMALL, engine="llama")
    [why] = [one["no_drafts"] for one in rows(daemon)]
    words = ("stranger", "target-words", "81.81 %", "90 % are needed", "same family")
    assert [word for word in words if word not in str(why)] == []
    assert rows(daemon)[0]["vocabulary"]["verdict"] == "different"
    assert daemon.events("vocabulary_different")[0]["level"] == "error"
    until(lambda: verifier.stats()["peers"][0]["no_drafts"] == "vocabulary", "the verifier knows")
    shown = command("ps", json=True, env=runtime(beside.folder)).json["daemons"]
    reasons = {row["role"]: row["no_drafts"] for row in shown if row["state"] == "running"}
    assert reasons == {"verifier": "vocabulary", "drafter": why}
    for asked in (verifier, daemon):
        told = generate(asked, PROMPTS[0], max_tokens=20, draft_n=4, json=True).json
        assert (told["drafted"], told["no_drafts"]) == (0, "vocabulary")
        assert told["generated_tokens"] == 20
    assert "vocabulary" in command("stats", socket=verifier.socket).out
    assert "same family" in command("stats", socket=daemon.socket).out


@pytest.mark.models
@fault("E7.78")
def test_a_verifier_changes_its_model_and_back(make_gguf, target, mesh):
    """The drafter's process stays; it drafts again once the first model is back, and fetches no
    vocabulary twice."""
    stranger = make_gguf("stranger", words=58, foreign=58)
    drafter = mesh.drafter(target, *SMALL, engine="llama", ready=False)
    turns = [(target, True), (stranger, False)] * 2
    for number, (model, suits) in enumerate(turns):
        verifier = mesh.verifier(model, *SMALL, engine="llama", name=f"{number}")
        mesh.attached(drafter)
        request = body(PROMPTS[0], N, draft_n=3, rounds=True)
        if suits:
            drafted(drafter, request)
            assert rows(drafter)[0]["no_drafts"] is None
        else:
            assert complete(drafter, request).result["report"]["no_drafts"] == "vocabulary"
        verifier.stop()
    assert len(drafter.events("vocabulary_fetched")) == 1
    assert drafter.process.poll() is None


@fault("E7.80")
def test_a_text_beyond_the_drafters_context(mesh):
    """Whole, and by its own words without drafts: in its report, in stats and in both logs."""
    verifier = mesh.verifier("step_ms=2,n_ctx=4096")
    drafter = mesh.drafter("draft_ms=0.5,n_ctx=256")
    for daemon in (verifier, drafter):
        told = generate(daemon, "z" * 300, max_tokens=30, draft_n=4, json=True).json
        assert (told["text"], told["drafted"]) == (sim_text("z" * 300, 30), 0)
        assert told["no_drafts"] == "context"
        events = verifier.events("session_finished")
        assert events[-1]["no_drafts"] == "context"
    with Stream(verifier, body("z" * 300, 3000, draft_n=4)) as stream:
        stream.read(10)
        [row] = verifier.stats()["sessions"]["rows"]
        assert (row["no_drafts"], verifier.stats()["no_drafts"]) == ("context", "context")
        until(lambda: verifier.events("no_drafts"), "it is logged while it runs")
    assert verifier.events("no_drafts")[-1]["why"] == "context"
    [warned] = verifier.events("drafter_context_is_smaller")
    assert "--ctx 4096" in str(warned["meaning"])
    [warned] = drafter.events("context_is_smaller")
    assert "--ctx 4096" in str(warned["meaning"])


PROMPT = "the mesh goes on"


def rows(drafter: Daemon) -> list[dict[str, object]]:
    return drafter.stats()["verifiers"]


def serves_a_drafter(verifier: Daemon) -> bool:
    return any(event.get("remote") for event in verifier.events("session_opened"))


def test_one_of_two_is_killed_in_the_middle(mesh):
    """The text goes on at the other, and is the same, and new ones go there, too."""
    addresses = mesh.address, f"tcp://127.0.0.1:{free_port()}"
    verifiers = [mesh.verifier("step_ms=8", "--bind", one, name=one[-5:]) for one in addresses]
    drafter = mesh.drafter("", "--connect", addresses[1])
    until(lambda: all(one["name"] for one in rows(drafter)), "the drafter has both")
    for verifier in verifiers:
        assert drafted(verifier, body(PROMPT, 100, rounds=True)).text == sim_text(PROMPT, 100)
    with Stream(drafter, body(PROMPT, 800, rounds=True)) as stream:
        stream.read(5)
        [has] = [verifier for verifier in verifiers if serves_a_drafter(verifier)]
        has.kill()
        stream.read()
    assert stream.text == sim_text(PROMPT, 800)
    assert stream.finish == "length"
    assert drafter.stats()["sessions"]["resumed"] == 1
    assert [one["name"] is None for one in rows(drafter)] == [one is has for one in verifiers]
    assert complete(drafter, body(PROMPT, 50)).text == sim_text(PROMPT, 50)


@pytest.mark.models
def test_a_model_is_chosen(make_gguf, mesh):
    """`generate --model` chooses a verifier by its model; by default it is the first one."""
    addresses = mesh.address, f"tcp://127.0.0.1:{free_port()}"
    for seed, address in enumerate(addresses, 1):
        file = make_gguf(f"seeded-{seed}", seed=seed, words=58)
        mesh.verifier(file, *SMALL, "--bind", address, engine="llama", name=f"verifier{seed}")
    drafter = mesh.drafter("", "--connect", addresses[1], engine="ngram")
    until(lambda: all(one["model"] for one in rows(drafter)), "the drafter has both")

    def said(daemon: Daemon, *options: str) -> str:
        return generate(daemon, PROMPT, *options, max_tokens=40).out

    first, second = (said(one) for one in mesh.daemons[:2])
    assert first != second
    assert [said(drafter, "--model", f"seeded-{seed}") for seed in (1, 2)] == [first, second]
    assert said(drafter) == first
    unknown = generate(drafter, PROMPT, model="nobody's")
    unknown.refused(2, "no model nobody's is served here: see `specmesh ps`")
    assert generate(drafter, resume="cmpl-" + "0" * 32, model="seeded-1").code == 2
