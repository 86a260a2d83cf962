"""Fuzz targets: every input of the corpora again, any bytes, and that each target notices what is broken."""

import importlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import TARGETS, corpus
from specmesh.core import session as core_verifier
from specmesh.core.accept import Acceptance
from specmesh.core.prefix import Prefix
from specmesh.wire import codec as wire_codec

REACHED = {
    "codec": {
        *("length", "magic", "checksum", "version", "kind", "count", "body"),
        *("Draft", "Truth", "Sync", "Nack", "Hello", "Welcome", "Vocab", "Open", "Opened", "Close", "Done"),
        *("Error", "Ping", "Pong", "Bye", "Logprobs", "DraftProbs"),
    },
    "verifier_session": {
        *("Truth", "Sync", "Nack", "Emit", "Trim", "Finish"),
        *("accepted", "rejected", "stale", "waits", "solved", "resumed", "no event"),
    },
    "drafter_session": {*("Draft", "DraftProbs", "Nack", "Trim", "Learned", "accepted", "no event"), "sampled"},
}
"""What the inputs of a corpus make happen."""


def run(target, data):
    return importlib.import_module(f"fuzz.{target}").run(data)


@pytest.mark.parametrize("target", TARGETS)
def test_corpus(target):
    """No input breaks the target, and each message, refusal, effect and turn of a session happens in some."""
    seen = Counter()
    for path in corpus(target):
        try:
            seen += run(target, path.read_bytes())
        except Exception as error:
            error.add_note(str(path))
            raise
    assert REACHED[target] <= set(seen)


@pytest.mark.parametrize("target", TARGETS)
@given(st.sampled_from([b"", b"SM\x02"]), st.binary(max_size=400))
def test_any_input(target, begin, data):
    run(target, begin + data)


def notices(target: str) -> bool:
    for path in corpus(target):
        try:
            run(target, path.read_bytes())
        except (AssertionError, LookupError, RecursionError, ValueError):
            return True
    return False


def believing(drafts, choose, **_):
    if drafts:
        return Acceptance(drafts[:1], 1, 1, ended=False)
    return Acceptance((choose(0),), 0, 0, ended=False)


def untrimmed(*step, stepped=core_verifier.VerifierSession.stepped):
    return [effect for effect in stepped(*step) if type(effect).__name__ != "Trim"]


BREAKS = [
    pytest.param("verifier_session", (core_verifier, "accept", believing), id="drafts are believed"),
    pytest.param("verifier_session", (core_verifier.VerifierSession, "stepped", untrimmed), id="nothing is trimmed"),
    pytest.param("drafter_session", (Prefix, "holds", lambda *_: True), id="any prefix is taken for ours"),
    pytest.param("codec", (wire_codec, "MAX_DEPTH", 10**9), id="reports of any depth"),
]


@pytest.mark.parametrize(("target", "broken"), BREAKS)
def test_teeth(target, broken, monkeypatch):
    monkeypatch.setattr(*broken)
    assert notices(target)
