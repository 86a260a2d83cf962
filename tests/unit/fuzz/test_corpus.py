"""Every input of the corpora again: what once broke a target stays mended."""

import importlib
from collections import Counter

import pytest

from fuzz.__main__ import LONGEST
from fuzz.targets import TARGETS, corpus

INPUTS = [pytest.param(target, path, id=f"{target} {path.name}") for target in TARGETS for path in corpus(target)]

REACHED = {
    "codec": {
        *("length", "magic", "checksum", "version", "kind", "count", "body"),
        *("Draft", "Truth", "Sync", "Nack", "Shadow", "Hello", "Welcome", "Vocab", "Open", "Opened", "Close", "Done"),
        *("Error", "Ping", "Pong", "Round", "Bye", "Logprobs", "DraftProbs"),
    },
    "verifier_session": {
        *("Told", "Nacked", "Emit", "Trim", "Finish"),
        *("accepted", "rejected", "stale", "waits", "solved", "resumed", "no event"),
        *("sampled", "certain", "beyond the rows"),
    },
    "drafter_session": {
        *("Drafted", "Shadowed", "Nacked", "Trim", "Learned", "accepted", "shadowing", "no event"),
        "sampled",
    },
}
"""What the inputs of a corpus make happen."""


def run(target, data):
    return importlib.import_module(f"fuzz.{target}").run(data)


@pytest.mark.parametrize(("target", "path"), INPUTS)
def test_input(target, path):
    """A target holds against each of its inputs."""
    run(target, path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_reaches_what_there_is(target):
    """Each message, refusal, effect and turn of a session happens in some input."""
    seen = sum((run(target, path.read_bytes()) for path in corpus(target)), Counter())
    assert REACHED[target] <= {what for what, count in seen.items() if count}


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_is_small(target):
    """An input is no longer than the fuzzer makes them, and all of them are read in no time."""
    sizes = [path.stat().st_size for path in corpus(target)]
    assert max(sizes) <= LONGEST[target]
    assert sum(sizes) < 200_000
