"""`specmesh audit`, and `--reproducible`: the same bits with and without drafts."""

import random
from pathlib import Path

import pytest
from processes import Daemon, Json, Mesh, command, edited, until

from specmesh.bench.audit import audit, lines
from specmesh.paths import bundled

pytestmark = pytest.mark.models

PROMPT = "import json\nfrom pathlib import Path\n\n\nclass Settings:\n    def __init__(self, path"
SMALL = ("--ctx", 512, "--max-sessions", 3)
N = 40


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    found = shared.verifier(Path(bundled("target.gguf")), *SMALL, "--reproducible", engine="llama")
    shared.drafter(Path(bundled("drafter.gguf")), *SMALL, engine="llama")
    return found


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.8, "--top-k", 40, "--seed", 3)])
def test_reproducible(verifier: Daemon, sampling: tuple[object, ...]):
    """Drafts stand and fall, and no log-probability differs."""
    options = ("--num-prompts", 3, "--max-tokens", N, "--draft-n", "auto,3", "--json")

    def drafts() -> bool:
        done = command("audit", "--socket", verifier.socket, *options, *sampling)
        told = done.json
        assert (done.code, done.err) == (0, "")
        assert (told["noise"], told["divergences"], told["failed"]) == (0.0, [], False)
        assert [way["identical"] for way in told["ways"]] == [3, 3]
        assert told["model"]["reproducible"]
        return 0 < told["ways"][1]["accepted"] < told["ways"][1]["drafted"]

    until(drafts, "they stand and fall")


WAYS: dict[str, tuple[object, ...]] = {
    "temperature": (0, 0.3, 0.8, 1.2),
    "top_k": (0, 5, 40),
    "top_p": (1, 0.95, 0.5),
    "min_p": (0, 0.05),
    "repeat_penalty": (1, 1.2),
    "repeat_last_n": (64, 8, -1),
    "frequency_penalty": (0, 0.5),
    "presence_penalty": (0, -0.3),
    "logit_bias": ([], [[10, 2.5], [300, -3]]),
    "ignore_eos": (False, True),
}


def in_some_way(number: int) -> Json:
    """The prompt, sampled by parameters that are put together at random."""
    rng = random.Random(number)
    return {name: rng.choice(ways) for name, ways in WAYS.items()} | {"prompt": PROMPT, "seed": number}


def test_fifty_ways_to_sample(verifier: Daemon):
    """Text and log-probabilities are those of the verifier alone."""
    bodies = [in_some_way(number) | {"max_tokens": 12} for number in range(50)]

    def drafts() -> bool:
        result = audit(verifier.client, bodies, (3,), verifier.stats(), lambda: None)
        [way] = result["ways"]
        assert not result["failed"], lines(result)
        assert (way["errors"], way["texts"]) == (0, 50)
        assert (result["noise"], result["divergences"]) == (0.0, [])
        return int(way["accepted"]) > 5 * 12

    until(drafts, "they stand")


ERRS = """
from specmesh.core import session
accept, told = session.accept, []
def errs(drafts, choose, **rest):
    if not drafts or told or rest["room"] > 20:
        return accept(drafts, choose, **rest)
    told.append(choose(0))
    return session.Acceptance((told[0] - 1 if told[0] > 33 else 34,), 0, 1, ended=False)
session.accept = errs
"""
"""One token of all texts is another than the target's: the first of a step with drafts, far into a text."""


def test_one_changed_token(mesh: Mesh):
    """It is seen, named with its place, and the exit code says so."""
    verifier = mesh.verifier("step_ms=2", program=edited(ERRS))
    mesh.drafter("draft_ms=0.2,alpha=0.9")
    done = command(
        "audit", "--socket", verifier.socket, "--num-prompts", 2, "--max-tokens", 60, "--draft-n", 4, "--json"
    )
    told = done.json
    assert (done.code, told["failed"], told["undrafted"]) == (1, True, [])
    assert [(one["verdict"], one["draft_n"]) for one in told["divergences"]] == [("error", 4)]
    assert told["divergences"][0]["position"] >= 40
    assert [(way["identical"], way["near_ties"], way["errors"]) for way in told["ways"]] == [(1, 0, 1)]


def test_nobody_drafts(mesh: Mesh):
    command("audit", "--socket", mesh.verifier("step_ms=1").socket).refused(69, "no drafter is attached")
