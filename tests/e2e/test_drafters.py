"""Drafters of another vocabulary, where the text is always the verifier's, and drafters of two verifiers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.ports import free_port
from processes import Daemon, Mesh, Stream, body, complete, drafted, generate, sim_text, until

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
    daemon = beside.drafter(
        make_gguf("stranger", words=58, foreign=58), *SMALL, engine="llama", ready=False
    )
    assert daemon.wait() == 78
    assert not daemon.socket.exists()
    last = daemon.text().splitlines()[-1]
    for words in (
        "vocabulary",
        "stranger",
        "target-words",
        "81.81 %",
        "90 % are needed",
        "same family",
    ):
        assert words in last
    assert generate(verifier, PROMPTS[0], "--max-tokens", 5).code == 0


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
