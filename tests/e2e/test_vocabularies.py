"""Drafters whose vocabulary is not the verifier's: each does what is said, and the text is always the verifier's."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Daemon, Mesh, body, complete, generate, until

pytestmark = pytest.mark.models

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


def drafter(mesh: Mesh, path: Path, *args: object, name: str | None = None) -> Daemon:
    return mesh.drafter(path, *SMALL, *args, engine="llama", name=name)


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
                        counts.update({name: stream.result["report"][name] for name in ("drafted", "accepted")})
        return counts["drafted"] > N

    until(enough, "drafts are verified")
    return counts["drafted"], counts["accepted"]


def test_permuted_twin(verifier: Daemon, target: Path, make_gguf: Make, beside: Mesh):
    """The target's own weights under other ids: translated, said once, accepted as often as the identical model."""
    twin = drafter(beside, target, name="twin")
    drafted, accepted = check_texts(verifier, [verifier, twin])
    identical = accepted / drafted
    assert twin.verifier()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert not twin.events("vocabulary_fetched")
    twin.stop()
    other = drafter(beside, make_gguf("permuted", **TARGET, permute=5), name="permuted")
    drafted, accepted = check_texts(verifier, [verifier, other])
    assert identical > 0.95
    assert accepted / drafted > identical - 0.01
    [told] = other.events("vocabulary_permuted")
    assert "under other ids" in str(told["meaning"])
    assert other.verifier()["vocabulary"] == {"verdict": "permuted", "overlap": 1.0}


@pytest.mark.parametrize(("whose", "permute"), [("drafter", 0), ("verifier", 6)])
def test_foreign_tokens(make_gguf: Make, target: Path, mesh: Mesh, permute: int, whose: str):
    """1 % of its tokens are foreign to the other: the drafter drafts the rest, says the share, and still helps."""
    foreign = make_gguf(f"foreign-{permute}", **TARGET, foreign=3, permute=permute)
    models = {"verifier": target, "drafter": target, whose: foreign}
    verifier = mesh.verifier(models["verifier"], *SMALL, "--reproducible", engine="llama")
    daemon = drafter(mesh, models["drafter"])
    drafted, accepted = check_texts(verifier, [verifier, daemon])
    assert accepted / drafted > 0.3  # random weights: after a foreign token in the text their guesses are any
    [told] = daemon.events("vocabulary_partial")
    assert told["level"] == "warning"
    assert "99.05 % of the tokens have a counterpart" in str(told["meaning"])


@pytest.mark.fault("E7.78")
def test_wholly_different(verifier: Daemon, make_gguf: Make, beside: Mesh):
    daemon = beside.drafter(make_gguf("stranger", words=58, foreign=58), *SMALL, engine="llama", ready=False)
    assert daemon.wait() == 78
    assert not daemon.socket.exists()
    last = daemon.text().splitlines()[-1]
    for words in ("vocabulary", "stranger", "target-words", "81.81 %", "90 % are needed", "same family"):
        assert words in last
    assert generate(verifier, PROMPTS[0], "--max-tokens", 5).code == 0
