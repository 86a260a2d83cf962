"""Drafters of another vocabulary, where the text is always the verifier's, and drafters of two verifiers."""

from collections import Counter
from collections.abc import Callable
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

SMALL = ("--ctx", 256, "--max-sessions", 4)
PROMPTS = ["def fibonacci(n):\n    ", "hello the theory", "Grüße 😀 "]
N = 60
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
    """Greedy and sampled, at every socket: ids and text equal those without drafts. (drafted, accepted) of greedy, of
    as many texts as are needed: a busy machine's drafter is late for most."""
    counts: Counter[str] = Counter()

    def enough() -> bool:
        for prompt in PROMPTS:
            for sampling in ({}, {"temperature": 0.8, "seed": 3, "top_p": 0.95}):
                alone = complete(verifier, body(prompt, N, draft_n=0, **sampling))
                for daemon in daemons:
                    stream = complete(daemon, body(prompt, N, draft_n=3, **sampling))
                    assert (stream.ids, stream.text) == (alone.ids, alone.text)
                    if not sampling:
                        counts.update(
                            {
                                name: stream.result["report"][name]
                                for name in ("drafted", "accepted")
                            }
                        )
        return counts["drafted"] > N

    until(enough, "drafts are verified")
    return counts["drafted"], counts["accepted"]


@pytest.mark.models
def test_permuted_twin(verifier: Daemon, target: Path, make_gguf: Make, beside: Mesh):
    """The target's own weights under other ids: translated, said once, accepted as often as the identical model."""
    twin = beside.drafter(target, *SMALL, engine="llama", name="twin")
    drafted, accepted = check_texts(verifier, [verifier, twin])
    identical = accepted / drafted
    assert twin.verifier()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert not twin.events("vocabulary_fetched")
    twin.stop()
    other = beside.drafter(
        make_gguf("permuted", **TARGET, permute=5), *SMALL, engine="llama", name="permuted"
    )
    drafted, accepted = check_texts(verifier, [verifier, other])
    assert identical > 0.95
    assert accepted / drafted > identical - 0.01
    [told] = other.events("vocabulary_permuted")
    assert "under other ids" in str(told["meaning"])
    assert other.verifier()["vocabulary"] == {"verdict": "permuted", "overlap": 1.0}


@pytest.mark.models
@pytest.mark.parametrize(("whose", "permute"), [("drafter", 0), ("verifier", 6)])
def test_foreign_tokens(make_gguf: Make, target: Path, mesh: Mesh, permute: int, whose: str):
    """1 % of its tokens are foreign to the other: the drafter drafts the rest, says the share, and still helps."""
    foreign = make_gguf(f"foreign-{permute}", **TARGET, foreign=3, permute=permute)
    models = {"verifier": target, "drafter": target, whose: foreign}
    verifier = mesh.verifier(models["verifier"], *SMALL, "--reproducible", engine="llama")
    daemon = mesh.drafter(models["drafter"], *SMALL, engine="llama")
    drafted, accepted = check_texts(verifier, [verifier, daemon])
    assert (
        accepted / drafted > 0.3
    )  # random weights: after a foreign token in the text their guesses are any
    [told] = daemon.events("vocabulary_partial")
    assert told["level"] == "warning"
    assert "99.05 % of the tokens have a counterpart" in str(told["meaning"])


@pytest.mark.models
@pytest.mark.fault("E7.78")
def test_wholly_different(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """Nothing is drafted, and everybody says why; clients of both are served."""
    stranger = make_gguf("stranger", words=58, foreign=58)
    daemon = beside.drafter(stranger, *SMALL, engine="llama")
    [why] = [one["no_drafts"] for one in rows(daemon)]
    words = ("stranger", "target-words", "81.81 %", "90 % are needed", "same family")
    assert [word for word in words if word not in str(why)] == []
    assert rows(daemon)[0]["vocabulary"]["verdict"] == "different"
    assert daemon.events("vocabulary_different")[0]["level"] == "error"
    until(lambda: verifier.stats()["peers"][0]["no_drafts"] == "vocabulary", "the verifier knows")
    shown = command("ps", "--json", env=runtime(beside.folder)).json["daemons"]
    assert {one["role"]: one["no_drafts"] for one in shown if one["state"] == "running"} == {
        "verifier": "vocabulary",
        "drafter": why,
    }
    for asked in (verifier, daemon):
        told = generate(asked, PROMPTS[0], "--max-tokens", 20, "--draft-n", 4, "--json").json
        assert (told["drafted"], told["no_drafts"]) == (0, "vocabulary")
        assert told["generated_tokens"] == 20
    for asked, word in ((verifier, "vocabulary"), (daemon, "same family")):
        text = command("stats", "--socket", asked.socket).out
        assert word in text


@pytest.mark.models
@pytest.mark.fault("E7.78")
def test_a_verifier_changes_its_model_and_back(make_gguf: Make, target: Path, mesh: Mesh):
    """The drafter's process stays; it drafts again once the first model is back, and fetches no
    vocabulary twice."""
    stranger = make_gguf("stranger", words=58, foreign=58)
    drafter = mesh.drafter(target, *SMALL, engine="llama", ready=False)
    for number, (model, suits) in enumerate(
        ((target, True), (stranger, False), (target, True), (stranger, False))
    ):
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


@pytest.mark.fault("E7.80")
def test_a_text_beyond_the_drafters_context(mesh: Mesh):
    """Whole, and by its own words without drafts: in its report, in stats and in both logs."""
    verifier = mesh.verifier("step_ms=2,n_ctx=4096")
    drafter = mesh.drafter("draft_ms=0.5,n_ctx=256")
    for daemon in (verifier, drafter):
        told = generate(daemon, "z" * 300, "--max-tokens", 30, "--draft-n", 4, "--json").json
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


def test_one_of_two_is_killed_in_the_middle(mesh: Mesh):
    """Both have drafts; then a text goes on at the other, and is the same, and new ones go there, too."""
    addresses = mesh.address, f"tcp://127.0.0.1:{free_port()}"
    verifiers = [mesh.verifier("step_ms=8", "--bind", one, name=one[-5:]) for one in addresses]
    drafter = mesh.drafter("", "--connect", addresses[1])
    until(lambda: all(one["name"] for one in rows(drafter)), "the drafter has both")
    for verifier in verifiers:
        assert drafted(verifier, body(PROMPT, 100, rounds=True)).text == sim_text(PROMPT, 100)
    with Stream(drafter, body(PROMPT, 800, rounds=True)) as stream:
        stream.read(5)
        [has] = [
            one
            for one in verifiers
            if any(told.get("remote") for told in one.events("session_opened"))
        ]
        has.kill()
        stream.read()
    assert stream.text == sim_text(PROMPT, 800)
    assert stream.finish == "length"
    assert drafter.stats()["sessions"]["resumed"] == 1
    assert [one["name"] is None for one in rows(drafter)] == [one is has for one in verifiers]
    assert complete(drafter, body(PROMPT, 50)).text == sim_text(PROMPT, 50)


@pytest.mark.models
def test_a_model_is_chosen(make_gguf: Make, mesh: Mesh):
    """`generate --model` where the verifiers have different ones; without, the first one's; another name is refused."""
    addresses = mesh.address, f"tcp://127.0.0.1:{free_port()}"
    for seed, address in enumerate(addresses, 1):
        file = make_gguf(f"seeded-{seed}", seed=seed, words=58)
        mesh.verifier(file, *SMALL, "--bind", address, engine="llama", name=f"verifier{seed}")
    drafter = mesh.drafter("", "--connect", addresses[1], engine="ngram")
    until(lambda: all(one["model"] for one in rows(drafter)), "the drafter has both")

    def said(daemon: Daemon, *options: str) -> str:
        return generate(daemon, PROMPT, "--max-tokens", 40, *options).out

    first, second = (said(one) for one in mesh.daemons[:2])
    assert first != second
    assert [said(drafter, "--model", f"seeded-{seed}") for seed in (1, 2)] == [first, second]
    assert said(drafter) == first
    generate(drafter, PROMPT, "--model", "nobody's").refused(
        2, "no model nobody's is served here: see `specmesh ps`"
    )
    assert generate(drafter, "--resume", "cmpl-" + "0" * 32, "--model", "seeded-1").code == 2
