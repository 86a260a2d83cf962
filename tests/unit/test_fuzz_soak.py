"""Fuzz targets: every input of the corpora again, any bytes, and that each target notices what is broken; the soak's
verdicts."""

import importlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import TARGETS, corpus
from soak.truth import BAD, Text, Told, Verdict, judge
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.verifier import session as core_verifier
from specmesh.core.verifier.accept import Acceptance
from specmesh.wire import codec as wire_codec

REACHED = {
    "codec": {
        *("length", "magic", "checksum", "version", "kind", "count", "body"),
        *(
            "Draft",
            "Truth",
            "Sync",
            "Nack",
            "Hello",
            "Welcome",
            "Vocab",
            "Open",
            "Opened",
            "Close",
            "Done",
        ),
        *("Error", "Ping", "Pong", "Bye", "Logprobs", "DraftProbs"),
    },
    "verifier_session": {
        *("Truth", "Sync", "Nack", "Emit", "Trim", "Finish"),
        *("accepted", "rejected", "stale", "waits", "solved", "resumed", "no event"),
    },
    "drafter_session": {
        *("Draft", "DraftProbs", "Nack", "Trim", "Learned", "accepted", "no event"),
        "sampled",
    },
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
    pytest.param(
        "verifier_session", (core_verifier, "accept", believing), id="drafts are believed"
    ),
    pytest.param(
        "verifier_session",
        (core_verifier.VerifierSession, "stepped", untrimmed),
        id="nothing is trimmed",
    ),
    pytest.param(
        "drafter_session", (Prefix, "holds", lambda *_: True), id="any prefix is taken for ours"
    ),
    pytest.param("codec", (wire_codec, "MAX_DEPTH", 10**9), id="reports of any depth"),
]


@pytest.mark.parametrize(("target", "broken"), BREAKS)
def test_teeth(target, broken, monkeypatch):
    monkeypatch.setattr(*broken)
    assert notices(target)


# --- the soak: what a client got, compared with what the verifier alone says

TEXT = Text("p", SamplingParams(), (112,), (65, 66, 67, 68), ended=False)
ENDED = replace(TEXT, ended=True)


def verdict(told, text=TEXT, max_tokens=4, *, excused=False):
    return judge(told, text, max_tokens, bytes(told.ids).decode(), excused=excused, waits=False)


@pytest.mark.parametrize(
    ("told", "text", "max_tokens", "expected"),
    [
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="length"), TEXT, 4, Verdict.COMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="stop"), ENDED, 9, Verdict.COMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="length"), ENDED, 9, Verdict.INCOMPLETE),
        (Told(ids=[65, 66], text="AB", finish="length"), TEXT, 4, Verdict.INCOMPLETE),
        (Told(ids=[65, 66], text="AB", finish="cancelled"), TEXT, 2, Verdict.INCOMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABC", finish="length"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65, 66, 68], text="ABD", finish=None, error="x"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65, 66, 67], text="ABC", finish="length"), TEXT, 2, Verdict.MISMATCH),
        (Told(ids=[65], text="A", left=True), TEXT, 4, Verdict.EXCUSED),
        (Told(ids=[65], text="A", error="x"), TEXT, 4, Verdict.INCOMPLETE),
    ],
    ids=repr,
)
def test_verdicts(told, text, max_tokens, expected):
    assert verdict(told, text, max_tokens) is expected
    assert (expected in BAD) == (expected not in (Verdict.COMPLETE, Verdict.EXCUSED))


def test_faults_excuse_the_missing_rest_and_nothing_else():
    """With a fault an answer may be cut; what came of it must be right all the same."""
    assert (
        verdict(Told(ids=[65], text="A", error="x", opened=True), excused=True) is Verdict.EXCUSED
    )
    assert verdict(Told(error="x"), excused=True) is Verdict.EXCUSED
    assert verdict(Told(ids=[66], text="B", error="x"), excused=True) is Verdict.MISMATCH
    assert verdict(Told(ids=[65], text="A", finish="length"), excused=True) is Verdict.INCOMPLETE
